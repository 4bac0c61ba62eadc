"""What an engine's counter shows after it has loaded a model: tensors in the allocator's segments."""

from __future__ import annotations

from functools import lru_cache

from vramcast.memory.segments import place
from vramcast.models.served import Served


@lru_cache(64)
def loaded_bytes(served: Served, stage: int = 0) -> int:
    """Bytes on a rank of a pipeline stage, as the engine's own log counts them: allocated, or in SGLang reserved."""
    placed = place(served.tensors(stage))
    return placed.reserved if served.holder == "sglang" else placed.allocated
