"""Measured rows: the births and deaths of the tensors of a block and of a model's two ends, as a trace saw them, with
bytes as functions of a job's sizes. They stand where a program would: see `memory/measured.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

from msgspec import Struct

from vramcast.models.extents import Sizes, extent
from vramcast.num import Size, total

NEVER = -1
"""the step of a death that its part does not see"""
Kind: TypeAlias = Literal["input", "output", "batch", "activation", "cast", "gradient"]
"""`input` and `output` are the hidden states before and behind, `batch` what all blocks are given (ids, masks, tables),
`cast` a weight in another dtype, `gradient` a parameter's"""


class Tensor(Struct, frozen=True, array_like=True):
    """A measured tensor. Steps count the births and deaths of its part."""

    born: int
    dies: int
    kind: Kind
    bytes: tuple[tuple[int, str], ...]
    """(coefficient, name of an extent): their products are summed"""
    operator: str
    """what made it: `aten.mm.default`"""
    module: str
    """where, below the block: `mlp.down_proj`"""

    def size(self, sizes: Sizes) -> Size:
        found = [(count, extent(name)) for count, name in self.bytes]
        return total(count * grows(sizes) for count, grows in found if grows is not None)


class Part(Struct, frozen=True):
    """A stretch of the step: its tensors in order of birth, and the steps at which its borders are."""

    borders: tuple[int, ...]
    tensors: tuple[Tensor, ...]


class Layers(Struct, frozen=True):
    """Equal blocks; the first of the model is not counted."""

    count: int
    part: Part


class Parts(Struct, frozen=True, kw_only=True):
    """One micro-batch. Borders of a block: its forward begins, the forward is over, its backward begins, what backward
    is given is there."""

    front: Part
    """borders: a middle block's forward begins, its backward, the first block's backward, the micro-batch is over"""
    first: Part
    """the first block"""
    layers: tuple[Layers, ...]
    """the others, the last one's kind first"""
    tail: Part
    """final norm, head and loss; borders: what comes out of the blocks is there, the loss begins, autocast lets go of
    the blocks' weights, backward begins"""
    embedding: Part
    """its backward"""


class Measured(Struct, frozen=True, kw_only=True):
    """What was measured under some modes. Where one sequence is run in another way than several, there are two."""

    modes: dict[str, str]
    """path → value, of all that decides what is allocated"""
    shortest: int
    longest: int
    """tokens of a sequence, the least and the most that were run"""
    fewest: int
    most: int
    """sequences; 0: any number"""
    fresh: Parts
    """a micro-batch whose gradients are the first"""
    adding: Parts
    """one whose gradients are added to those that are there"""

    def has(self, sequences: int) -> bool:
        """Whether so many sequences are run in this way."""
        return sequences >= self.fewest and (not self.most or sequences <= self.most)


class Measurement(Struct, frozen=True, kw_only=True):
    """All that was measured of a model, and with what."""

    framework: str
    """the job's, whose loss was run: `trl==1.16.0`"""
    source: dict[str, str]
    """versions of what was traced"""
    assumed: tuple[str, ...] = ()
    """what the trace took for granted about data"""
    variants: tuple[Measured, ...]


def parts_of(measured: Measured) -> Iterator[tuple[str, Part]]:
    """(place, part) of everything that was measured."""
    for name, parts in (("fresh", measured.fresh), ("adding", measured.adding)):
        for place in ("front", "first", "tail", "embedding"):
            yield f"{name}.{place}", getattr(parts, place)
        for number, layers in enumerate(parts.layers):
            yield f"{name}.layers[{number}]", layers.part
