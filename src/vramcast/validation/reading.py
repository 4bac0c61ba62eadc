"""The answer of `bench`: one entry a reading, and a summary by quantity. JSON schema 1."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from vramcast.types.result import SCHEMA


class Skip(Exception):
    """Why a reading is not predicted."""


class Reading(Struct, frozen=True, kw_only=True):
    """One measured value beside the predicted one. Bytes, or the unit that it names; parameters have unit 1."""

    id: str
    workload: str
    """models, inference or training: what limits and summaries are by, beside the quantity"""
    stack: str
    tuning: str | None
    quantity: str
    phase: str | None = None
    at: Any = None
    unit: str
    score: str
    measured: Any
    predicted: int | bool | None = None
    """a verdict's is true or false; a range has none"""
    low: int | None = None
    high: int | None = None
    right: bool | None = None
    inferred: bool = False
    """the source does not say it: it follows from figures that are missing. Summed up apart"""
    gold: bool = False
    confidence: str | None = None
    skipped_reason: str | None = None
    known_reason: str | None = None
    """why the two differ, where that was found out: such a reading breaks no limit"""

    @property
    def group(self) -> tuple[str, str]:
        """What it is summed up with: workload and quantity."""
        return self.workload, f"{self.quantity} (inferred)" if self.inferred else self.quantity

    @property
    def error(self) -> float | None:
        """Relative; None where no number was predicted, or another score is asked."""
        if self.predicted is None or self.skipped_reason or self.score != "relative" or not self.measured:
            return None
        return self.predicted / self.measured - 1

    @property
    def inside(self) -> bool | None:
        """Whether the measured number lies in the range of the prediction; None where it has no width, or no number was
        asked."""
        if self.error is None or self.low is None or self.high is None or self.low == self.high:
            return None
        return self.low <= self.measured <= self.high


class Limit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the readings of a quantity must stay within, relative. Limits only tighten."""

    median: float | None = None
    worst: float | None = None
    right: float | None = None
    """least share of verdicts and ranges that are right"""
    covered: float | None = None
    """least share of readings inside the printed range"""


class Summary(Struct, frozen=True, kw_only=True):
    """Readings of one quantity: exact + wrong + skipped = readings. A verdict or range that is right is exact."""

    workload: str
    quantity: str
    readings: int
    exact: int
    wrong: int
    skipped: int
    median_error: float | None
    """of the absolute relative errors"""
    worst_error: float | None
    covered: float | None = None
    """share of the numbers compared that lie in the range that `check` prints; None where nothing has a range"""
    limit: Limit | None = None
    holds: bool = True
    """within its limit; without one, parameters must be exact"""


class Bench(Struct, frozen=True, kw_only=True):
    """All readings, and their summary."""

    schema: int = SCHEMA
    rows: list[Reading]
    summary: list[Summary]

    @property
    def holds(self) -> bool:
        return all(summary.holds for summary in self.summary)


def is_exact(reading: Reading) -> bool:
    """The predicted value is the measured one, to the last digit; or the verdict, bound or range is right."""
    return reading.predicted == reading.measured if reading.right is None else reading.right
