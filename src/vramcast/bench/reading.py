"""The answer of `bench`: one entry a reading, and a summary by quantity. JSON schema 1."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from vramcast.types.result import SCHEMA


class Reading(Struct, frozen=True, kw_only=True):
    """One measured value beside the predicted one. Bytes, or the unit that it names; parameters have unit 1."""

    id: str
    stack: str
    tuning: str | None
    quantity: str
    phase: str | None = None
    at: Any = None
    unit: str
    score: str
    measured: Any
    predicted: int | None = None
    low: int | None = None
    high: int | None = None
    right: bool | None = None
    gold: bool = False
    confidence: str | None = None
    skipped_reason: str | None = None
    known_reason: str | None = None
    """why the two differ, where that was found out: such a reading breaks no limit"""

    @property
    def error(self) -> float | None:
        """Relative; None where nothing was predicted."""
        compared = self.predicted is not None and not self.skipped_reason and bool(self.measured)
        return self.predicted / self.measured - 1 if compared and self.predicted is not None else None


class Limit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the readings of a quantity must stay within, relative. Limits only tighten."""

    median: float | None = None
    worst: float | None = None


class Summary(Struct, frozen=True, kw_only=True):
    """Readings of one quantity: exact + wrong + skipped = readings."""

    quantity: str
    readings: int
    exact: int
    wrong: int
    skipped: int
    median_error: float | None
    """of the absolute relative errors"""
    worst_error: float | None
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
    """The predicted value is the measured one, to the last digit."""
    return reading.predicted == reading.measured
