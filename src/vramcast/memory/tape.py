"""The tape: births and deaths of tensors, in the order of PyTorch's eager mode and its autograd engine.

A model block is a program of operators (`models/`). Run on a tape, each operator allocates what the CUDA kernel
allocates, keeps what autograd saves, and leaves a node whose backward does the same for gradients. Deaths follow from
reference counts as in Python, so `born` and `dies` of every row are derived, never typed in. Sizes may be ints, named
ints or arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from vramcast.catalog.dtypes import BYTES
from vramcast.memory.lifetimes import Life, Lifetimes
from vramcast.models.measured import NEVER
from vramcast.num import Size, let, total

Kind: TypeAlias = Literal["activation", "gradient", "cast", "logits"]
"""activation; gradient of a parameter; low-precision copy of a weight (autocast); logits and what the loss makes of
them"""


class Storage:
    """Memory of one tensor: alive while `holds` is above zero."""

    __slots__ = ("holds", "kind", "name", "size")

    def __init__(self, name: str, size: Size, kind: Kind) -> None:
        self.name = name
        self.size = size
        self.kind = kind
        self.holds = 1


class Tensor:
    """`rows * width` elements of a dtype in a storage, and their place in the graph."""

    __slots__ = ("dtype", "gradient", "is_parameter", "requires_grad", "rows", "storage", "width")

    def __init__(
        self, rows: Size, width: Size, dtype: str, storage: Storage | None, requires_grad: bool = False
    ) -> None:
        self.rows = rows
        self.width = width
        self.dtype = dtype
        self.storage = storage
        self.requires_grad = requires_grad
        self.is_parameter = False
        self.gradient: Tensor | None = None


Backward: TypeAlias = Callable[[Tensor], Sequence["Tensor | None"]]


class Node:
    """One autograd node: the gradient of `out` becomes the gradients of `inputs`. What is `saved` dies with it, if it
    was `kept` at all.

    `step` is the step of the tape at which `out` was allocated.
    """

    __slots__ = ("backward", "inputs", "kept", "out", "saved", "step")

    def __init__(
        self, out: Tensor, inputs: Sequence[Tensor], saved: Sequence[Tensor], backward: Backward, step: int, kept: bool
    ) -> None:
        self.out = out
        self.inputs = inputs
        self.saved = saved
        self.backward = backward
        self.step = step
        self.kept = kept

    @property
    def asks_for_saved(self) -> bool:
        """Its backward reads what autograd saved, weights among it: a checkpoint's hooks see them all.

        Source: torch/csrc/autograd/saved_variable.cpp; torch/utils/checkpoint.py, _checkpoint_hook.
        """
        return bool(self.saved)


class Tape:
    """Runs operators on sizes. `records` is autograd's grad mode; `accumulates` says gradients already exist."""

    def __init__(self, *, records: bool, accumulates: bool = False, reuses_gradients: bool = True) -> None:
        self.records = records
        self.accumulates = accumulates
        self.reuses_gradients = reuses_gradients
        """The engine adds in place into a gradient it alone holds (torch/csrc/autograd/input_buffer.cpp); fake tensors
        do not, so a comparison with a fake trace turns it off."""
        self.checkpointed = False
        """a checkpoint's hooks take what nodes save, and keep nothing"""
        self.steps: list[tuple[int, Storage]] = []
        self.nodes: list[Node] = []
        self.module = ""
        self.cached_casts: list[Tensor] = []

    # --- memory -------------------------------------------------------------------------------------------------------

    def empty(self, name: str, rows: Size, width: Size, dtype: str, kind: Kind = "activation") -> Tensor:
        """Allocate: the caller holds the tensor until it drops it."""
        storage = Storage(
            f"{self.module}.{name}" if self.module else name, let(name, rows * width * BYTES[dtype]), kind
        )
        self.steps.append((1, storage))
        return Tensor(rows, width, dtype, storage)

    def like(self, x: Tensor, name: str, dtype: str = "", kind: Kind = "activation") -> Tensor:
        """`empty_like`, in another dtype if given."""
        return self.empty(name, x.rows, x.width, dtype or x.dtype, kind)

    def parameter(self, rows: Size, width: Size, dtype: str, trains: bool) -> Tensor:
        """A weight: its own memory is counted by the weights term, its gradient here."""
        tensor = Tensor(rows, width, dtype, None, trains)
        tensor.is_parameter = True
        return tensor

    def hold(self, tensor: Tensor) -> Tensor:
        if tensor.storage is not None:
            tensor.storage.holds += 1
        return tensor

    def drop(self, *tensors: Tensor) -> None:
        """The end of a variable's life; memory goes when nothing else holds it."""
        for tensor in tensors:
            if tensor.storage is None:
                continue
            tensor.storage.holds -= 1
            if tensor.storage.holds == 0:
                self.steps.append((-1, tensor.storage))

    def end_autocast(self) -> None:
        """Leaving the outermost autocast region empties its cache of weight copies."""
        self.drop(*self.cached_casts)
        self.cached_casts.clear()

    def view(self, tensor: Tensor) -> Tensor:
        """The same memory as another tensor object (a reshape, a shared gradient)."""
        self.hold(tensor)
        return Tensor(tensor.rows, tensor.width, tensor.dtype, tensor.storage, tensor.requires_grad)

    # --- autograd -----------------------------------------------------------------------------------------------------

    def node(self, out: Tensor, inputs: Sequence[Tensor], saved: Sequence[Tensor], backward: Backward) -> Tensor:
        """Register the backward of an operator, if autograd would."""
        if self.records and any(tensor.requires_grad for tensor in inputs):
            out.requires_grad = True
            kept = not self.checkpointed
            self.nodes.append(Node(out, inputs, saved, backward, len(self.steps) - 1, kept))
            if kept:
                for tensor in saved:
                    self.hold(tensor)
        return out

    def backward(self, out: Tensor, gradient: Tensor) -> None:
        """Run the nodes in reverse order of creation, as the engine does on one stream."""
        out.gradient = gradient
        while self.nodes:
            node = self.nodes.pop()
            if node.out.gradient is not None:
                gradients = node.backward(node.out.gradient)
                self.drop(node.out.gradient)
                node.out.gradient = None
            else:
                gradients = [None] * len(node.inputs)
            if node.kept:
                self.drop(*node.saved)
            for tensor, grad in zip(node.inputs, gradients, strict=True):
                if grad is not None:
                    self._accumulate(tensor, grad)

    def _accumulate(self, tensor: Tensor, gradient: Tensor) -> None:
        if tensor.is_parameter and self.accumulates:
            self.drop(gradient)  # added in place into the gradient that is already there
        elif tensor.gradient is None:
            tensor.gradient = gradient
        else:
            self._add_gradients(tensor, tensor.gradient, gradient)

    def _add_gradients(self, tensor: Tensor, first: Tensor, second: Tensor) -> None:
        alone = first.storage is not None and first.storage.holds == 1
        if not (alone and self.reuses_gradients):
            tensor.gradient = self.like(tensor, "gradient sum", first.dtype)
            self.drop(first)
        self.drop(second)

    def unwind(self, start: int) -> None:
        """Forget storages born from step `start` on, as if the program had stopped there."""
        born = {id(storage) for sign, storage in self.steps[start:] if sign > 0}
        self.steps = [step for step in self.steps if id(step[1]) not in born]

    # --- what a span of the tape needed -----------------------------------------------------------------------------

    def lifetimes(self) -> Lifetimes:
        """Every storage so far; a step is a birth or a death."""
        deaths = {id(storage): step for step, (sign, storage) in enumerate(self.steps) if sign < 0}
        return Lifetimes(
            Life(storage.name, storage.kind, storage.size, step, deaths.get(id(storage), NEVER))
            for step, (sign, storage) in enumerate(self.steps)
            if sign > 0
        )

    def alive(self, kind: Kind | None = None, since: int = 0) -> Size:
        """Bytes born after step `since` that are still alive."""
        return total(storage.size for storage in self.living(since) if kind in (None, storage.kind))

    def living(self, since: int = 0) -> list[Storage]:
        """Storages born after step `since` and still alive, in order of birth."""
        return [storage for sign, storage in self.steps[since:] if sign > 0 and storage.holds > 0]

    def size(self, tensor: Tensor) -> Size:
        """Bytes of the tensor's storage, alive or not."""
        return tensor.storage.size if tensor.storage is not None else 0

    def peak(self, since: int = 0, start: int = 0, end: int | None = None) -> Size:
        """Most alive at any step from `start` on (and before `end`), of storages born from step `since` on."""
        return self.lifetimes().peak(start, end, since=since)
