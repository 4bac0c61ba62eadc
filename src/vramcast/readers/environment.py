"""Variables of a process's environment that change memory, wherever they are set."""

from __future__ import annotations

from vramcast.types.paths import Value

_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def variable_fact(name: str, text: str) -> tuple[str, Value] | None:
    """The path that a variable sets, and its value; a list of visible GPUs counts where nothing else says how many."""
    if name in _ALLOCATOR:
        return "allocator", text
    cards = [card for card in text.split(",") if card.strip() not in ("", "-1")]
    return ("gpus", len(cards)) if name == "CUDA_VISIBLE_DEVICES" and cards else None
