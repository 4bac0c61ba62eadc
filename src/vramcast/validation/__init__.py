"""Predicted beside measured: every reading of the rows of files, and what the package says about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from vramcast.errors import Mistakes
from vramcast.validation.catalogue import read_model
from vramcast.validation.reading import Bench, Limit, Reading, Summary, is_exact
from vramcast.validation.rows import Limits, Row, catalogue_rows, file_rows, files_of, limits_of
from vramcast.validation.runs import read_run
from vramcast.validation.training import Phases, phases_of

__all__ = ["Bench", "Limit", "Reading", "Summary", "bench", "is_exact"]

_EXACT = "params"
"""the quantity that must be exact where no limit is given"""


def bench(paths: Sequence[str], phases: Phases = phases_of) -> Bench:
    """Compare all readings of files and folders; of the package's own catalogue if there are none.

    A file has one JSON object a line: a model in the catalogue's format (`id`, `params_exact`, `config`), or a run with
    `readings`. Every reading is answered: predicted, or skipped with the reason. A folder means its `*.jsonl` files,
    and its `limits.json` what the formulas must stay within. `phases` predicts training runs: another method than
    the formulas has no limits here.

    Raises:
        Refused: a file that cannot be read, or has no row; of another one, lines that are no rows are skipped readings.
    """
    rows = _all_rows(paths) if paths else catalogue_rows()
    readings = [reading for row in rows for reading in _readings(row, phases)]
    return Bench(rows=readings, summary=list(_summaries(readings, limits_of(paths) if phases is phases_of else {})))


def _all_rows(paths: Sequence[str]) -> list[Row]:
    mistakes = Mistakes()
    rows: list[Row] = []
    for path in paths:
        with mistakes.collect():
            for file in files_of([path]):
                with mistakes.collect():
                    rows += file_rows(file)
    mistakes.done()
    return rows


def _readings(row: Row, phases: Phases) -> Iterable[Reading]:
    if row.is_none:
        return [_no_row(row)]
    return [read_model(row)] if row.readings is None else read_run(row, phases)


def _no_row(row: Row) -> Reading:
    """A line that could not be read: nothing is compared, and the count of skipped readings has it."""
    return Reading(
        id=row.where, workload="rows", stack=row.stack, tuning=None, quantity="row", unit="1", score="context",
        measured=None, skipped_reason=row.skip,
    )  # fmt: skip


def _summaries(readings: Sequence[Reading], limits: Limits) -> Iterable[Summary]:
    limited = [(workload, quantity) for workload, found in limits.items() for quantity in found]
    for group in dict.fromkeys([*(one.group for one in readings), *limited]):
        workload, quantity = group
        found = [one for one in readings if one.group == group]
        yield _summary(workload, quantity, found, limits.get(workload, {}).get(quantity))


def _summary(workload: str, quantity: str, found: Sequence[Reading], limit: Limit | None) -> Summary:
    compared = [reading for reading in found if not reading.skipped_reason]
    exact = sum(is_exact(reading) for reading in compared)
    errors = [abs(reading.error) for reading in compared if reading.error is not None]
    wrong = len(compared) - exact
    return Summary(
        workload=workload,
        quantity=quantity,
        readings=len(found),
        exact=exact,
        wrong=wrong,
        skipped=len(found) - len(compared),
        median_error=median(errors) if errors else None,
        worst_error=max(errors, default=None),
        covered=_covered(compared),
        limit=limit,
        holds=_holds(compared, limit) if limit is not None else quantity != _EXACT or not wrong,
    )


def _covered(compared: Sequence[Reading]) -> float | None:
    """The share of readings in their ranges."""
    judged = [one.inside for one in compared if one.inside is not None]
    return sum(judged) / len(judged) if judged else None


def _holds(compared: Sequence[Reading], limit: Limit) -> bool:
    """Nothing to compare breaks a limit. The worst is of readings whose disagreement is not explained."""
    errors = [abs(reading.error) for reading in compared if reading.error is not None]
    open_errors = [abs(one.error) for one in compared if one.error is not None and one.known_reason is None]
    judged = [one.right for one in compared if one.right is not None]
    within = limit.median is None or (bool(errors) and median(errors) <= limit.median)
    within &= limit.covered is None or (_covered(compared) or 0) >= limit.covered
    within &= limit.right is None or (bool(judged) and sum(judged) / len(judged) >= limit.right)
    return within and (limit.worst is None or (bool(errors) and max(open_errors, default=0) <= limit.worst))
