"""Readings of a run: predicted from its paths, or skipped with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import structs

from vramcast.bench import components, inference
from vramcast.bench.jobs import Skip
from vramcast.bench.method import FORMULA, Method
from vramcast.bench.reading import Reading
from vramcast.bench.rows import Row
from vramcast.bench.training import Training
from vramcast.errors import Refused


def read_run(row: Row, method: Method) -> Iterator[Reading]:
    """Every reading of a run, in its order."""
    try:
        predict = _predictor(row, method)
    except Skip as skip:
        predict = _refusing(skip)
    for reading in row.readings or ():
        known = _known(row, reading, method)
        try:
            _ask(row, reading, known)
            yield predict(known, reading)
        except Skip as skip:
            yield structs.replace(known, skipped_reason=str(skip))
        except Refused as refused:
            facts = "; ".join(mistake.fact for mistake in refused.mistakes)
            yield structs.replace(known, skipped_reason=f"refused: {facts}")


def _known(row: Row, reading: Mapping[str, Any], method: Method) -> Reading:
    return Reading(
        id=row.id,
        workload=f"{_workload(row)}, packed base" if _packed(row) else _workload(row),
        stack=row.stack,
        tuning=row.tuning,
        quantity=str(reading.get("quantity", "")),
        phase=reading.get("phase"),
        at=reading.get("at"),
        unit=str(reading.get("unit") or ""),
        score=str(reading.get("score", "")),
        measured=reading.get("value"),
        inferred=bool(reading.get("inferred")),
        gold=row.gold,
        confidence=row.confidence,
        known_reason=reading.get("known_reason" if method is FORMULA or row.component else "trace_reason"),
    )


def _ask(row: Row, reading: Mapping[str, Any], known: Reading) -> None:
    """Refuse what is not to be predicted at all."""
    if known.score == "context":
        raise Skip("context: shown beside, not scored")
    reason = reading.get("skip") or row.skip
    if reason:
        raise Skip(reason)


def _predictor(row: Row, method: Method) -> Callable[[Reading, Mapping[str, Any]], Reading]:
    component = row.component or components.component_of(row.fields)
    if component is not None:
        return lambda known, reading: components.predict(component, known, method)
    if _workload(row) == "training":
        run = Training(row, method.phases)
        return lambda known, reading: run.predict(known, reading.get("capacity_bytes"))
    return lambda known, reading: inference.predict(row, known)


def _refusing(skip: Skip) -> Callable[[Reading, Mapping[str, Any]], Reading]:
    def predict(known: Reading, reading: Mapping[str, Any]) -> Reading:
        raise skip

    return predict


def _workload(row: Row) -> str:
    """inference, training (which rows of reinforcement learning are too), or what a row calls itself."""
    said = str(row.fields.get("workload") or "")
    asked = row.job.get("algorithm") == "inference" if row.job is not None else said.startswith("inference")
    return "inference" if asked else "training"


def _packed(row: Row) -> bool:
    """Training on packed weights: summed up apart, because how they were loaded is seen in every reading."""
    kind = (row.job or {}).get("quant.kind", "none")
    return _workload(row) == "training" and (row.tuning == "qlora" or kind != "none")
