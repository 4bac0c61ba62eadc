"""bitsandbytes on fake tensors: its own CUDA backend, without the kernels.

Every operator of the backend is a Python function that makes its tensors with PyTorch and hands their addresses to a
compiled kernel. Those functions answer here; a kernel does nothing. So an installed version allocates what it allocates
on a card, and chooses between its kernels as it does there.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec, module_from_spec
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from vramcast.trace.child.patches.patch import Patch, Replacement
from vramcast.trace.child.tracker import Stand, Tracker
from vramcast.trace.question import Question

_PROCESSORS = {
    "6.0": 56, "7.0": 80, "7.5": 40, "8.0": 108, "8.6": 84, "8.9": 128, "9.0": 132, "10.0": 148, "10.3": 148,
    "11.0": 20, "12.0": 170, "12.1": 48,
}  # fmt: skip
"""compute capability -> multiprocessors of a usual card (P100, V100, T4, A100, RTX 3090 Ti, RTX 4090, H100, B200, B300,
Thor, RTX 5090, GB10): with the shape they decide whether a product of 5 to 1536 rows runs in a fused kernel"""


def _is_packed(question: Question) -> bool:
    return question.packed is not None


# --- the backend ------------------------------------------------------------------------------------------------------


def _always(answer: Any) -> Callable[..., Any]:
    """A function of anything. Each is one of its own: types are written onto those of a library."""

    def give(*args: Any, **kwargs: Any) -> Any:
        return answer

    return give


_zero = _always(0)


class _NoKernels:
    """Stands where the compiled library is: each function takes what it gets and reports no error."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return _always(0)


class _NoContext:
    """Stands where cuBLAS's contexts of bitsandbytes are: they hold none of PyTorch's memory."""

    @classmethod
    def get_instance(cls) -> _NoContext:
        return cls()

    def get_context(self, device: Any) -> None:
        return None


@contextmanager
def _set(owner: Any, **values: Any) -> Generator[None]:
    """Attributes of a module, as long as the block runs."""
    old = {name: getattr(owner, name) for name in values if hasattr(owner, name)}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name in values:
            if name in old:
                setattr(owner, name, old[name])
            else:
                delattr(owner, name)


