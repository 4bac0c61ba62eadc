"""The same part at several sizes: tensors matched one to one, their bytes as a function of the sizes."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from typing import NamedTuple

from vramcast.errors import Refused, refuse
from vramcast.memory.measured import sized
from vramcast.models.extents import EXTENTS, Sizes, chunks, extent
from vramcast.models.measured import Part, Tensor
from vramcast.trace.measure.loops import folded
from vramcast.trace.measure.part import Cut, Seen

Bytes = tuple[tuple[int, str], ...]

_APART = 1000
"""a peak of an end may be a thousandth off, where how often a loop runs depends on the size"""


class Fitter:
    """Parts at the same sizes, one after the other. `tile`: scored tokens in a chunk of a fused head; 0 without one."""

    def __init__(self, sizes: Sequence[Sizes], tile: int) -> None:
        self.sizes = list(sizes)
        self.values: dict[str, tuple[int, ...]] = {}
        self.known: dict[tuple[int, ...], Bytes | None] = {}
        for name in EXTENTS:
            if tile or name != "scored":
                self._learn(name)
        for name in chunks("scored", tile) if tile else ():
            self._learn(name)

    def _learn(self, name: str) -> None:
        """A function more that bytes may follow."""
        grows = extent(name)
        assert grows is not None
        self.values[name] = tuple(int(grows(one)) for one in self.sizes)

    def block(self, cuts: Sequence[Cut], what: str) -> Part:
        """A part that has the same births and deaths at every size.

        Raises:
            Refused: it has not; which operator differs.
        """
        first = cuts[0]
        for cut, sizes in zip(cuts[1:], self.sizes[1:], strict=True):
            if (differs := difference(first, cut)) is not None:
                raise _not_equal(what, self.sizes[0], sizes, differs)
        return self._part(first, [cut.tensors for cut in cuts], what)

    def end(self, cuts: Sequence[Cut], what: str) -> Part:
        """A part with tensors that exist from some size on: a second tile, a sort of many ids. Where it is smaller they
        have no bytes.

        Raises:
            Refused: the births do not match, or its peaks are not those that were seen.
        """
        cuts = [folded(cut) for cut in cuts]
        fullest = max(cuts, key=lambda cut: len(cut.tensors))
        found: list[list[Seen | None]] = []
        for cut, sizes in zip(cuts, self.sizes, strict=True):
            matched = _embedded(fullest.tensors, cut.tensors)
            if matched is None:
                raise _not_equal(what, self.sizes[cuts.index(fullest)], sizes, difference(fullest, cut))
            found.append(matched)
        part = self._part(fullest, found, what)
        for cut, sizes in zip(cuts, self.sizes, strict=True):
            _check_peaks(part, cut, sizes, what)
        return part

    def _part(self, cut: Cut, found: Sequence[Sequence[Seen | None]], what: str) -> Part:
        tensors = [
            Tensor(seen.born, seen.dies, seen.kind, self._bytes(column, what, seen), seen.operator, seen.module)
            for seen, column in zip(cut.tensors, zip(*found, strict=True), strict=True)
        ]
        return Part(cut.borders, tuple(tensors))

    def _bytes(self, column: Sequence[Seen | None], what: str, seen: Seen) -> Bytes:
        values = tuple(one.bytes if one is not None else 0 for one in column)
        if values not in self.known:
            self.known[values] = self._function(values)
        found = self.known[values]
        if found is None:
            shown = ", ".join(f"{value:,} at {_shown(sizes)}" for value, sizes in zip(values, self.sizes, strict=True))
            raise refuse(
                f"{what}: nobody knows with what {seen.operator}{f' in {seen.module}' if seen.module else ''} grows",
                bytes=shown,
            )
        return found

    def _function(self, values: tuple[int, ...]) -> Bytes | None:
        """The fewest terms that give all values."""
        if not any(values):
            return ()
        rows = self._chunk(values)
        if rows:
            for name in chunks("tokens", rows):
                self._learn(name)
        for count in (1, 2, 3):
            for names in combinations(self.values, count):
                found = self._solved(names, values)
                if found is not None:
                    return tuple(zip(found, names, strict=True))
        return None

    def _chunk(self, values: tuple[int, ...]) -> int:
        """Tokens of a chunk, if the bytes grow with tokens up to it; else 0."""
        tokens = self.values["tokens"]
        least = min(range(len(tokens)), key=tokens.__getitem__)
        each, rest = divmod(values[least], tokens[least])
        if not each or rest or max(values) % each:
            return 0
        rows = max(values) // each
        capped = all(value == each * min(count, rows) for value, count in zip(values, tokens, strict=True))
        return rows if capped and rows < max(tokens) else 0

    def _solved(self, names: tuple[str, ...], values: tuple[int, ...]) -> list[int] | None:
        """Whole coefficients, if there are any."""
        columns = [self.values[name] for name in names]
        found = _solve([[*row, value] for *row, value in zip(*columns, values, strict=True)])
        return found if found is not None and all(found) else None


def _solve(rows: list[list[int]]) -> list[int] | None:
    """The whole solution of more equations than unknowns, if there is exactly one."""
    matrix = [[Fraction(value) for value in row] for row in rows]
    width = len(matrix[0]) - 1
    for column in range(width):
        pivot = next((index for index in range(column, len(matrix)) if matrix[index][column]), None)
        if pivot is None:
            return None
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        head = matrix[column]
        for index, row in enumerate(matrix):
            if index != column and row[column]:
                factor = row[column] / head[column]
                matrix[index] = [value - factor * other for value, other in zip(row, head, strict=True)]
    if any(row[width] for row in matrix[width:]):
        return None
    found = [matrix[index][width] / matrix[index][index] for index in range(width)]
    return [int(value) for value in found] if all(value.denominator == 1 for value in found) else None


class Difference(NamedTuple):
    """Where two runs of a part are not the same."""

    one: Seen | None
    other: Seen | None


def difference(one: Cut, other: Cut) -> Difference | None:
    """The first tensor that is made, or dies, elsewhere."""
    for left, right in zip(one.tensors, other.tensors, strict=False):
        if left.key != right.key or (left.born, left.dies) != (right.born, right.dies):
            return Difference(left, right)
    longer = max(one.tensors, other.tensors, key=len)
    at = min(len(one.tensors), len(other.tensors))
    if at < len(longer):
        left, right = (tensors[at] if at < len(tensors) else None for tensors in (one.tensors, other.tensors))
        return Difference(left, right)
    return None


def _embedded(all_tensors: Sequence[Seen], some: Sequence[Seen]) -> list[Seen | None] | None:
    """Each tensor's counterpart, the earliest that fits; None if one has none."""
    found: list[Seen | None] = []
    rest = list(some)
    for tensor in all_tensors:
        found.append(rest.pop(0) if rest and rest[0].key == tensor.key else None)
    return found if not rest else None


