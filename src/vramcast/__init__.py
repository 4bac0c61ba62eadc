"""vramcast: a forecast of GPU memory for LLM post-training and inference, before the run."""

__version__ = "0.1.0"
PREDICTIONS = 4
"""Raised whenever a forecast number moves; every report prints it, and CHANGELOG.md says what moved."""
