"""Terms: plain functions of a seat with a declaration. The function's docstring is its page of the manual."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from vramcast.memory.seat import Seat
from vramcast.num import Named, Size

Counter: TypeAlias = Literal["allocated", "cached", "outside"]
Basis: TypeAlias = Literal["exact", "derived", "calibrated"]


class Interval(NamedTuple):
    """A size that is not known exactly: `low <= point <= high`, each from a stated cause."""

    low: Size
    point: Size
    high: Size


Formula: TypeAlias = Callable[[Seat], "Size | Interval"]
Declared = TypeVar("Declared", bound=Formula)
Tensors: TypeAlias = Callable[[Seat], Sequence[tuple[Size, Size]]]


class Term(NamedTuple):
    """A named, sourced sum."""

    name: str
    formula: Formula
    lives: Callable[[Seat], bool]
    """whether the term exists at the seat's instant: reads modes only"""
    counter: Counter
    basis: Basis
    source: str
    tensors: Tensors | None
    """(how many, bytes of each): what the allocator rounds to segments, at the instants that `rounds` names"""
    rounds: Callable[[Seat], bool]
    """whether all of the term's tensors are there: reads modes only"""
    fresh: Callable[[Seat], bool]
    """whether they were allocated first, each in a segment of its own: reads modes only"""
    kept: Callable[[Seat], bool]
    """whether they are allocated one after another and all stay for a while: reads modes only"""

    @property
    def manual(self) -> str:
        """The docstring of the formula, its indentation taken off."""
        from inspect import cleandoc  # slow to import, and only the manual needs it

        return cleandoc(self.formula.__doc__ or "")


TERMS: dict[str, Term] = {}


def term(
    name: str,
    *,
    lives: Callable[[Seat], bool],
    source: str,
    counter: Counter = "allocated",
    basis: Basis = "exact",
    tensors: Tensors | None = None,
    rounds: Callable[[Seat], bool] | None = None,
    fresh: Callable[[Seat], bool] = lambda seat: False,
    kept: Callable[[Seat], bool] = lambda seat: False,
) -> Callable[[Declared], Declared]:
    """Declare a term. It exists where `lives` says so; its bytes are what the decorated function returns."""

    def declare(formula: Declared) -> Declared:
        if name in TERMS:
            raise ValueError(f"term {name} is declared twice")
        TERMS[name] = Term(name, formula, lives, counter, basis, source, tensors, rounds or lives, fresh, kept)
        return formula

    return declare


class Reading(NamedTuple):
    """A term's bytes at a seat."""

    term: Term
    low: int
    point: int
    high: int


def read(seat: Seat) -> list[Reading]:
    """All terms that live at the seat and hold bytes there, in order of declaration."""
    readings: list[Reading] = []
    for entry in TERMS.values():
        if entry.lives(seat):
            value = entry.formula(seat)
            low, point, high = value if isinstance(value, Interval) else (value, value, value)
            if high:
                readings.append(Reading(entry, int(low), int(point), int(high)))
    return readings


def explain(entry: Term, seat: Seat) -> Named | None:
    """A term at a seat with named sizes: formula, figures and named levels; None when it is a plain constant."""
    value = entry.formula(seat)
    point = value.point if isinstance(value, Interval) else value
    return point if isinstance(point, Named) else None
