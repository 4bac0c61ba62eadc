"""Operators that ask for values, which fake tensors do not have."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.trace.child.patches.patch import Patch
from vramcast.trace.child.tracker import Stand, Tracker
from vramcast.trace.question import Question

aten = torch.ops.aten


def _scalar(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One, or False."""
    dtype = args[0].dtype
    tracker.assumed.setdefault(f"{tracker.phase}: a value that the step reads is 1 (False for a condition)")
    if dtype == torch.bool:
        return False
    return 1.0 if dtype.is_floating_point else 1


def _equal(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return True


def _selection(question: Question) -> Stand:
    def index(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Rows that a mask selects: those with a label."""
        tensor, indices = args
        if len(indices) != 1 or indices[0] is None or indices[0].dtype != torch.bool:
            return NotImplemented
        mask = indices[0]
        longest = mask.shape[-1]
        scored = min(question.scored_len, longest)
        rows = mask.numel() // longest * scored
        tracker.assumed.setdefault(f"a mask selects {scored} of {longest} tokens of a sequence")
        out = aten.new_empty.default(tensor, [rows, *tensor.shape[mask.ndim :]])
        tracker.track(out, str(func))
        return out

    return index


PATCHES = [
    Patch(
        "values",
        "a fake tensor has no data: .item(), a branch and a comparison get an answer",
        "torch/_subclasses/fake_tensor.py: DataDependentOutputException",
        stands=lambda question: {
            aten._local_scalar_dense.default: _scalar,
            aten.equal.default: _equal,
            aten.is_nonzero.default: _equal,
        },
    ),
    Patch(
        "labelled rows",
        "how many rows a mask selects depends on the data: the job's labelled share is taken",
        "aten/src/ATen/native/TensorAdvancedIndexing.cpp",
        stands=lambda question: {aten.index.Tensor: _selection(question)},
    ),
]
