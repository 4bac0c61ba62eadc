"""Liger's kernels: their wrappers allocate everything they write, and ask on which device they are."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from vramcast.trace.child.patches.patch import Patch, Replacement
from vramcast.trace.child.tracker import Stand, Tracker
from vramcast.trace.question import Question

aten = torch.ops.aten
_CUDA = torch.device("cuda")
_ASK = {
    "liger_kernel.ops.fused_linear_cross_entropy": ("fused_linear_cross_entropy_forward",),
    "liger_kernel.ops.rms_norm": ("rms_norm_backward",),
    "liger_kernel.ops.layer_norm": ("layer_norm_backward",),
}
"""functions that do something else on CUDA"""
_PROCESSORS = {"7.0": 80, "7.5": 40, "8.0": 108, "8.6": 84, "8.9": 128, "9.0": 132, "10.0": 148, "12.0": 170}
"""streaming multiprocessors of a large card of each compute capability: norms sum a weight's gradient once for each"""


def _used(question: Question) -> bool:
    return question.loss == "liger" or question.kernels == "liger"


def _launches(question: Question, tracker: Tracker) -> list[Replacement]:
    from triton.runtime import autotuner, jit

    kinds = (jit.JITFunction, autotuner.Autotuner, autotuner.Heuristics)
    return [Replacement(kind, "run", lambda _: lambda self, *args, **kwargs: None) for kind in kinds]


def _devices(question: Question, tracker: Tracker) -> list[Replacement]:
    major, _, minor = (question.capability or "8.0").partition(".")
    processors = _PROCESSORS.get(question.capability, 132)
    properties = SimpleNamespace(multi_processor_count=processors)
    found = [
        Replacement(FakeTensor, "device", lambda old: property(lambda self: _CUDA if tracker.cuda else old.fget(self))),
        Replacement(torch.cuda, "get_device_capability", lambda _: lambda *args: (int(major), int(minor))),
        Replacement(torch.cuda, "get_device_properties", lambda _: lambda *args: properties),
    ]
    for path, names in _ASK.items():
        module = import_module(path)
        found += [Replacement(module, name, lambda old: _asked(old, tracker)) for name in names]
        if hasattr(module, "device_context"):
            found.append(Replacement(module, "device_context", lambda _: lambda device: nullcontext()))
    checks = import_module("liger_kernel.ops.cross_entropy")
    found.append(Replacement(checks, "cross_entropy_forward", lambda old: _true(old, tracker)))
    head = import_module("liger_kernel.ops.fused_linear_cross_entropy")
    if hasattr(head, "_can_use_mm_out"):
        found.append(Replacement(head, "_can_use_mm_out", _autocast))
    return found


def _asked(function: Callable[..., Any], tracker: Tracker) -> Callable[..., Any]:
    @wraps(function)
    def on_cuda(*args: Any, **kwargs: Any) -> Any:
        tracker.cuda = True
        try:
            return function(*args, **kwargs)
        finally:
            tracker.cuda = False

    return on_cuda


def _true(function: Callable[..., Any], tracker: Tracker) -> Callable[..., Any]:
    """It asserts that labels are in the vocabulary."""

    @wraps(function)
    def holds(*args: Any, **kwargs: Any) -> Any:
        tracker.condition = True
        try:
            return function(*args, **kwargs)
        finally:
            tracker.condition = False

    return holds


def _autocast(old: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Autocast is the CPU's here."""

    def can_use(hidden: torch.Tensor, weight: torch.Tensor) -> bool:
        if torch.is_autocast_enabled("cpu") and hidden.dtype != torch.get_autocast_dtype("cpu"):
            return False
        return old(hidden, weight)

    return can_use


def _modules(question: Question, tracker: Tracker) -> list[Replacement]:
    """Functions of the model's module, to be put back: Liger replaces some for all models."""
    kind = question.config.get("model_type", "")
    try:
        module = import_module(f"transformers.models.{kind}.modeling_{kind}")
    except ModuleNotFoundError:
        return []
    return [Replacement(module, name, lambda old: old) for name, value in vars(module).items() if callable(value)]


def _sums(question: Question) -> dict[Any, Stand]:
    """Products that sum into an fp32 tensor: CUDA's own, without a copy."""

    def into(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return kwargs["out"]

    return {aten.addmm.dtype_out: into}


PATCHES = [
    Patch(
        "Triton launches",
        "Triton compiles for a GPU; a kernel writes into what its wrapper allocated",
        "triton/runtime/jit.py: JITFunction.run",
        applies=_used,
        replaces=_launches,
    ),
    Patch(
        "Liger's devices",
        "Liger asks for the device, its capability and its processors",
        "liger_kernel/ops/fused_linear_cross_entropy.py",
        applies=_used,
        replaces=_devices,
        stands=_sums,
    ),
    Patch(
        "Liger's modules",
        "Liger replaces functions of Transformers for all models; they are put back",
        "liger_kernel/transformers/monkey_patch.py",
        applies=_used,
        replaces=_modules,
    ),
]
