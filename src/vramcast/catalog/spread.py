"""How much more memory PyTorch reserves than it has allocated, as runs on real cards show it, by kind of job.

`python bench/spread.py` makes the file from the measured runs; nothing in it moves a point value.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Literal

import msgspec


class Spread(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of job. Shares are millionths of what `of` names."""

    kind: str
    of: Literal["moving", "allocated"]
    """what comes and goes at the peak: the rest was placed once, and splits nothing. Or all that is allocated, where
    gathers and reductions of all weights run on streams of their own, whose blocks nobody else may take"""
    readings: int
    sources: int
    """projects that measured: with one of them nothing could be left out"""
    high: int
    """the ninth decile, of the sources that show most when any one is left out"""
    source: str
    median: int | None = None
    worst: int | None = None


@cache
def spreads() -> dict[str, Spread]:
    """Kind of job -> its spread, in the order of the file."""
    with open(os.path.join(os.path.dirname(__file__), "spread.json"), "rb") as file:
        rows = msgspec.json.decode(file.read(), type=tuple[Spread, ...])
    return {row.kind: row for row in rows}


def kind_of(*, trains: bool, adapters: bool, packed: bool, gpus: int, expandable: bool) -> str:
    """The row that a job belongs to."""
    if expandable:
        return "expandable segments"
    if not trains:
        return "generation"
    count = "one GPU" if gpus == 1 else "several GPUs"
    return f"{count}, {'packed base' if packed else 'adapters' if adapters else 'all weights'}"