def _check_peaks(part: Part, cut: Cut, sizes: Sizes, what: str) -> None:
    """Compare with what was seen, from border to border."""
    tensors = [Tensor(*one[:3], ((one.bytes, "1"),), one.operator, one.module) for one in cut.tensors]
    fitted, seen = sized(part, sizes), sized(Part(cut.borders, tuple(tensors)), sizes)
    ours, theirs = ((0, *borders, None) for borders in (part.borders, cut.borders))
    for place in range(len(ours) - 1):
        found = int(fitted.peak(ours[place] or 0, ours[place + 1]))
        real = int(seen.peak(theirs[place] or 0, theirs[place + 1]))
        if abs(found - real) * _APART > real:
            raise refuse(
                f"{what}: its tensors at {_shown(sizes)} do not follow from those at other sizes",
                seen=f"{real:,} bytes at most",
                expected=f"{found:,}",
            )


def _shown(sizes: Sizes) -> str:
    return f"{sizes.sequences} × {sizes.seq_len:,} tokens"


def _not_equal(what: str, one: Sizes, other: Sizes, differs: Difference | None) -> Refused:
    context = {}
    if differs is not None:
        context = {_shown(one): _named(differs.one), _shown(other): _named(differs.other)}
    return refuse(f"{what} is not the same at all sizes", **context)


def _named(seen: Seen | None) -> str:
    if seen is None:
        return "nothing more"
    return f"{seen.operator} ({seen.dtype}){f' in {seen.module}' if seen.module else ''}"
