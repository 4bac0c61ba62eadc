"""One formula, three readings: for every term at every instant of random jobs, ints, named ints and arrays agree to the
byte."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from tests.random_jobs import Values, jobs, said

from vramcast.estimate.resolve import resolve
from vramcast.estimate.seats import Seats
from vramcast.estimate.timeline import moments, roles_of
from vramcast.memory.seat import Seat, named
from vramcast.memory.term import TERMS, Interval

SIZES = ("sequences", "seq_len", "cached_len", "scored_len")
"""what the array reading makes an array of"""
thorough = settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])


def seats_of(values: Values) -> Iterator[Seat]:
    job = resolve(said(values))
    for role in roles_of(job):
        maker = Seats(job, role)
        for moment in moments(job):
            yield maker.seat(*moment)


def bytes_of(seat: Seat) -> dict[str, tuple[Any, Any, Any]]:
    """Term → (low, point, high) of all terms that live at the seat."""
    found: dict[str, tuple[Any, Any, Any]] = {}
    for entry in TERMS.values():
        if entry.lives(seat):
            value = entry.formula(seat)
            found[entry.name] = tuple(value) if isinstance(value, Interval) else (value, value, value)
    return found


class Memos:
    """Seats that shared what was computed for them share it in another reading too."""

    def __init__(self) -> None:
        self.by_original: dict[tuple[int, Any], tuple[dict[str, Any], dict[str, Any]]] = {}

    def of(self, seat: Seat, reading: Any) -> dict[str, Any]:
        """The original is kept beside the new memo, so that no other object gets its id."""
        return self.by_original.setdefault((id(seat.memo), reading), (seat.memo, {}))[1]


@given(jobs)
@thorough
def test_named_sizes_give_the_same_bytes(values: Values) -> None:
    memos = Memos()
    for seat in seats_of(values):
        words = named(structs.replace(seat, memo=memos.of(seat, "named")))
        assert {name: tuple(map(int, sizes)) for name, sizes in bytes_of(words).items()} == bytes_of(seat)


@given(jobs, st.lists(st.tuples(st.integers(1, 16), st.integers(1, 9000)), min_size=1, max_size=4))
@thorough
def test_arrays_give_the_same_bytes_element_by_element(values: Values, work: list[tuple[int, int]]) -> None:
    memos = Memos()
    for seat in seats_of(values):
        layouts = [_resized(seat, sequences, length) for sequences, length in work]
        sizes = {name: numpy.array([layout[name] for layout in layouts], dtype=numpy.int64) for name in SIZES}
        together = bytes_of(structs.replace(seat, memo=memos.of(seat, "array"), **sizes))
        for index, layout in enumerate(layouts):
            alone = bytes_of(structs.replace(seat, memo=memos.of(seat, index), **layout))
            assert {name: _element(found, index, len(work)) for name, found in together.items()} == alone


def _resized(seat: Seat, sequences: int, length: int) -> dict[str, int]:
    """The same seat with other work. The prompt of a decoding seat is in the cache already."""
    decodes = seat.instant == "decode"
    return {
        "sequences": sequences,
        "seq_len": 1 if decodes else length,
        "cached_len": length if seat.cached_len else 0,
        "scored_len": max(length - 1, 1),
    }


def _element(sizes: tuple[Any, ...], index: int, layouts: int) -> tuple[int, ...]:
    """A term has length 1 on axes it does not use."""
    return tuple(int(numpy.broadcast_to(size, (layouts,))[index]) for size in sizes)
