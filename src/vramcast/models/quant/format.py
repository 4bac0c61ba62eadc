"""How a weight is packed: the tensors that stand in its place, each as a grid of units of so many bytes.

A weight of `outputs × inputs` (what `nn.Linear` stores) becomes a few tensors. Each is a grid: a unit covers `rows`
outputs and `columns` inputs, and the last unit of a row or a column is padded. So one line describes a packed weight,
a scale for a group, a scale for a block and a scale for the whole tensor.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from vramcast.num import Size, shard, total

Holder: TypeAlias = Literal["checkpoint", "transformers", "vllm", "sglang"]
"""who holds the weights: the files, or a program that has loaded them"""
ENGINES: tuple[Holder, ...] = ("vllm", "sglang")
EVERYONE: tuple[Holder, ...] = ("checkpoint", "transformers", "vllm", "sglang")
WHOLE = 0
"""rows or columns of a unit that covers the whole dimension"""


class Part(Struct, frozen=True):
    """One of the tensors: `bytes` for each unit of `rows` outputs × `columns` inputs."""

    name: str
    rows: int
    columns: int
    bytes: int
    flat: bool = False
    """the matrix is taken as one row of elements, so that a unit can cross the end of a row"""
    holders: tuple[Holder, ...] = EVERYONE
    uncut: bool = False
    """every rank holds the groups of all inputs, also where it has only some of the inputs"""

    def size(self, outputs: Size, inputs: Size) -> Size:
        """Bytes for a weight of `outputs × inputs`."""
        if self.flat:
            return shard(outputs * inputs, self.columns) * self.bytes
        return _units(outputs, self.rows) * _units(inputs, self.columns) * self.bytes


def _units(size: Size, span: int) -> Size:
    return 1 if span == WHOLE else shard(size, span)


class Format(Struct, frozen=True):
    """A way of packing a matrix. `name` says what, `source` where the layout of its tensors is written."""

    name: str
    grid: tuple[Part, ...]
    source: str
    group: int = 0
    """inputs that share a scale and must divide the inputs of a layer; 0 if any number will do"""
    outputs: int = 1
    """a layer whose outputs are no multiple of it is left as it is"""

    def parts(
        self,
        outputs: Size,
        inputs: Size,
        count: Size = 1,
        holder: Holder = "checkpoint",
        all_inputs: Size | None = None,
    ) -> dict[str, Size]:
        """Bytes of each tensor for `count` weights of `outputs × inputs`; `all_inputs`: of all ranks."""
        found: dict[str, Size] = {}
        for part in self.grid:
            if holder in part.holders:
                columns = all_inputs if part.uncut and all_inputs is not None else inputs
                found[part.name] = found.get(part.name, 0) + count * part.size(outputs, columns)
        return found

    def size(self, outputs: Size, inputs: Size, count: Size = 1, holder: Holder = "checkpoint") -> Size:
        """Bytes of all tensors."""
        return total(self.parts(outputs, inputs, count, holder).values())


def plain(name: str, element_bytes: int, source: str) -> Format:
    """Not packed: every element by itself, in another dtype than the model's."""
    return Format(name, (Part("packed", 1, 1, element_bytes),), source)
