"""Readings of a run: predicted from its paths, or skipped with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import structs

from vramcast.bench.generate import allocated
from vramcast.bench.jobs import Skip, counter_of, job_of, weights_known
from vramcast.bench.reading import Reading
from vramcast.bench.rows import Row
from vramcast.bench.serving import served
from vramcast.errors import Refused
from vramcast.types.paths import Value

Predict = Callable[[Mapping[str, Value], Mapping[str, Any]], int]


def _weights(job: Mapping[str, Value], row: Mapping[str, Any]) -> int:
    weights_known(row)
    return served(job).weights()


def _kv_bytes_per_token(job: Mapping[str, Value], row: Mapping[str, Any]) -> int:
    return served(job).kv_bytes_per_token()


def _allocated_peak(job: Mapping[str, Value], row: Mapping[str, Any]) -> int:
    if job.get("engine.kind") != "hf":
        raise Skip("not modelled yet")
    return allocated(job, row.get("counter") or counter_of(row))


PREDICTIONS: dict[str, Predict] = {
    "weights": _weights,
    "kv_bytes_per_token": _kv_bytes_per_token,
    "allocated_peak": _allocated_peak,
}
"""quantity -> its prediction from the paths of an inference run"""


def read_run(row: Row) -> Iterator[Reading]:
    """Every reading of a run, in its order."""
    for reading in row.readings or ():
        known = _known(row, reading)
        try:
            value = _predicted(row, known, reading.get("skip") or row.skip)
        except Skip as skip:
            yield structs.replace(known, skipped_reason=str(skip))
        except Refused as refused:
            facts = "; ".join(mistake.fact for mistake in refused.mistakes)
            yield structs.replace(known, skipped_reason=f"refused: {facts}")
        else:
            yield structs.replace(known, predicted=value, low=value, high=value)


def _known(row: Row, reading: Mapping[str, Any]) -> Reading:
    return Reading(
        id=row.id,
        stack=row.stack,
        tuning=row.tuning,
        quantity=str(reading.get("quantity", "")),
        phase=reading.get("phase"),
        at=reading.get("at"),
        unit=str(reading.get("unit") or ""),
        score=str(reading.get("score", "")),
        measured=reading.get("value"),
        gold=row.gold,
        confidence=row.confidence,
        known_reason=reading.get("known_reason"),
    )


def _predicted(row: Row, reading: Reading, skip: str | None) -> int:
    if skip:
        raise Skip(skip)
    if reading.score == "context":
        raise Skip("context: shown beside, not scored")
    if reading.score == "interval":
        raise Skip("the source leaves out what the value depends on: " + _unknown(row))
    predict = PREDICTIONS.get(reading.quantity)
    if predict is None or not _is_inference(row):
        raise Skip("not modelled yet")
    job = row.job if row.job is not None else job_of(row.fields)
    return predict(job, row.fields)


def _unknown(row: Row) -> str:
    return ", ".join(map(str, row.fields.get("unknown") or ())) or "not said what"


def _is_inference(row: Row) -> bool:
    if row.job is not None:
        return row.job.get("algorithm") == "inference"
    return str(row.fields.get("workload") or "").startswith("inference")
