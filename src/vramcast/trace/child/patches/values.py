"""What a user's own step may read: a number to log, but nothing to branch on."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
from types import FrameType
from typing import Any

import torch

import vramcast.trace
from vramcast.errors import refuse
from vramcast.trace.child.patches.patch import Patch
from vramcast.trace.child.tracker import Tracker

aten = torch.ops.aten
_WRAPPERS = {"__torch_dispatch__", "__torch_function__", "inner", "_fn"}
_TORCH = os.path.dirname(str(torch.__file__)) + os.sep
_OWN = os.path.dirname(str(vramcast.trace.__file__)) + os.sep
_IMPORTS = os.path.dirname(str(importlib.__file__)) + os.sep
_LIBRARIES = (_TORCH, _OWN, _IMPORTS, contextlib.__file__, functools.__file__, "<")
"""how files begin whose code is not the user's"""


def place_of_user() -> str:
    """File and line of the innermost frame that is neither torch's nor ours."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""


def _asks_itself() -> str:
    """torch's file that reads a value for itself: an optimizer its count of steps. Empty if the user does."""
    frame: FrameType | None = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code.co_name in _WRAPPERS:
        frame = frame.f_back
    file = frame.f_code.co_filename if frame is not None else ""
    return file.removeprefix(_TORCH) if file.startswith(_TORCH) else ""


def place_of_error(error: BaseException) -> str:
    """File and line in the user's code from which an error came."""
    found, trace = "", error.__traceback__
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_LIBRARIES):
            found = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


_TENSOR = ("_tensor.py", "_tensor_str.py")
"""torch's files that read a value because the user's code asks"""


def _scalar(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A number is 1; a condition has no answer. torch's own questions are whether something is infinite: it is not."""
    dtype, asks = args[0].dtype, _asks_itself()
    own = asks not in ("", *_TENSOR)
    if dtype == torch.bool or func is aten.is_nonzero.default:
        if own:
            return False
        raise refuse(
            f"the step branches on data: {func}", at=place_of_user(),
            do="a trace has no values: take the branch that you want to know of, without asking",
        )  # fmt: skip
    if own:
        return 0.0 if asks == os.path.join("amp", "grad_scaler.py") else 1.0 if dtype.is_floating_point else 1
    tracker.assumed.setdefault(f"the value read at {place_of_user()} is 1")
    return 1.0 if dtype.is_floating_point else 1


PATCHES = [
    Patch(
        "values of a user's step",
        "a fake tensor has no data: a number gets an answer, a branch none",
        "torch/_subclasses/fake_tensor.py: DataDependentOutputException",
        stands=lambda question: {aten._local_scalar_dense.default: _scalar, aten.is_nonzero.default: _scalar},
    )
]
