"""Code that says "cuda", on a machine without: its tensors are made where the trace lives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _Redirect(TorchFunctionMode):
    """Every device that is named becomes the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {key: _here(value) if key == "device" else value for key, value in (kwargs or {}).items()}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.to:
            args = (args[0], *map(_here, args[1:]))
        return func(*args, **kwargs)


def _here(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("cuda"):
        return torch.device("cpu")
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == "cuda" else value


@contextmanager
def on_the_cpu() -> Iterator[None]:
    """`cuda` means the CPU inside."""
    to = torch.nn.Module.to
    stands: list[tuple[Any, str, Any]] = [
        (torch.nn.Module, "cuda", lambda self, device=None: self),
        (torch.nn.Module, "to", lambda self, *args, **kwargs: to(
            self, *map(_here, args), **{key: _here(value) for key, value in kwargs.items()})),
        (torch.cuda, "is_available", lambda: True),
        (torch.cuda, "current_device", lambda: 0),
        (torch.cuda, "synchronize", lambda device=None: None),
        (torch.cuda, "empty_cache", lambda: None),
        (torch.cuda, "set_device", lambda device: None),
        (torch.cuda, "is_bf16_supported", lambda including_emulation=True: True),
    ]  # fmt: skip
    started = torch.autocast.__init__

    def autocast(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        started(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    stands.append((torch.autocast, "__init__", autocast))
    with ExitStack() as undo:
        for owner, name, stand in stands:
            undo.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, stand)
        undo.enter_context(_Redirect())
        yield
