"""One formula, three readings: they agree to the byte, and the text says what was computed."""

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.formulas import LARGEST_LEAF, NAMES, Formula, evaluate, formulas, size_class, with_names

from vramcast import num
from vramcast.num import Named, Size, at_most, let, portion, running_peak, shard, stored, tabulate, total, up_to, worst

sizes = st.fixed_dictionaries({name: st.integers(1, LARGEST_LEAF) for name in NAMES})
axes = st.fixed_dictionaries({name: st.tuples(*[st.integers(1, LARGEST_LEAF)] * 2) for name in NAMES})


@given(formulas(), sizes)
def test_names_do_not_change_the_value(formula: Formula, values: dict[str, int]) -> None:
    plain, named = formula(dict(values)), formula(with_names(values))
    assert type(plain) is int
    assert int(named) == plain


@given(formulas(), axes)
def test_an_array_holds_the_values_of_all_layouts(formula: Formula, values: dict[str, tuple[int, int]]) -> None:
    """Each size on an axis of its own, as the search calls it."""
    arrays = {
        name: np.array(values[name], dtype=np.int64).reshape([2 if axis == own else 1 for axis in range(len(NAMES))])
        for own, name in enumerate(NAMES)
    }
    table = np.broadcast_to(np.asarray(formula(arrays)), [2] * len(NAMES))
    assert table.dtype == np.int64
    for index in product(range(2), repeat=len(NAMES)):
        chosen = {name: values[name][at] for name, at in zip(NAMES, index, strict=True)}
        assert int(table[index]) == formula(dict(chosen))


@given(formulas(), sizes)
def test_the_printed_text_means_the_value(formula: Formula, values: dict[str, int]) -> None:
    """Formula, figures and every level below read back as written: no bracket is missing."""
    named = formula(with_names(values))
    assume(isinstance(named, Named))
    pending = [named]
    while pending:
        size = pending.pop()
        levels = {level.name: int(level.size) for level in size.parts}
        assert evaluate(size.formula, {**values, **levels}) == int(size)
        assert evaluate(size.figures, {}) == int(size)
        pending.extend(level.size for level in size.parts)


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=20), st.randoms())
def test_running_peak_is_the_largest_sum_alive(births: list[tuple[int, bool]], random: object) -> None:
    steps: list[tuple[int, Size]] = []
    alive: list[Named] = []
    for number, (value, then_a_death) in enumerate(births):
        alive.append(Named(value, f"x{number}"))
        steps.append((1, alive[-1]))
        if then_a_death:
            steps.append((-1, alive.pop(random.randrange(len(alive)))))  # type: ignore[attr-defined]
    sums = [sum(sign * int(size) for sign, size in steps[:end]) for end in range(len(steps) + 1)]
    assert running_peak(steps) == max(sums)
    assert running_peak([(sign, int(size)) for sign, size in steps]) == max(sums)
    if steps:
        arrays = [(sign, np.array([int(size), 2 * int(size)])) for sign, size in steps]
        assert list(running_peak(arrays)) == [max(sums), 2 * max(sums)]


def test_running_peak_finds_a_death_by_value_when_the_object_is_another() -> None:
    assert running_peak([(1, 1000 * 1000), (-1, int("1000000")), (1, 7)]) == 1_000_000
    with pytest.raises(ValueError, match="a size of 3 died that was not alive"):
        running_peak([(1, 5), (-1, 3)])


def test_a_condition_on_a_size_fails_for_an_array() -> None:
    def formula(tokens: Size) -> Size:
        return tokens * 2 if tokens > 4 else tokens

    assert formula(5) == 10
    with pytest.raises(ValueError, match="truth value of an array"):
        formula(np.array([3, 5]))


