"""Readings of an inference run: an engine's weights and cache, and PyTorch's counter under Transformers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import structs

from vramcast.bench.generate import allocated
from vramcast.bench.jobs import Skip, counter_of, job_of, weights_known
from vramcast.bench.reading import Reading
from vramcast.bench.rows import Row
from vramcast.bench.serving import served
from vramcast.memory.loaded import loaded_bytes
from vramcast.types.paths import Value

_DRAFT = re.compile(r"draft|eagle|medusa|(?<![a-z])mtp(?![a-z])|speculat", re.IGNORECASE)
"""`at` of a reading: of the model that proposes tokens, alone or with the one that the row names"""
Predict = Callable[[Mapping[str, Value], Mapping[str, Any]], int]


def _weights(job: Mapping[str, Value], row: Mapping[str, Any]) -> int:
    weights_known(row)
    return loaded_bytes(served(job))


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


def predict(row: Row, reading: Reading) -> Reading:
    """The reading with what is predicted of it.

    Raises:
        Skip, Refused: why nothing is.
    """
    if _DRAFT.search(str(reading.at or "")):
        raise Skip("not modelled yet: what a draft model holds, of which the row does not say what it is")
    if reading.score == "interval":
        raise Skip(row.open_question)
    if reading.quantity not in PREDICTIONS:
        raise Skip("not modelled yet")
    job = row.job if row.job is not None else job_of(row.fields)
    value = PREDICTIONS[reading.quantity](job, row.fields)
    return structs.replace(reading, predicted=value, low=value, high=value)
