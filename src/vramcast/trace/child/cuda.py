"""Code that says "cuda", on a machine without: its tensors are made where the trace lives."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from vramcast.trace.child.tracker import Tracker
from vramcast.trace.question import OwnStep


class _Redirect(TorchFunctionMode):
    """Every device that is named becomes the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("device") is not None:
            kwargs = kwargs | {"device": _here(kwargs["device"])}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.to:
            args = (args[0], *map(_here, args[1:]))
        return func(*args, **kwargs)


def _here(value: Any) -> Any:
    """A device, by name, number or itself; other values are left as they are."""
    if isinstance(value, int) and not isinstance(value, bool):
        return torch.device("cpu")
    if isinstance(value, str) and value.startswith("cuda"):
        return torch.device("cpu")
    known: Any = value
    return torch.device("cpu") if isinstance(value, torch.device) and known.type == "cuda" else value


class _Event:
    """A moment on a stream: no time passes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        pass

    def wait(self, stream: Any = None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        return 0.0


@contextmanager
def on_the_cpu(question: OwnStep, tracker: Tracker) -> Generator[None]:
    """`cuda` means the CPU inside."""
    with ExitStack() as undo:
        for owner, name, stand in [*_modules(), *_card(question, tracker), *_autocast(), *_compiler(tracker)]:
            undo.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, stand)
        undo.enter_context(_Redirect())
        yield


def _apply(self: Any, fn: Any, recurse: bool = True) -> Any:
    """Module._apply as it is for real tensors: parameters stay the objects that they are and get other data."""
    for child in self.children() if recurse else ():
        child._apply(fn)
    for name, old in self._parameters.items():
        if old is None:
            continue
        with torch.no_grad():
            new = fn(old)
            grad = None if old.grad is None else fn(old.grad)
        if new.device == old.device:
            old.data = new
        else:  # from the meta device
            self._parameters[name] = old = torch.nn.Parameter(new, old.requires_grad)
        if grad is not None:
            old.grad = grad
    for name, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[name] = fn(buffer)
    return self


def _modules() -> list[tuple[Any, str, Any]]:
    to = torch.nn.Module.to

    def moved(self: Any, *args: Any, **kwargs: Any) -> Any:
        return to(self, *map(_here, args), **{key: _here(value) for key, value in kwargs.items()})

    return [
        (torch.nn.Module, "cuda", lambda self, device=None: self),
        (torch.nn.Module, "to", moved),
        (torch.nn.Module, "_apply", _apply),
        (FakeTensor, "__deepcopy__", _deepcopy),
    ]


def _deepcopy(self: Any, memo: dict[int, Any]) -> Any:
    """A copy of a parameter is one, and whatever class of fakes it has."""
    if id(self) not in memo:
        new = self.detach().clone()
        copied = torch.nn.Parameter(new) if isinstance(self, torch.nn.Parameter) else new
        memo[id(self)] = copied.requires_grad_(self.requires_grad)
    return memo[id(self)]


def _card(question: OwnStep, tracker: Tracker) -> list[tuple[Any, str, Any]]:
    """What `torch.cuda` says. Its counters are zero: a step that reads them learns nothing here."""
    major, _, minor = (question.capability or "8.0").partition(".")
    capability = (int(major), int(minor))
    properties = SimpleNamespace(
        name="traced", major=capability[0], minor=capability[1], total_memory=question.total_bytes,
    )  # fmt: skip
    nothing = ("init", "synchronize", "set_device", "manual_seed", "manual_seed_all", "reset_peak_memory_stats",
               "reset_max_memory_allocated", "reset_accumulated_memory_stats", "ipc_collect")  # fmt: skip
    counters = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
    return [
        *((torch.cuda, name, lambda *args, **kwargs: None) for name in nothing),
        *((torch.cuda, name, lambda device=None: 0) for name in counters),
        (torch.cuda, "is_available", lambda: True),
        (torch.cuda, "device_count", lambda: 1),
        (torch.cuda, "current_device", lambda: 0),
        (torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or capability >= (8, 0)),
        (torch.cuda, "get_device_name", lambda device=None: properties.name),
        (torch.cuda, "get_device_capability", lambda device=None: capability),
        (torch.cuda, "get_device_properties", lambda device=None: properties),
        (torch.cuda, "empty_cache", tracker.empty_cache),
        (torch.cuda, "Event", _Event),
    ]


def _autocast() -> list[tuple[Any, str, Any]]:
    """The CPU's autocast in place of CUDA's, with the dtype that CUDA's has if none is named."""
    started, enabled, dtype_of = torch.autocast.__init__, torch.is_autocast_enabled, torch.get_autocast_dtype

    def autocast(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        started(self, device_type, dtype, *args, **kwargs)

    def is_autocast_enabled(device_type: str = "cuda") -> bool:
        return enabled("cpu" if device_type == "cuda" else device_type)

    def get_autocast_dtype(device_type: str) -> Any:
        return dtype_of("cpu" if device_type == "cuda" else device_type)

    return [
        (torch.autocast, "__init__", autocast),
        (torch, "is_autocast_enabled", is_autocast_enabled),
        (torch, "get_autocast_dtype", get_autocast_dtype),
        (torch, "get_autocast_gpu_dtype", lambda: get_autocast_dtype("cpu")),
    ]


def _compiler(tracker: Tracker) -> list[tuple[Any, str, Any]]:
    """What would be compiled runs as it is."""

    def compile(model: Any = None, **kwargs: Any) -> Any:
        tracker.assumed.setdefault("torch.compile is left out: the step runs as it is written")
        return model if model is not None else lambda function: function

    return [(torch, "compile", compile), (torch.nn.Module, "compile", lambda self, **kwargs: compile(self) and None)]
