"""Measured memory that no tensor explains: contexts, communication buffers, what an engine holds. The intervals that
formulas use, and beside them every measurement, with sources."""

from __future__ import annotations

import os
from functools import cache
from typing import Literal

import msgspec

Kind = Literal[
    "cuda_context", "nccl", "dist_init_total", "vllm_non_torch", "cuda_graphs", "rocm_context_rccl", "blas_workspace",
    "driver_reserve", "idle_reserve", "engine_runtime", "engine_graphs", "engine_sampler",
]  # fmt: skip


class Overhead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes (or, for rates, millionths) from `ranks` ranks on: low <= point <= high."""

    ranks: int
    low: int
    point: int
    high: int
    source: str
    measurements: tuple[str, ...]
    """ids of those that the interval covers; its ends and its point are among them"""


class Measurement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One published figure. Text that is empty was not stated."""

    id: str
    kind: Kind
    gpu: str = ""
    topology: str = ""
    """ranks, processes and how they are connected"""
    driver: str = ""
    cuda: str = ""
    software: str = ""
    bytes: int
    """millionths of a byte where the kind is a rate (`engine_sampler`)"""
    stated: str
    """the figure as its source has it; GB there are read as GiB"""
    basis: Literal["measured", "derived from two measured values", "source code", "source code comment",
                   "maintainer statement"]  # fmt: skip
    confidence: Literal["high", "medium", "low"]
    source: str
    note: str = ""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    intervals: dict[str, tuple[Overhead, ...]]
    measurements: tuple[Measurement, ...]


@cache
def _file() -> _File:
    with open(os.path.join(os.path.dirname(__file__), "overheads.json"), "rb") as file:
        return msgspec.json.decode(file.read(), type=_File)


def overheads() -> dict[str, tuple[Overhead, ...]]:
    """Every kind of overhead that formulas read, with its rows, fewest ranks first."""
    return _file().intervals


def measurements(kind: Kind | None = None) -> tuple[Measurement, ...]:
    """Every measurement, or those of one kind, in the order of the file."""
    return tuple(row for row in _file().measurements if kind is None or row.kind == kind)


def overhead(kind: str, ranks: int) -> Overhead:
    """The row of a kind that holds for a number of ranks."""
    return [row for row in overheads()[kind] if row.ranks <= ranks][-1]


def nccl(ranks: int) -> Overhead:
    """NCCL's device memory of one communicator; `ranks` is at least 2."""
    return overhead("nccl", max(ranks, 2))
