"""The numbers of a pass: what one block, or the two ends of a model, keep and hold at most."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from vramcast.num import Size, total, worst


class BlockPass(NamedTuple):
    """Bytes of one block."""

    saved: Size
    """kept for backward, inside the block"""
    carried: Size
    """its input, when that is kept for backward; 0 if nothing needs it"""
    casts: Size
    """low-precision weight copies alive until the forward ends"""
    saved_casts: Size
    """those that the graph keeps until the block's backward"""
    forward: Size
    """most that its forward adds to what was alive before"""
    backward: Size
    """most alive in its backward: saved tensors, input, recomputation and its gradients counted"""
    gradients: Size
    """gradients of its parameters"""
    keeps_input: bool = False
    """whether `carried` is anything: a mode"""
    tensors: tuple[Size, ...] = ()
    """the tensors that `saved` and `carried` are the sum of"""
    held: Size = 0
    """what nodes hold themselves, until the whole graph goes: not part of `saved`"""
    left: Size = 0
    """what its recomputation leaves until backward is over: shared keys and values, and the graph behind them"""
    cached: Size = 0
    """keys and values that nothing but a cache holds, until the loss is there: not part of `saved`"""
    returned: Size = 0
    """what it returns beside hidden states and backward does not keep: there while the next one runs forward"""


Value: TypeAlias = Callable[[BlockPass], Size]


class Stack(NamedTuple):
    """The layers of a model, one after another."""

    first: BlockPass
    """the one behind the embedding, which may be unlike others of its kind"""
    kinds: tuple[BlockPass, ...]
    order: tuple[int, ...]
    """layer → its kind; only the ends of it where all are of one kind"""
    between: tuple[Size, ...]
    """how many of each kind there are without the first layer and the last"""
    behind: tuple[Size, ...]
    """how many without the first"""

    @classmethod
    def of_one(cls, first: BlockPass, kind: BlockPass, layers: Size) -> Stack:
        """All layers are of one kind."""
        return cls(first, (kind,), (0,), (worst(layers - 2, 0),), (layers - 1,))

    @classmethod
    def of_many(cls, first: BlockPass, kinds: tuple[BlockPass, ...], order: tuple[int, ...]) -> Stack:
        """Layers of several kinds, in their order."""
        between, behind = ([part.count(kind) for kind in range(len(kinds))] for part in (order[1:-1], order[1:]))
        return cls(first, kinds, order, tuple(between), tuple(behind))

    @property
    def last(self) -> BlockPass:
        """The layer before the final norm."""
        return self.kinds[self.order[-1]]

    @property
    def is_mixed(self) -> bool:
        """Layers of several kinds."""
        return len(self.kinds) > 1

    def inner(self, value: Value) -> Size:
        """A value summed over the layers between the first and the last."""
        return total(count * value(kind) for count, kind in zip(self.between, self.kinds, strict=True))

    def later(self, value: Value) -> Size:
        """Over all layers but the first."""
        return total(count * value(kind) for count, kind in zip(self.behind, self.kinds, strict=True))

    def all(self, value: Value) -> Size:
        """Over all layers."""
        return value(self.first) + self.later(value)

    def most(self, value: Value) -> Size:
        """The largest over the kinds."""
        return worst(*(value(kind) for kind in self.kinds))

    def over(self, start: int, end: int, value: Value) -> Size:
        """Over the layers from `start` on, before `end`; the first is not among them."""
        counts = [self.order[max(start, 1) : end].count(kind) for kind in range(len(self.kinds))]
        return total(count * value(kind) for count, kind in zip(counts, self.kinds, strict=True))

    def places(self, *, inner: bool) -> Iterator[tuple[int, BlockPass]]:
        """(layer, its pass) of the first and the last layer of every kind; `inner`: between first and last only."""
        order = self.order[1:-1] if inner else self.order[1:]
        for kind, block in enumerate(self.kinds):
            if kind in order:
                first, last = order.index(kind), len(order) - 1 - order[::-1].index(kind)
                yield from ((place + 1, block) for place in dict.fromkeys((first, last)))


class EndPass(NamedTuple):
    """Bytes before the first block and behind the last one."""

    inputs: Size
    """ids and mask: alive until backward is over"""
    tables: Size
    """rope tables: alive until the blocks are done"""
    hidden: Size
    """one hidden state of all tokens, as the embedding gives it"""
    loss: Size
    """most alive from the head to the loss, the final norm's saved tensors counted"""
    casts: Size
    """the head's low-precision copy, part of `loss`"""
    backward: Size
    """most alive until the gradient of the hidden states is complete, gradients counted"""
    gradients: Size
    """gradients of head and final norm"""
    embedding: Size
    """most alive while the embedding's gradient is made"""
    embedding_gradient: Size
    logits: Size = 0
    """logits that the caller still holds when the gradient of the hidden states is complete"""
    leaf: Size = 0
    """what was made before the blocks and stays until backward is over, beside the first one's input"""
    mask: Size = 0
    """what eager attention adds to scores: there while blocks run forward, with checkpoints until they are done"""
    front: Size = 0
    """what was made before the blocks and is there while they run forward"""
    first_mask: Size = 0
    """of `mask`, what the first block needs"""
