"""Operators that ask for values, which fake tensors do not have."""

from __future__ import annotations

import sys
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
        return tracker.condition
    return 1.0 if dtype.is_floating_point else 1


def _equal(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return True


def _length(mask: torch.Tensor, question: Question) -> int:
    """Positions of one sequence in a mask, which may be flat."""
    if mask.shape[-1] <= question.seq_len:
        return mask.shape[-1]
    return question.seq_len if mask.numel() % question.seq_len == 0 else question.seq_len - 1


def _selection(question: Question) -> Stand:
    def index(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Rows that a mask selects: those with a label."""
        tensor, indices = args
        if len(indices) != 1 or indices[0] is None or indices[0].dtype != torch.bool:
            return NotImplemented
        mask = indices[0]
        longest = _length(mask, question)
        scored = min(question.scored_len, longest)
        rows = mask.numel() // longest * scored
        tracker.assumed.setdefault(f"a mask selects {scored} of {longest} tokens of a sequence")
        out = aten.new_empty.default(tensor, [rows, *tensor.shape[mask.ndim :]])
        tracker.track(out, str(func))
        return out

    return index


def _sum(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Autograd adds a gradient into one that it alone holds."""
    total, more = args
    if not isinstance(total, torch.Tensor) or not isinstance(more, torch.Tensor):
        return NotImplemented
    if tracker.phase != "backward" or total.shape != more.shape:
        return NotImplemented
    if total.dtype != more.dtype or not _engine_asks() or not _is_alone(total):
        return NotImplemented
    return total


def _scatter(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The gradient of chosen elements is put into the zeros that were made for it."""
    return args[0] if tracker.phase == "backward" and _engine_asks() else NotImplemented


def _engine_asks() -> bool:
    """Whether the autograd engine itself runs the operator, not a Python function that it calls."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code.co_name in _WRAPPERS:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "_engine_run_backward"


_WRAPPERS = {"__torch_dispatch__", "inner", "_fn"}
_HELD = 4
"""references to a tensor that only the engine and this call hold"""


def _is_alone(tensor: torch.Tensor) -> bool:
    own = tensor.untyped_storage()
    dense = tensor.is_contiguous() or tensor.t().is_contiguous() if tensor.ndim == 2 else tensor.is_contiguous()
    return dense and torch._C._storage_Use_Count(own._cdata) <= 2 and tensor._use_count() <= _HELD


SUMS = Patch(
    "gradient sums",
    "autograd adds in place into a gradient that it alone holds; for a tensor subclass it makes a new one",
    "torch/csrc/autograd/input_buffer.cpp: can_accumulate_inplace",
    stands=lambda question: {aten.add.Tensor: _sum},
)
PATCHES = [
    SUMS,
    Patch(
        "gradients of chosen elements",
        "autograd scatters into the zeros it made; for a tensor subclass it makes a new tensor",
        "torch/csrc/autograd/FunctionsManual.cpp: gather_backward, index_backward, value_selecting_reduction_backward",
        stands=lambda question: dict.fromkeys(
            (aten.scatter_add.default, aten.scatter.src, aten.index_put.default), _scatter
        ),
    ),
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
