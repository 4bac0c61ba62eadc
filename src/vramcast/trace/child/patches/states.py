"""bitsandbytes' update kernels: they change states and parameters in place and take nothing."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.trace.child.patches.patch import Patch
from vramcast.trace.child.tracker import Stand, Tracker
from vramcast.trace.question import Question

_NAMES = ("optimizer_update_32bit", "optimizer_update_8bit_blockwise")


def _updates(question: Question) -> dict[Any, Stand]:
    import bitsandbytes

    assert bitsandbytes  # registers the operators

    def nothing(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        return None

    return {getattr(torch.ops.bitsandbytes, name).default: nothing for name in _NAMES}


PATCHES = [
    Patch(
        "8-bit updates",
        "the kernels run on CUDA only; they write in place",
        "bitsandbytes/backends/cuda/ops.py: _optimizer_update_32bit_impl, _optimizer_update_8bit_blockwise_impl",
        applies=lambda question: question.optimizer in ("adamw_8bit", "paged_adamw", "paged_adamw_8bit", "lion"),
        stands=_updates,
    ),
]
