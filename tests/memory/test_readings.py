"""One formula, three readings: for every term at every instant of random jobs, ints, named ints and arrays agree to the
byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from tests.random_jobs import Values, jobs, said

from vramcast.estimate.resolve import resolve
from vramcast.estimate.seats import Seats
from vramcast.estimate.timeline import moments, roles_of
from vramcast.memory.seat import SIZES as SYMBOLS
from vramcast.memory.seat import Engine, Seat, named
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


# --- every axis -------------------------------------------------------------------------------------------------------


def _axes(kind: type) -> list[str]:
    """The size fields of a struct, as its types say."""
    return [name for name, hint in kind.__annotations__.items() if hint == "Size"]


def test_every_size_of_a_seat_has_a_symbol() -> None:
    """What is no size is a mode, and a plan is made for each of its values."""
    assert set(_axes(Seat)) == set(SYMBOLS)


GROUP = {"model": "Qwen/Qwen2.5-0.5B", "gpu": "h100-sxm-80gb", "algorithm": "grpo", "framework": "verl==0.6.0",
         "prompt_len": 512, "response_len": 512, "group": 4, "gpus": 4, "engine.kind": "vllm"}  # fmt: skip
TRAINED = {"model": "Qwen/Qwen2.5-0.5B", "gpu": "h100-sxm-80gb", "algorithm": "sft", "framework": "trl==1.16.0",
           "tuning": "lora", "lora.targets": ["all-linear"], "gpus": 2}  # fmt: skip
SERVER = {**GROUP, "framework": "trl==1.16.0", "engine.process": "server", "engine.tp": 1}
JOBS = {
    "fsdp1": {**TRAINED, "shard": "fsdp1"}, "fsdp2": {**TRAINED, "shard": "fsdp2", "tuning": "full"},
    "ddp": TRAINED, "optimizer": {**TRAINED, "optimizer": "adamw_8bit", "tuning": "full", "accumulation": 4},
    "group": GROUP, "server": SERVER,
    "cache": {"model": "Qwen/Qwen2.5-0.5B", "gpu": "h100-sxm-80gb", "algorithm": "inference", "engine.kind": "hf"},
}  # fmt: skip


def _other(size: int, field: str) -> int:
    """Another value that the field may have: one of no use stays so, which is a mode of the job."""
    return size and (size * 2 if field in ("ranks", "gpus", "tp") else size + 3)


@pytest.mark.parametrize("job", JOBS)
def test_every_axis_is_read_in_the_same_way(job: str) -> None:
    """Two values of each size at once, and each alone: what an `if` on a size or an `int()` of it would break."""
    for seat in seats_of(JOBS[job]):
        for field in _axes(Seat):
            _compare(seat, lambda size, field=field: {field: size}, getattr(seat, field), field)
        for field in _axes(Engine) if seat.engine is not None else ():
            _compare(
                seat,
                lambda size, field=field, engine=seat.engine: {"engine": structs.replace(engine, **{field: size})},
                getattr(seat.engine, field),
                field,
            )


def _compare(seat: Seat, change: Callable[[Any], dict[str, Any]], size: int, field: str) -> None:
    values = [size, _other(size, field)]
    together = bytes_of(structs.replace(seat, memo={}, **change(numpy.array(values, dtype=numpy.int64))))
    for index, value in enumerate(values):
        alone = bytes_of(structs.replace(seat, memo={}, **change(value)))
        assert {name: _element(found, index, 2) for name, found in together.items()} == alone, field