def test_a_portion_of_a_large_size_does_not_overflow() -> None:
    petabyte = 1 << 50
    assert portion(900_000, petabyte) == -(-petabyte * 900_000 // 10**6)
    assert list(portion(900_000, np.array([petabyte, 1]))) == [portion(900_000, petabyte), 1]


def test_a_table_is_asked_once_per_value() -> None:
    asked: list[int] = []

    def classes(size: int) -> int:
        asked.append(size)
        return size_class(size)

    assert tabulate(classes, np.array([[1, 600], [600, 1]])).tolist() == [[512, 1024], [1024, 512]]
    assert asked == [1, 600]


A, B, C, TP = Named(1200, "a"), Named(34, "b"), Named(5, "c"), Named(8, "tp")

TEXTS: dict[str, tuple[Size, str, str]] = {
    "sum": (A + B, "a + b", "1,200 + 34"),
    "sum in a product": ((A + B) * C, "(a + b) × c", "(1,200 + 34) × 5"),
    "product in a sum": (A * B + C, "a × b + c", "1,200 × 34 + 5"),
    "after a minus": (A - (B - C), "a - (b - c)", "1,200 - (34 - 5)"),
    "before a minus": (A - B - C, "a - b - c", "1,200 - 34 - 5"),
    "plain numbers": (2 * A * 3 + 1, "2 × a × 3 + 1", "2 × 1,200 × 3 + 1"),
    "nothing added": (0 + A + 0, "a", "1,200"),
    "shard": (shard(A * B, TP), "⌈a × b ÷ tp⌉", "⌈1,200 × 34 ÷ 8⌉"),
    "shard by a product": (shard(A, TP * C), "⌈a ÷ (tp × c)⌉", "⌈1,200 ÷ (8 × 5)⌉"),
    "shard of a sum": (shard(A + B, TP), "⌈(a + b) ÷ tp⌉", "⌈(1,200 + 34) ÷ 8⌉"),
    "whole": (num.whole(A, B), "⌊a ÷ b⌋", "⌊1,200 ÷ 34⌋"),
    "up_to": (up_to(A, TP), "⌈a ÷ tp⌉ × tp", "⌈1,200 ÷ 8⌉ × 8"),
    "shard by a padded size": (shard(A, up_to(B, TP)), "⌈a ÷ (⌈b ÷ tp⌉ × tp)⌉", "⌈1,200 ÷ (⌈34 ÷ 8⌉ × 8)⌉"),
    "portion": (portion(450_000, A + B), "⌈450,000 ppm × (a + b)⌉", "⌈450,000 ppm × (1,200 + 34)⌉"),
    "stored, plain": (stored(A, 1, 2), "a × 2", "1,200 × 2"),
    "stored, in blocks": (stored(A, 64, 32), "⌈a ÷ 64⌉ × 32", "⌈1,200 ÷ 64⌉ × 32"),
    "worst": (worst(A, B + C, 7), "max(a, b + c, 7)", "max(1,200, 34 + 5, 7)"),
    "worst of one": (worst(A), "a", "1,200"),
    "at_most": (at_most(A, B), "min(a, b)", "min(1,200, 34)"),
    "tabulate": (tabulate(size_class, A), "size_class(a)", "size_class(1,200)"),
    "total": (total([A, B, C]), "a + b + c", "1,200 + 34 + 5"),
    "peak": (running_peak([(1, A), (1, B), (-1, A), (1, C)]), "a + b", "1,200 + 34"),
}


@pytest.mark.parametrize(("size", "formula", "figures"), TEXTS.values(), ids=TEXTS)
def test_text(size: Named, formula: str, figures: str) -> None:
    assert (size.formula, size.figures) == (formula, figures)
    assert evaluate(figures, {}) == int(size)


def test_let_names_a_level_and_keeps_what_is_below() -> None:
    """The bf16 logits of Qwen2.5-7B with vocabulary cut by tp: 2 x 4096 tokens, 152,064 entries."""
    tokens = let("tokens", Named(2, "micro_batch") * Named(4096, "seq_len"))
    vocabulary = let("vocab / tp", shard(up_to(Named(151_665, "vocab"), Named(512, "multiple")), Named(4, "tp")))
    logits = let("logits", tokens * vocabulary * 2)
    both = logits + logits

    assert (both.formula, both.figures) == ("logits + logits", "622,854,144 + 622,854,144")
    (level,) = both.parts  # the same level twice is one level
    assert level.name == "logits"
    assert (level.size.formula, level.size.figures) == ("tokens × vocab / tp × 2", "8,192 × 38,016 × 2")
    below = {part.name: part.size.formula for part in level.size.parts}
    assert below == {"tokens": "micro_batch × seq_len", "vocab / tp": "⌈⌈vocab ÷ multiple⌉ × multiple ÷ tp⌉"}


@given(st.lists(st.integers(0, 10**11), min_size=1, max_size=3), st.integers(1, 64))
def test_lines_of_named_levels_stay_short(values: list[int], ranks: int) -> None:
    """Three levels of twelve letters, cut once, fit the 60 characters of a line of `explain`."""
    levels = [let(f"activation_{at}", Named(value, "x" * 80)) for at, value in enumerate(values)]
    size = shard(total(levels), Named(ranks, "ranks"))
    assert len(size.formula) <= 60
    assert len(size.figures) <= 60


def test_let_changes_nothing_without_names() -> None:
    array = np.array([1, 2])
    assert let("x", array) is array
    assert type(let("x", 3)) is int
