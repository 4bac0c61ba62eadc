"""What a user's own step may read: a number to log, but nothing to branch on."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch

from vramcast.errors import refuse
from vramcast.trace.child.patches.patch import Patch
from vramcast.trace.child.tracker import Tracker

aten = torch.ops.aten
_WRAPPERS = {"__torch_dispatch__", "__torch_function__", "inner", "_fn"}
_LIBRARIES = ("/torch/", "/vramcast/trace/", "<frozen", "<string>", "/contextlib.py")


def place_of_user() -> str:
    """File and line of the innermost frame that is neither torch's nor ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and any(part in frame.f_code.co_filename for part in _LIBRARIES):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""


def _torch_asks() -> bool:
    """Whether torch itself reads the value: an optimizer its count of steps."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_name in _WRAPPERS:
        frame = frame.f_back
    return frame is not None and "/torch/" in frame.f_code.co_filename


def place_of_error(error: BaseException) -> str:
    """File and line in the user's code from which an error came."""
    found, trace = "", error.__traceback__
    while trace is not None:
        if not any(part in trace.tb_frame.f_code.co_filename for part in _LIBRARIES):
            found = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def _scalar(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A number is 1; a condition has no answer."""
    dtype, place = args[0].dtype, place_of_user()
    if dtype == torch.bool or func is aten.is_nonzero.default:
        raise refuse(
            f"the step branches on data: {func}", at=place,
            do="a trace has no values: take the branch that you want to know of, without asking",
        )  # fmt: skip
    if not _torch_asks():
        tracker.assumed.setdefault(f"the value read at {place} is 1")
    return 1.0 if dtype.is_floating_point else 1


PATCHES = [
    Patch(
        "values of a user's step",
        "a fake tensor has no data: a number gets an answer, a branch none",
        "torch/_subclasses/fake_tensor.py: DataDependentOutputException",
        stands=lambda question: {aten._local_scalar_dense.default: _scalar, aten.is_nonzero.default: _scalar},
    )
]
