"""The tracker: births and deaths of every storage, in true order, with what was running when they happened.

A dispatch mode below autograd sees each operator after its outputs exist. A storage that is new is a birth; a weak
reference to it calls back at its death, which is when PyTorch's reference count reaches zero.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from vramcast.models.layout import module_of
from vramcast.trace.child.fast import CPU, DEVICE, Fast
from vramcast.trace.recording import EMPTY_CACHE, NO_BLOCK, Mark, Purpose, Recording, Storage

aten = torch.ops.aten
Temporary = Callable[[tuple[Any, ...], dict[str, Any], Any], Iterable[int]]
"""(args, kwargs, result of an operator) -> bytes that its CUDA kernel takes and gives back"""
Stand = Callable[["Tracker", Any, tuple[Any, ...], dict[str, Any]], Any]
"""What an operator answers on data that does not exist"""
_COPIES = {aten._to_copy.default, aten.to.dtype}
_SHORT = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int64: "int64",
          torch.uint8: "uint8", torch.int8: "int8", torch.bool: "bool", torch.int32: "int32"}  # fmt: skip


class Live:
    """A storage while it is known; its fields become a `Storage` in the end."""

    __slots__ = ("block", "bytes", "module", "op", "purpose", "reference", "shape")

    def __init__(self, bytes_: int, purpose: Purpose, op: int, module: int, shape: int, block: int) -> None:
        self.bytes = bytes_
        self.purpose: Purpose = purpose
        self.op = op
        self.module = module
        self.shape = shape
        self.block = block
        self.reference: weakref.ref[torch.UntypedStorage] | None = None


class Tracker(TorchDispatchMode):
    """Records while it is entered; `stands` and `temporaries` come from the table of patches."""

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()
        self.fast = Fast(mode)
        self.stands: dict[Any, Stand] = {}
        self.temporaries: dict[Any, Temporary] = {}
        self.events: list[int] = []
        self.storages: list[Live] = []
        self.marks: list[Mark] = []
        self.modules: list[str] = []
        """the modules that are running, outermost first"""
        self.block = NO_BLOCK
        self.assumed: dict[str, None] = {}
        self._names: dict[str, int] = {}
        self._known: dict[int, int] = {}
        """address of a storage -> its index"""
        self._ops: dict[Any, int] = {}
        self._paused = 0
        self.condition = False
        """what a condition on data is answered"""
        self.cuda = False
        """whether a function runs that is told that its tensors are on CUDA: what it makes is on the CPU"""

    # --- instants -------------------------------------------------------------------------------------------------

    def mark(self, phase: str, instant: str, when: str, block: int = NO_BLOCK) -> None:
        """From now on the step is at this instant."""
        self.block = block
        self.marks.append(Mark(len(self.events), phase, instant, when, block))  # type: ignore[arg-type]

    @property
    def phase(self) -> str:
        return self.marks[-1].phase if self.marks else ""

    def enter_block(self, block: int) -> None:
        """The same instant goes on in another block."""
        last = self.marks[-1]
        self.mark(last.phase, last.instant, last.when, block)

    def empty_cache(self) -> None:
        self.events.append(EMPTY_CACHE)

    # --- storages -------------------------------------------------------------------------------------------------

    def track(self, tensor: torch.Tensor, op: str, purpose: Purpose = "activation", module: str | None = None) -> None:
        """Know a tensor's storage: a birth if it is new, else its purpose."""
        index = self._see(tensor, self._name(op), purpose, module)
        if index is not None and purpose != "activation":
            self.storages[index].purpose = purpose

    def relabel(self, tensor: torch.Tensor, purpose: Purpose, module: str | None = None) -> None:
        """Say what a storage turned out to be for, and whose it is."""
        index = self._index(tensor)
        if index is not None:
            self.storages[index].purpose = purpose
            if module is not None:
                self.storages[index].module = self._name(module)

    def hidden_states(self, tensor: torch.Tensor, block: int) -> None:
        """Say that a storage is the input of a block, or of the head."""
        index = self._index(tensor)
        if index is not None:
            self.storages[index].block, self.storages[index].purpose = block, "hidden"

    def inputs_since(self, first: int) -> None:
        """Say that what was made from this storage on is input of all blocks: positions, rope tables, masks."""
        names = list(self._names)
        for live in self.storages[first:]:
            if live.purpose == "activation":
                live.purpose = "tower" if module_of(names[live.module]) == "vision" else "input"

    def purpose_of(self, tensor: torch.Tensor) -> Purpose | None:
        index = self._index(tensor)
        return None if index is None else self.storages[index].purpose

    def workspace(self, size: int, op: str) -> None:
        """Memory that a library takes and keeps."""
        self._born(size, "workspace", self._name(op), self._name(""), self._name(""))

    @contextmanager
    def hidden(self, sizes: Iterable[int], op: int):
        """Memory that a kernel holds while it runs."""
        taken = [self._born(size, "activation", op, self._module(), self._name("inside the kernel"))
                 for size in sizes if size]  # fmt: skip
        yield
        for index in taken:
            self.events.append(2 * index + 1)

    @contextmanager
    def paused(self):
        """Nothing that happens inside is memory of the job."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    def _index(self, tensor: torch.Tensor) -> int | None:
        storage = tensor.untyped_storage()
        index = self._known.get(storage._cdata)
        if index is None:
            return None
        reference = self.storages[index].reference
        return index if reference is not None and reference() is storage else None

    def _see(self, tensor: torch.Tensor, op: int, purpose: Purpose, module: str | None = None) -> int | None:
        storage = tensor.untyped_storage()
        address = storage._cdata
        index = self._known.get(address)
        if index is not None:
            reference = self.storages[index].reference
            if reference is not None and reference() is storage:
                return index
        if self._paused or tensor.device.type == "meta":
            return None
        shape = self._name(_shape(tensor))
        place = self._module() if module is None else self._name(module)
        index = self._born(storage.nbytes(), purpose, op, place, shape)
        self.storages[index].reference = weakref.ref(storage, lambda _, index=index: self._died(index))
        self._known[address] = index
        return index

    def _born(self, size: int, purpose: Purpose, op: int, module: int, shape: int) -> int:
        index = len(self.storages)
        self.storages.append(Live(size, purpose, op, module, shape, self.block))
        self.events.append(2 * index)
        return index

    def _died(self, index: int) -> None:
        self.events.append(2 * index + 1)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """A storage that got another size in place: a new block comes, the old one goes."""
        old = self._known.get(storage._cdata)
        if old is None:
            return
        live = self.storages[old]
        if live.reference is None or live.reference() is not storage or live.bytes == storage.nbytes():
            return
        live.reference = None
        index = self._born(storage.nbytes(), live.purpose, live.op, live.module, live.shape)
        self._died(old)  # CUDA takes the new memory first, to copy
        self.storages[index].reference = weakref.ref(storage, lambda _, index=index: self._died(index))
        self._known[storage._cdata] = index

    # --- names ----------------------------------------------------------------------------------------------------

    def _name(self, text: str) -> int:
        return self._names.setdefault(text, len(self._names))

    def _module(self) -> int:
        return self._name(self.modules[-1] if self.modules else "")

    # --- operators ------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is DEVICE:
            return args[0].fake_device if isinstance(args[0], FakeTensor) else func(*args)
        kwargs = kwargs or {}
        if self.cuda:
            return self._below_cuda(func, types, args, kwargs)
        stand = self.stands.get(func)
        if stand is not None:
            answer = stand(self, func, args, kwargs)
            if answer is not NotImplemented:
                return answer
        op = self._ops.get(func)
        if op is None:
            op = self._ops[func] = self._name(str(func))
        out = self.fast(func, args, kwargs)
        if out is NotImplemented:
            out = func(*args, **kwargs)
        before = len(self.storages)
        if isinstance(out, torch.Tensor):
            index = self._see(out, op, "activation")
            if index == before and func in _COPIES and self.purpose_of(args[0]) in ("weight", "adapter"):
                self.storages[before].purpose = "cast"
        elif isinstance(out, (tuple, list)):
            for one in out:
                if isinstance(one, torch.Tensor):
                    self._see(one, op, "activation")
        temporary = self.temporaries.get(func)
        if temporary is not None and not self._paused:
            with self.hidden(temporary(args, kwargs, out), op):
                pass
        return out

    def _below_cuda(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.condition = False
        """what a condition on data is answered"""
        self.cuda = False
        try:
            here = kwargs | {"device": CPU} if "device" in kwargs else kwargs
            return self.__torch_dispatch__(func, types, args, here)
        finally:
            self.cuda = True

    def recording(self, versions: dict[str, str], patches: list[str]) -> Recording:
        """What was recorded."""
        return Recording(
            versions=versions,
            patches=patches,
            names=list(self._names),
            storages=[Storage(s.bytes, s.purpose, s.op, s.module, s.shape, s.block) for s in self.storages],
            events=list(self.events),  # a copy: what dies after this is not the step's
            marks=self.marks,
            assumed=list(self.assumed),
        )


def _shape(tensor: torch.Tensor) -> str:
    sizes = "×".join(map(str, tensor.shape)) or "1"
    return f"{sizes} {_SHORT.get(tensor.dtype) or str(tensor.dtype).removeprefix('torch.')}"
