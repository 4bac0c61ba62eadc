"""A linear layer by its widths, and the heads of the small model."""

from __future__ import annotations

from vramcast.memory.head import Model
from vramcast.memory.tape import Tensor
from vramcast.models.ops import Heads
from vramcast.models.parts import linear

GQA, MHA = Heads(4, 2, 16, 16), Heads(4, 4, 16, 16)


def product(ops: Model, name: str, x: Tensor, inputs: int, outputs: int, *, bias: bool) -> Tensor:
    """`ops.linear` of a block that has this layer only."""
    ops.weights = {weight.name: weight for weight in linear(name, inputs, outputs, bias)}
    return ops.linear(name, x)
