"""vramcast: a forecast of GPU memory for LLM post-training and inference, before the run."""

__version__ = "0.1.0"
