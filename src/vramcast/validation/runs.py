"""Readings of a run: predicted from its paths, or skipped with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import structs

from vramcast.errors import Refused
from vramcast.validation import inference
from vramcast.validation.reading import Reading, Skip
from vramcast.validation.rows import Row
from vramcast.validation.training import Phases, Training, phases_of


def read_run(row: Row, phases: Phases) -> Iterator[Reading]:
    """Every reading of a run, in its order."""
    run = Training(row, phases)
    for reading in row.readings or ():
        known = _known(row, reading, formulas=phases is phases_of)
        try:
            _ask(row, reading, known)
            training = _workload(row) == "training"
            yield run.predict(known, reading.get("capacity_bytes")) if training else inference.predict(row, known)
        except Skip as skip:
            yield structs.replace(known, skipped_reason=str(skip))
        except Refused as refused:
            facts = "; ".join(mistake.fact for mistake in refused.mistakes)
            yield structs.replace(known, skipped_reason=f"refused: {facts}")


def _known(row: Row, reading: Mapping[str, Any], *, formulas: bool) -> Reading:
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
        known_reason=reading.get("known_reason" if formulas or row.component else "trace_reason"),
    )


def _ask(row: Row, reading: Mapping[str, Any], known: Reading) -> None:
    """Refuse what is not to be predicted at all."""
    if known.score == "context":
        raise Skip("context: shown beside, not scored")
    reason = reading.get("skip") or row.skip
    if reason:
        raise Skip(reason)
    if row.component is not None:
        raise Skip("a single operator is run, not calculated: python -m tools.operators")
    if row.job is None:
        raise Skip("it has no job in our own paths: python -m tools.rows makes one of a published row")


def _workload(row: Row) -> str:
    """inference, training (which rows of reinforcement learning are too), or what a row calls itself."""
    said = str(row.fields.get("workload") or "")
    asked = row.job.get("algorithm") == "inference" if row.job is not None else said.startswith("inference")
    return "inference" if asked else "training"


def _packed(row: Row) -> bool:
    """Training on packed weights: summed up apart, because how they were loaded is seen in every reading."""
    kind = (row.job or {}).get("quant.kind", "none")
    return _workload(row) == "training" and (row.tuning == "qlora" or kind != "none")