def _functions(backend: str, capability: str) -> dict[str, Callable[..., Any]]:
    """Operator -> its function in a backend: the module is run once more, with nothing compiled behind it."""
    from bitsandbytes import _ops, cextension

    found: dict[str, Callable[..., Any]] = {}

    def collect(operator: str, device: Any = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def keep(function: Callable[..., Any]) -> Callable[..., Any]:
            found[operator] = function
            return function

        return keep

    spec = find_spec(f"bitsandbytes.backends.{backend}.ops")
    if spec is None or spec.loader is None:
        raise ImportError(f"bitsandbytes has no backend {backend}")
    module = module_from_spec(spec)
    with (
        _set(_ops, register_kernel=collect),
        _set(cextension, lib=_NoKernels()),
        _set(torch._C, _cuda_getCurrentRawStream=_zero),
    ):
        spec.loader.exec_module(module)
    major, _, minor = capability.partition(".")
    card = _PROCESSORS.get(capability, _PROCESSORS["9.0"]), int(major or 9), int(minor or 0)
    vars(module).update(
        CUBLAS_Context=_NoContext,
        get_ptr=_zero,
        is_on_gpu=_always(True),
        _get_tensor_stream=_zero,
        _cuda_device_of=_always(nullcontext()),
        _gpu_dispatch_props=_always(card),
    )
    return found


def _kernels(question: Question) -> dict[Any, Stand]:
    """Every operator answers as CUDA's backend does, or as the one for all devices where that has none."""
    functions = _functions("default", question.capability) | _functions("cuda", question.capability)
    stands: dict[Any, Stand] = {}
    for operator, function in functions.items():
        space, _, name = operator.partition("::")
        name, _, overload = name.partition(".")
        stands[getattr(getattr(getattr(torch.ops, space), name), overload or "default")] = _stand(function)
    return stands


def _stand(function: Callable[..., Any]) -> Stand:
    def stand(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        usual = dict(tracker.stands)
        tracker.stands |= dict.fromkeys(_CONDITIONS, _no_outliers)
        try:
            with _callers_autocast(), tracker:
                return function(*args, **kwargs)
        finally:
            tracker.stands = usual

    return stand


@contextmanager
def _callers_autocast() -> Generator[None]:
    """Autocast as it is where the operator was called: below a dispatch mode it is off, in a kernel's function on."""
    with torch._C._RestorePythonTLSSnapshot():
        enabled = torch.is_autocast_enabled("cpu")
    inside = torch.is_autocast_enabled("cpu")
    torch.set_autocast_enabled("cpu", enabled)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cpu", inside)


_CONDITIONS = (torch.ops.aten.is_nonzero.default, torch.ops.aten._local_scalar_dense.default)


def _no_outliers(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """All that the backend asks of values is whether an input of an 8-bit layer has outliers."""
    tracker.assumed.setdefault("no input of an 8-bit layer has outliers: they would be computed apart, in 16 bits")
    return False


# --- where it looks at the device -------------------------------------------------------------------------------------


def _on_a_card(question: Question, tracker: Tracker) -> list[Replacement]:
    import bitsandbytes
    from bitsandbytes import functional
    from bitsandbytes.autograd._functions import MatMul8bitLt, MatmulLtState
    from bitsandbytes.nn import modules

    def matmul(A: Any, B: Any, out: Any = None, state: Any = None, threshold: float = 0.0, bias: Any = None) -> Any:
        state = state or MatmulLtState()
        if threshold > 0.0:
            state.threshold = threshold
        return MatMul8bitLt.apply(A, B, out, bias, state)

    def dynamic_map(*args: Any, **kwargs: Any) -> torch.Tensor:
        return torch.empty(256)

    found = [
        Replacement(bitsandbytes, "matmul", _always(matmul)),
        Replacement(functional, "name2qmap", _always({})),
        Replacement(functional, "create_dynamic_map", _always(dynamic_map)),
    ]
    if hasattr(modules, "has_avx512bf16"):
        found.append(Replacement(modules, "has_avx512bf16", _always(_always(False))))
    return found


def _addresses(question: Question, tracker: Tracker) -> list[Replacement]:
    return [Replacement(FakeTensor, "data_ptr", _always(_zero))]


def _autocast(question: Question, tracker: Tracker) -> list[Replacement]:
    def make(old: Any) -> Any:
        def enabled(device: str = "cpu") -> bool:
            return old(device)

        return enabled

    return [Replacement(torch, "is_autocast_enabled", make)]


PATCHES = [
    Patch(
        "bitsandbytes' kernels",
        "they run on a card; the functions around them, which allocate, run as they are",
        "bitsandbytes/backends/cuda/ops.py, backends/default/ops.py",
        applies=_is_packed,
        stands=_kernels,
    ),
    Patch(
        "addresses",
        "a fake tensor has none to give to a kernel",
        "torch/_subclasses/fake_tensor.py",
        applies=_is_packed,
        replaces=_addresses,
    ),
    Patch(
        "bitsandbytes on a card",
        "it has other products for the CPU; its table of 8-bit codes is made of values",
        "bitsandbytes/autograd/_functions.py: matmul; nn/modules.py: has_avx512bf16; functional.py: quantize_blockwise",
        applies=_is_packed,
        replaces=_on_a_card,
    ),
    Patch(
        "autocast of the card",
        "PEFT's packed layers ask without a device, which means CUDA; the trace's autocast is the CPU's",
        "peft/tuners/lora/bnb.py: torch.is_autocast_enabled()",
        applies=lambda question: _is_packed(question) and question.autocast,
        replaces=_autocast,
    ),
]
