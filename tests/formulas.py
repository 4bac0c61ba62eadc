"""Random formula trees for the tests of `num`, and an evaluator of the texts they print."""

import re
from collections.abc import Callable
from fractions import Fraction
from itertools import count
from math import ceil, floor
from typing import Any

from hypothesis import strategies as st

from vramcast.num import (
    Named,
    Size,
    at_most,
    let,
    portion,
    running_peak,
    shard,
    stored,
    tabulate,
    total,
    up_to,
    whole,
    worst,
)

NAMES = ("a", "b", "c")
DEPTH, LARGEST_LEAF = 3, 100
"""Small enough that eight leaves multiplied stay an int64."""

Formula = Callable[[dict[str, Size]], Size]


def size_class(size: int) -> int:
    """Something that is not arithmetic: 512 up to 2000, then 4096."""
    step = 512 if size < 2000 else 4096
    return -(-size // step) * step


@st.composite
def formulas(draw: st.DrawFn) -> Formula:
    """A formula over `NAMES`, at most `DEPTH` operations deep."""
    return _tree(draw, DEPTH, count())


def _tree(draw: st.DrawFn, depth: int, levels: "count[int]") -> Formula:
    if depth == 0 or draw(st.integers(0, 9)) == 0:
        return _leaf(draw)
    x, y = (_tree(draw, depth - 1, levels) for _ in range(2))
    divisor, constant = _leaf(draw, least=1), draw(st.integers(0, 3_000_000))
    block, block_bytes = draw(st.sampled_from([(1, 4), (1, 2), (64, 32), (32, 17)]))
    level = f"level{next(levels)}"
    return draw(
        st.sampled_from(
            [
                lambda s: x(s) + y(s),
                lambda s: x(s) - y(s),
                lambda s: x(s) * y(s),
                lambda s: shard(x(s), divisor(s)),
                lambda s: shard(x(s), divisor(s) * 3),
                lambda s: whole(x(s), divisor(s)),
                lambda s: up_to(x(s), divisor(s) + 1),
                lambda s: shard(x(s), up_to(divisor(s), 8)),
                lambda s: portion(constant, x(s)),
                lambda s: stored(x(s), block, block_bytes),
                lambda s: worst(x(s), y(s), 7),
                lambda s: at_most(x(s), y(s)),
                lambda s: tabulate(size_class, x(s)),
                lambda s: let(level, x(s)),
                lambda s: total([x(s), y(s), 5]),
                lambda s: running_peak([(1, x(s)), (1, y(s)), (-1, x(s)), (1, divisor(s)), (-1, y(s))]),
            ]
        )
    )


def _leaf(draw: st.DrawFn, least: int = 0) -> Formula:
    name = draw(st.sampled_from(NAMES))
    if draw(st.integers(0, 4)):
        return lambda sizes: sizes[name]
    constant = draw(st.integers(least, LARGEST_LEAF))
    return lambda sizes: constant


def evaluate(text: str, names: dict[str, int]) -> int:
    """What a printed formula or its figures mean to a reader, worked out with exact fractions."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    text = re.sub(r"(?<![A-Za-z_\d])\d+", r"Fraction(\g<0>)", text)
    for sign, code in (
        ("⌈", "ceil("), ("⌉", ")"), ("⌊", "floor("), ("⌋", ")"), ("×", "*"), ("÷", "/"), (" ppm", " / million"),
    ):  # fmt: skip
        text = text.replace(sign, code)
    tools: dict[str, Any] = {
        "ceil": lambda value: Fraction(ceil(value)),
        "floor": lambda value: Fraction(floor(value)),
        "Fraction": Fraction, "million": 10**6, "max": max, "min": min,
        "size_class": lambda value: Fraction(size_class(int(value))),
    }  # fmt: skip
    return eval(text, tools, {name: Fraction(value) for name, value in names.items()})


def with_names(sizes: dict[str, int]) -> dict[str, Size]:
    return {name: Named(value, name) for name, value in sizes.items()}
