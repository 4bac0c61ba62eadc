"""A short way through FakeTensorMode for the operators of which a step has thousands.

FakeTensorMode looks each call up in a cache whose key costs more than the answer. These operators need none of its
special cases. Those that see or change memory that exists run their meta kernels on the fakes themselves; those that
make new memory do so once for arguments of a kind, then a tensor of the same layout is made. What is recorded is the
same either way (a test runs steps both ways).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

aten = torch.ops.aten
DEVICE = torch.ops.prim.device.default
CPU, META = torch.device("cpu"), torch.device("meta")
IN_PLACE = frozenset(
    {
        aten.view.default, aten._unsafe_view.default, aten.detach.default, aten.t.default, aten.transpose.int,
        aten.slice.Tensor, aten.unsqueeze.default, aten.squeeze.dim, aten.expand.default, aten.permute.default,
        aten.split.Tensor, aten.alias.default, aten.mul_.Tensor, aten.add_.Tensor, aten.copy_.default,
    }
)  # fmt: skip
"""see or change memory that exists"""
NEW = frozenset(
    {
        aten.clone.default, aten.mm.default, aten.addmm.default, aten.bmm.default, aten.mul.Tensor, aten.mul.Scalar,
        aten.add.Tensor, aten.sub.Tensor, aten.div.Tensor, aten.div.Scalar, aten.neg.default, aten.pow.Tensor_Scalar,
        aten.rsqrt.default, aten.mean.dim, aten.sum.dim_IntList, aten.cat.default, aten.silu.default,
        aten.silu_backward.default, aten.gelu.default, aten.gelu_backward.default, aten._softmax.default,
        aten._softmax_backward_data.default, aten.sigmoid.default, aten._to_copy.default, aten.slice_backward.default,
        aten.linalg_vector_norm.default, aten.native_dropout.default, aten.native_dropout_backward.default,
    }
)  # fmt: skip
"""make new memory, and nothing else"""


def _quick_class(mode: FakeTensorMode) -> type[FakeTensor]:
    """Fakes whose usual attributes live on the class: one mode, one device, no constant."""
    names = ("nonzero_memo", "item_memo", "unique_memo", "unique_consecutive_memo")
    memos = {f"_{name}{end}": None for name in names for end in ("", "_vc", "_epoch")}
    usual = {"fake_device": CPU, "constant": None, "real_tensor": None, "pytype": None, "dispatch_keys": None}
    return type("FakeTensor", (FakeTensor,), {"fake_mode": mode, **usual, **memos})


class Fast:
    """Answers plain operators on the fakes of one mode."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode = mode
        self.quick = _quick_class(mode)
        self.layouts: dict[Any, Any] = {}

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result, or NotImplemented where FakeTensorMode has to be asked."""
        if "device" in kwargs:
            return NotImplemented
        if func in NEW:
            key = _key(func, args, kwargs)
            if key is None:
                return NotImplemented
            layout = self.layouts.get(key)
            if layout is not None:
                return self._below(lambda: _made(layout))
            out = self._below(lambda: func(*args, **kwargs))
            self.layouts[key] = _layout(out)
            return out
        if func is aten.detach.default and type(args[0]) is FakeTensor:
            return NotImplemented  # a parameter is made of a tensor whose detach() has the same type
        if func in IN_PLACE and all(map(_is_fake, args)):
            return self._below(lambda: func(*args, **kwargs))
        return NotImplemented

    def _below(self, make: Callable[[], Any]) -> Any:
        """Run below every mode, on the meta device, and wrap what comes out."""
        mode = self.mode
        with torch._C._DisableTorchDispatch():
            mode.in_kernel_invocation = True
            with torch._C._PreserveDispatchKeyGuard():
                torch._C._set_meta_in_tls_dispatch_include(True)
                try:
                    out = make()
                finally:
                    mode.in_kernel_invocation = False
            if isinstance(out, torch.Tensor):
                return self._wrap(out)
            return type(out)(self._wrap(one) for one in out)

    def _wrap(self, out: torch.Tensor) -> torch.Tensor:
        if type(out) is not torch.Tensor:
            return out  # an argument, changed in place
        return torch.Tensor._make_subclass(self.quick, out, False, dispatch_device=True, device_for_backend_keys=CPU)


def _is_fake(value: Any) -> bool:
    """A fake, or nothing that is a tensor."""
    if isinstance(value, torch.Tensor):
        return isinstance(value, FakeTensor)
    return all(map(_is_fake, value)) if isinstance(value, (list, tuple)) else True


def _key(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What decides the layout of the result; None if an argument is no fake."""
    parts: list[Any] = [func]
    for value in args:
        if isinstance(value, FakeTensor):
            parts.append((value.shape, value.stride(), value.dtype))
        elif isinstance(value, torch.Tensor):
            return None
        elif isinstance(value, (list, tuple)):
            inner = _key(len(value), tuple(value), {})
            if inner is None:
                return None
            parts.append(inner)
        else:
            parts.append((type(value), value))
    parts.extend(kwargs.items())
    return tuple(parts)


def _layout(out: Any) -> Any:
    if isinstance(out, torch.Tensor):
        return out.shape, out.stride(), out.dtype
    return tuple(map(_layout, out))


def _made(layout: Any) -> Any:
    if isinstance(layout[0], torch.Size):
        size, stride, dtype = layout
        return torch.empty_strided(size, stride, dtype=dtype, device=META)
    return tuple(map(_made, layout))
