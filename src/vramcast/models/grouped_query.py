"""Grouped-query attention as the classes of Transformers run it, operator by operator."""

from __future__ import annotations

from msgspec import Struct

from vramcast.models.ops import Heads, Operators, Rotation, Tensor
from vramcast.num import Size


class GroupedQuery(Struct, frozen=True):
    """The forward of `LlamaAttention` and its like: q, k, v, their norms, positions, attention, output."""

    at: str
    out: str
    heads: Heads
    fused: str = ""
    """the projection that gives all three"""
    norms: tuple[str, ...] = ()
    """of queries and keys"""
    by_head: bool = True
    """each head is normed by itself, or a whole projection"""
    norm: str = "rms"
    norm_last: bool = False
    """norms stand behind the positions"""
    partial: Size = 0
    """elements of a head that have positions, where not all do"""
    rotation: Rotation = "halves"
    scales_values: bool = False
    """a constant multiplies the values"""
    rotates: bool = True
    interleaves: bool = False
    """each layer makes tables of its own, each number twice"""
    scales: str = ""
    """the projection that a constant multiplies"""
    splits: bool = False
    """the fused projection is split by one operator, not sliced by three"""
    clips: bool = False
    """what the projections give is bounded, in its place"""
    by_row: bool = False
    """heads are turned before they are transposed: what is joined lies in rows"""

    @property
    def joined(self) -> bool:
        """Queries and keys are put together of parts of a head."""
        return not self.by_row and (bool(self.partial) or self.rotation in ("chunks", "pairs", "complex"))

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        heads = self.heads
        ops.scope(self.at)
        query, key, value = self._project(ops, x)
        if self.rotates:
            shared = ops.interleave_tables() if self.interleaves else None
            turned = self._turned(ops, query, key)
            ops.restore_tables(shared)
            ops.drop(query, key)
            query, key = turned
        if self.norm_last:
            query, key = self._normed(ops, query, 0), self._normed(ops, key, 1)
        key, value = ops.cache(key, value)
        mixed = ops.attention(query, key, value, heads, joined=self.joined)
        out = ops.linear(f"{self.at}.{self.out}", mixed)
        ops.drop(mixed, query, key, value)
        ops.release()
        return out

    def _project(self, ops: Operators, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.fused:
            return self._cut(ops, ops.linear(f"{self.at}.{self.fused}", x))
        sides: list[Tensor] = []
        for index, name in enumerate(("q_proj", "k_proj")):
            side = self._bounded(ops, ops.linear(f"{self.at}.{name}", x))
            if name == self.scales:
                plain, side = side, ops.times(side)
                ops.drop(plain)
            side = ops.by_head(side, joined=self.joined)
            sides.append(side if self.norm_last else self._normed(ops, side, index))
        value = ops.by_head(self._bounded(ops, ops.linear(f"{self.at}.v_proj", x)))
        if self.scales_values:
            plain, value = value, ops.times(value)
            ops.drop(plain)
        return sides[0], sides[1], value

    def _bounded(self, ops: Operators, x: Tensor) -> Tensor:
        return ops.bound(x) if self.clips else x

    def _turned(self, ops: Operators, query: Tensor, key: Tensor) -> tuple[Tensor, ...]:
        """Queries and keys with positions."""
        if self.partial:
            return self._partly(ops, query, key)
        if self.rotation not in ("stacked", "wide", "widened"):
            return ops.turn(query, self.rotation), ops.turn(key, self.rotation)
        given = query, key
        sides = [ops.cast(x, "fp32") if self.rotation == "stacked" else x for x in given]
        wide = [ops.rope(x, widens=self.rotation == "widened") for x in sides]
        turned = tuple(ops.cast(x, before.dtype) for x, before in zip(wide, given, strict=True))
        ops.drop(*wide, *(sides if self.rotation == "stacked" else ()))
        return turned

    def _cut(self, ops: Operators, fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Slices of one projection."""
        heads = self.heads
        widths = (heads.count * heads.width, heads.keys * heads.width, heads.keys * heads.values)
        sides = ops.split(fused, *widths) if self.splits else ops.slices(fused, *widths)
        ops.drop(fused)
        if heads.scores == "baddbmm":  # each head's three parts lie side by side: a gradient is of the whole as it is
            return sides[0], sides[1], sides[2]
        query, key, value = (ops.by_head(x, joined=self.joined) for x in sides)
        return query, key, value

    def _partly(self, ops: Operators, query: Tensor, key: Tensor) -> tuple[Tensor, ...]:
        """Positions of a part of every head, which is joined to the rest again."""
        rest = self.heads.width - self.partial
        counts = (self.heads.count, self.heads.keys)
        sides = [ops.slices(x, n * self.partial, n * rest) for x, n in zip((query, key), counts, strict=True)]
        turned = [ops.rope(turning) for turning, _ in sides]
        whole: list[Tensor] = []
        for part, (_, passed) in zip(turned, sides, strict=True):
            whole.append(ops.join(part, passed))
            ops.drop(part)
        ops.drop(*(view for side in sides for view in side))
        return tuple(whole)

    def _normed(self, ops: Operators, x: Tensor, index: int) -> Tensor:
        if not self.norms:
            return x
        name = f"{self.at}.{self.norms[index]}"
        rows = ops.split_heads(x, self.heads.width) if self.by_head else x
        normed = ops.norm(self.norm, name, rows)
        ops.scope(self.at)
        ops.drop(x)
        if not self.by_head:
            return normed
        merged = ops.merge_heads(normed, x.width)
        ops.drop(rows, normed)
        return merged
