"""One formula, four readings.

A formula is written once, with these helpers and `+ - *`, and is then called with

* `int`: the value;
* `Named`: an `int` that also carries its text (the formula in symbols, the same with figures, and the levels below);
* an `int64` array: the values of many layouts at once;
* `Later`: a size that is not known yet. What is made of it is the call that makes it, to be compiled.

Formulas branch on modes and compute on sizes: an `if` on a size has no meaning for an array and fails there.
Annotations say `Size`; an array is passed where a type checker sees an `int`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any, Literal, NamedTuple, TypeAlias

from vramcast.units import PPM

Size: TypeAlias = int
"""A count or a number of bytes in any of the three readings."""

Kind: TypeAlias = Literal["atom", "product", "sum"]
"""How loosely a text is bound: what decides about its brackets."""


class Named(int):
    """An `int` with its text: `formula` in symbols, `figures` with numbers, `parts` the named levels it is made of."""

    formula: str
    figures: str
    parts: tuple[Level, ...]
    kind: Kind  # a sum needs brackets inside a product or after a minus, both need them beside a ÷

    def __new__(
        cls, value: int, formula: str, figures: str = "", parts: tuple[Level, ...] = (), kind: Kind = "atom"
    ) -> Named:
        self = super().__new__(cls, value)
        self.formula = formula
        self.figures = figures or f"{value:,}"
        self.parts = parts
        self.kind = kind
        return self

    def __add__(self, other: Any) -> Any:
        return _join(self, other, "+", int(self) + int(other)) if isinstance(other, int) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return _join(other, self, "+", int(other) + int(self)) if isinstance(other, int) else NotImplemented

    def __sub__(self, other: Any) -> Any:
        return _join(self, other, "-", int(self) - int(other)) if isinstance(other, int) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return _join(other, self, "-", int(other) - int(self)) if isinstance(other, int) else NotImplemented

    def __mul__(self, other: Any) -> Any:
        return _join(self, other, "×", int(self) * int(other)) if isinstance(other, int) else NotImplemented

    def __rmul__(self, other: Any) -> Any:
        return _join(other, self, "×", int(other) * int(self)) if isinstance(other, int) else NotImplemented


class Level(NamedTuple):
    """A named step of a formula: `name` stands for `size`, whose own text says how."""

    name: str
    size: Named


class Later:
    """A size that is known later: the function that makes it, and what it is made of."""

    __slots__ = ("arguments", "function")

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function = function
        self.arguments = arguments

    @classmethod
    def of(cls, name: str) -> Any:
        """The size of that name."""
        return cls(getattr, name)

    def __add__(self, other: Any) -> Any:
        return self if _is_zero(other) else Later(operator.add, self, other)

    def __radd__(self, other: Any) -> Any:
        return self if _is_zero(other) else Later(operator.add, other, self)

    def __sub__(self, other: Any) -> Any:
        return self if _is_zero(other) else Later(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        return Later(operator.sub, other, self)

    def __mul__(self, other: Any) -> Any:
        return Later(operator.mul, self, other)

    def __rmul__(self, other: Any) -> Any:
        return Later(operator.mul, other, self)

    def __bool__(self) -> bool:
        raise TypeError("a formula computes on sizes; it branches on modes only")


def _is_zero(size: Any) -> bool:
    return isinstance(size, int) and size == 0


def shard(whole_size: Size, ranks: Size) -> Size:
    """`whole_size` cut over `ranks`, rounded up: every rank holds a padded share."""
    return _call("⌈{over} ÷ {by}⌉", _divided_up, whole_size, ranks)


def _divided_up(size: Any, by: Any) -> Any:
    return -(-size // by)


def _divided(size: Any, by: Any) -> Any:
    return size // by


def _padded(size: Any, multiple: Any) -> Any:
    return -(-size // multiple) * multiple


def whole(size: Size, block: Size) -> Size:
    """How many whole blocks fit into `size`: rounded down."""
    return _call("⌊{over} ÷ {by}⌋", _divided, size, block)


def up_to(size: Size, multiple: Size) -> Size:
    """`size` padded up to a multiple."""
    padded = _call("⌈{over} ÷ {by}⌉ × {times}", _padded, size, multiple)
    if isinstance(padded, Named):
        padded.kind = "product"
    return padded


def portion(parts_per_million: Size, size: Size) -> Size:
    """A fraction of `size`, rounded up, without floats; in two steps, so that an int64 does not overflow."""
    return _call("⌈{left} ppm × {times}⌉", _portion, parts_per_million, size)


def _portion(parts: Any, size: Any) -> Any:
    return size // PPM * parts + -(-(size % PPM * parts) // PPM)


def stored(elements: Size, block: int, block_bytes: int) -> Size:
    """Bytes of `elements` in a dtype that packs `block` of them into `block_bytes` (bf16 1:2, nf4 64:32)."""
    return elements * block_bytes if block == 1 else shard(elements, block) * block_bytes


def worst(*sizes: Size) -> Size:
    """The largest: over instants, ranks or chunks. The figures of the text show which one won."""
    return _extreme("max", max, "maximum", sizes)


def at_most(*sizes: Size) -> Size:
    """The smallest: a size under its caps."""
    return _extreme("min", min, "minimum", sizes)


def tabulate(function: Callable[[int], int], size: Size) -> Size:
    """An integer function that is not arithmetic (allocator size classes), applied in every reading."""
    if isinstance(size, Later):
        return _later(tabulate, function, size)
    if _is_array(size):
        import numpy

        values, index = numpy.unique(size, return_inverse=True)
        table: Any = numpy.array([function(int(value)) for value in values], dtype=numpy.int64)
        return table[index].reshape(numpy.shape(size))
    value = function(int(size))
    if not isinstance(size, Named):
        return value
    name = function.__name__.strip("_")
    return Named(value, f"{name}({size.formula})", f"{name}({size.figures})", size.parts)


def gather(function: Callable[[tuple[int, ...]], int], sizes: Iterable[Size]) -> Size:
    """An integer function of many sizes together (tensors placed into segments), applied in every reading."""
    listed = list(sizes)
    kinds: set[type] = set(map(type, listed))
    if Later in kinds:
        return _later(_gathered, function, *listed)
    if _has_arrays(kinds):
        import numpy

        grids: Any = numpy.broadcast_arrays(*listed)
        rows: Any = numpy.stack(grids, -1).reshape(-1, len(grids))
        table: Any = numpy.array([function(tuple(map(int, row))) for row in rows])
        return table.reshape(grids[0].shape)
    if Named not in kinds:
        return function(tuple(listed))
    value = function(tuple(map(int, listed)))
    name = function.__name__.strip("_").replace("_", " ")
    return Named(value, f"{name} of {len(listed)} sizes", f"{value:,}", _parts(*listed))


def _gathered(function: Callable[[tuple[int, ...]], int], *sizes: Size) -> Size:
    return gather(function, sizes)


def let(name: str, size: Size) -> Size:
    """Name a level: above it the text shows `name`, and `explain` drills down to what `size` was made of."""
    if not isinstance(size, Named):
        return size
    level = Level(name, size)
    return Named(int(size), name, f"{int(size):,}", (level,))


def total(sizes: Iterable[Size]) -> Size:
    """The sum; 0 when there is nothing to add."""
    result: Size = 0
    for size in sizes:
        result = size if not _is_array(result) and result == 0 else result + size
    return result


def running_peak(steps: Iterable[tuple[int, Size]]) -> Size:
    """The largest running sum of signed sizes (births +1, deaths -1), at least 0.

    With names the text is the sum of what is alive at the highest point, so it stays readable.

    Raises:
        ValueError: a size dies that is not alive (not seen in the array reading).
    """
    steps = list(steps)
    kinds: set[type] = {type(size) for _, size in steps}
    if Later in kinds:
        return _later(_peak, tuple([sign for sign, _ in steps]), *[size for _, size in steps])
    if _has_arrays(kinds):
        import numpy

        level: Any = 0
        peak: Any = 0
        for sign, size in steps:
            level = level + sign * size
            peak = numpy.maximum(peak, level)
        return peak
    level = peak = 0
    alive: list[Size] = []
    at_peak: list[Size] = []
    for sign, size in steps:
        level += sign * int(size)
        if sign > 0:
            alive.append(size)
        else:
            _forget(alive, size)
        if level > peak:
            peak, at_peak = level, alive.copy()
    return total(at_peak) if Named in kinds else peak


def _peak(signs: tuple[int, ...], *sizes: Size) -> Size:
    """`running_peak` of steps that were looked at before."""
    if _has_arrays(set(map(type, sizes))):
        return running_peak(zip(signs, sizes, strict=True))
    return max(0, *accumulate(map(operator.mul, signs, sizes)))


def _later(function: Callable[..., Any], *arguments: Any) -> Any:
    return Later(function, *arguments)


def _forget(alive: list[Size], size: Size) -> None:
    """Take the latest equal size away: the same object, else one of the same text, else one of the same value."""
    latest = range(len(alive) - 1, -1, -1)
    for index in latest:
        if alive[index] is size:
            del alive[index]
            return
    equal = [index for index in latest if alive[index] == size]
    if not equal:
        raise ValueError(f"a size of {int(size):,} died that was not alive")
    same = [index for index in equal if _text(alive[index], False) == _text(size, False)]
    del alive[(same or equal)[0]]


def _join(left: int, right: int, sign: str, value: int) -> Named:
    if sign == "-" and isinstance(left, Named) and not isinstance(right, Named) and right == 0:
        return left
    neutral = {"+": 0, "×": 1}.get(sign)
    for kept, other in ((left, right), (right, left)):
        if isinstance(kept, Named) and not isinstance(other, Named) and other == neutral:
            return kept
    bracketed: tuple[Kind, ...] = ("sum",) if sign == "×" else ()
    after: tuple[Kind, ...] = () if sign == "+" else ("sum",)
    formula, figures = (
        f"{_operand(left, shown, bracketed)} {sign} {_operand(right, shown, after)}" for shown in (False, True)
    )
    return Named(value, formula, figures, _parts(left, right), "product" if sign == "×" else "sum")


def _operand(size: int, figures: bool, bracketed: tuple[Kind, ...]) -> str:
    text = _text(size, figures)
    return f"({text})" if isinstance(size, Named) and size.kind in bracketed else text


def _text(size: int, figures: bool) -> str:
    if isinstance(size, Named):
        return size.figures if figures else size.formula
    return f"{int(size):,}"


def _parts(*sizes: int) -> tuple[Level, ...]:
    levels: dict[tuple[str, int], Level] = {}
    for size in {id(size): size for size in sizes}.values():  # a layer's tensors come once for each layer
        if isinstance(size, Named):
            for level in size.parts:
                levels.setdefault((level.name, int(level.size)), level)
    return tuple(levels.values())


def _call(pattern: str, function: Callable[[Any, Any], Any], left: Size, right: Size) -> Size:
    if isinstance(left, Later) or isinstance(right, Later):
        return _later(function, left, right)
    value = function(_plain(left), _plain(right))
    if not isinstance(left, Named) and not isinstance(right, Named):
        return value
    if isinstance(left, Named) and not isinstance(right, Named) and right == 1:
        return left
    formula, figures = (_fill(pattern, left, right, shown) for shown in (False, True))
    return Named(value, formula, figures, _parts(left, right))


def _fill(pattern: str, left: Size, right: Size, figures: bool) -> str:
    return pattern.format(
        left=_operand(left, figures, ("sum", "product")),
        over=_operand(left, figures, ("sum",)),
        by=_operand(right, figures, ("sum", "product")),
        times=_operand(right, figures, ("sum",)),
    )


def _is_array(size: object) -> bool:
    return not isinstance(size, int)


def _has_arrays(kinds: Iterable[type]) -> bool:
    """Whether sizes of these types are of the array reading. Many sizes have few types, and this is asked often."""
    return not all(issubclass(kind, int) for kind in kinds)


def _plain(size: Any) -> Any:
    return int(size) if isinstance(size, Named) else size


def _extreme(name: str, pick: Callable[..., int], ufunc: str, sizes: tuple[Size, ...]) -> Size:
    if len(sizes) == 1:
        return sizes[0]
    if any(type(size) is Later for size in sizes):  # pyright: ignore[reportUnnecessaryComparison]
        return _later(worst if name == "max" else at_most, *sizes)
    if _has_arrays(map(type, sizes)):
        import numpy

        result: Any = sizes[0]
        for size in sizes[1:]:
            result = getattr(numpy, ufunc)(result, size)
        return result
    value = pick(int(size) for size in sizes)
    if not any(isinstance(size, Named) for size in sizes):
        return value
    texts = [f"{name}({', '.join(_text(size, figures) for size in sizes)})" for figures in (False, True)]
    return Named(value, texts[0], texts[1], _parts(*sizes))
