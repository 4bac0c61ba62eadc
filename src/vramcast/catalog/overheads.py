"""Measured memory that no tensor explains: communication buffers and what an engine holds, as intervals with
sources."""

from __future__ import annotations

import os
from functools import cache

import msgspec


class Overhead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes (or, for rates, millionths) from `ranks` ranks on: low <= point <= high."""

    ranks: int
    low: int
    point: int
    high: int
    source: str


@cache
def overheads() -> dict[str, tuple[Overhead, ...]]:
    """Every kind of overhead with its rows, fewest ranks first."""
    with open(os.path.join(os.path.dirname(__file__), "overheads.json"), "rb") as file:
        return msgspec.json.decode(file.read(), type=dict[str, tuple[Overhead, ...]])


def overhead(kind: str, ranks: int) -> Overhead:
    """The row of a kind that holds for a number of ranks."""
    return [row for row in overheads()[kind] if row.ranks <= ranks][-1]


def nccl(ranks: int) -> Overhead:
    """NCCL's device memory of one communicator; `ranks` is at least 2."""
    return overhead("nccl", max(ranks, 2))
