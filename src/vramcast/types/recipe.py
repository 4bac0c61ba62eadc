"""What a framework does with a model's outputs and its loss: behaviours that no path of a job names."""

from __future__ import annotations

from msgspec import Struct


class Recipe(Struct, frozen=True):
    """Behaviours of a framework's version, given a job: rows of `modes` in `catalog/frameworks/`."""

    outputs_fp32: bool = False
    """16-bit outputs of the model are converted to fp32 (accelerate's `prepare_model` under native autocast)."""

    outputs_kept: bool = False
    """The caller keeps the model's logits through the backward."""

    tile_tokens: int = 0
    """Tokens in one tile of a fused head; 0: no tiles."""

    tile_vocab: int = 0
    """Vocabulary rows in one tile of a fused head; 0: no tiles."""
