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


class Summary(Struct, frozen=True, kw_only=True):
    """Readings of one quantity: exact + wrong + skipped = readings."""

    quantity: str
    readings: int
    exact: int
    wrong: int
    skipped: int


class Bench(Struct, frozen=True, kw_only=True):
    """All readings, and their summary."""

    schema: int = SCHEMA
    rows: list[Reading]
    summary: list[Summary]

    @property
    def holds(self) -> bool:
        """Nothing is wrong: what is counted has to be exact."""
        return all(summary.wrong == 0 for summary in self.summary)


def is_exact(reading: Reading) -> bool:
    """The predicted value is the measured one, to the last digit."""
    return reading.predicted == reading.measured
