"""Predicted beside measured: every reading of the rows of a file, and what the package says about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vramcast.bench.catalogue import read_model
from vramcast.bench.reading import Bench, Reading, Summary, is_exact
from vramcast.bench.rows import Row, catalogue_rows, file_rows

__all__ = ["Bench", "Reading", "Summary", "bench", "is_exact"]

_NOT_YET = "runs are not compared yet, only the parameters of models"


def bench(files: Sequence[str]) -> Bench:
    """Compare all readings of the files; of the package's own catalogue if there are none.

    A file has one JSON object a line: a model in the catalogue's format (`id`, `params_exact`, `config`), or a run with
    `readings`. Every reading is answered: predicted, or skipped with the reason.

    Raises:
        Refused: a file that cannot be read, with every line that is no row.
    """
    rows = [row for file in files for row in file_rows(file)] if files else catalogue_rows()
    readings = [reading for row in rows for reading in _readings(row)]
    return Bench(rows=readings, summary=list(_summaries(readings)))


def _readings(row: Row) -> Iterable[Reading]:
    if row.readings is None:
        yield read_model(row)
        return
    for reading in row.readings:
        yield Reading(
            id=row.id,
            stack=row.stack,
            tuning=row.tuning,
            quantity=str(reading.get("quantity", "")),
            phase=reading.get("phase"),
            at=reading.get("at"),
            unit=str(reading.get("unit", "")),
            score=str(reading.get("score", "")),
            measured=reading.get("value"),
            gold=row.gold,
            confidence=row.confidence,
            skipped_reason=_NOT_YET,
        )


def _summaries(readings: Sequence[Reading]) -> Iterable[Summary]:
    for quantity in dict.fromkeys(reading.quantity for reading in readings):
        found = [reading for reading in readings if reading.quantity == quantity]
        compared = [reading for reading in found if not reading.skipped_reason]
        exact = sum(is_exact(reading) for reading in compared)
        yield Summary(
            quantity=quantity,
            readings=len(found),
            exact=exact,
            wrong=len(compared) - exact,
            skipped=len(found) - len(compared),
        )
