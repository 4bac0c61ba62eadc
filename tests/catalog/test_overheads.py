"""Overheads: every measurement has its source, and every interval of a formula is covered by measurements."""

from itertools import pairwise
from typing import get_args

import msgspec
import pytest

from vramcast.catalog.overheads import Kind, Measurement, Overhead, measurements, nccl, overhead, overheads
from vramcast.units import GIB, KIB, MIB

KINDS = get_args(Kind)
INTERVALS = [(kind, row) for kind, rows in overheads().items() for row in rows]


def test_measurements_are_sound():
    rows = measurements()
    assert len({row.id for row in rows}) == len(rows) >= 95
    for row in rows:
        assert row.source, row.id
        assert row.stated, row.id
        assert "http" not in row.source, row.id
        if row.kind not in ("engine_sampler", "driver_reserve"):
            assert MIB <= row.bytes <= 32 * GIB, row.id
    assert {row.kind for row in rows} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_measurements_of_a_kind(kind: Kind):
    rows = measurements(kind)
    assert rows
    assert all(row.kind == kind for row in rows)


@pytest.mark.parametrize(
    "edit", [{"source": None}, {"colour": "green"}, {"confidence": "some"}, {"kind": "other"}, {"bytes": 1.5}]
)
def test_a_measurement_of_another_shape_is_refused(edit: dict[str, object]):
    row = msgspec.to_builtins(measurements()[0])
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**row, **edit}, Measurement)


@pytest.mark.parametrize(("kind", "row"), INTERVALS, ids=[f"{kind}-{row.ranks}" for kind, row in INTERVALS])
def test_an_interval_is_covered_by_the_measurements_it_names(kind: str, row: Overhead):
    """Its ends and its point are figures that somebody measured, and none that it names is outside."""
    known = {entry.id: entry.bytes for entry in measurements()}
    values = [known[name] for name in row.measurements]
    assert row.source
    assert row.low <= row.point <= row.high
    assert (min(values), max(values)) == (row.low, row.high)
    assert row.point in values


@pytest.mark.parametrize("kind", overheads())
def test_rows_are_ordered_by_ranks(kind: str):
    assert all(left.ranks < right.ranks for left, right in pairwise(overheads()[kind]))


def test_the_row_that_holds_for_a_number_of_ranks():
    assert nccl(1) == nccl(2) == overhead("nccl", 2)
    assert nccl(3) == nccl(4) != nccl(5)
    assert nccl(5) == nccl(1024)
    assert nccl(8).low == 1_138_166_333 - 547_608_330  # 1.06 GiB on 8 H100 less the context there, NVIDIA/nccl#1685


def test_what_is_known_of_a_blas_workspace():
    sizes = {row.bytes for row in measurements("blas_workspace")}
    assert sizes >= {8519680, 32 * MIB, 128 * MIB, 1024 * KIB}
