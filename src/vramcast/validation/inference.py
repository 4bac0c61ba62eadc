"""Readings of an inference run: an engine's weights and cache, and PyTorch's counter under Transformers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from msgspec import structs

from vramcast.memory.loaded import loaded_bytes
from vramcast.types.paths import Value
from vramcast.validation.generate import Counter, allocated
from vramcast.validation.reading import Reading, Skip
from vramcast.validation.rows import Row
from vramcast.validation.serving import served

_DRAFT = re.compile(r"draft|eagle|medusa|(?<![a-z])mtp(?![a-z])|speculat", re.IGNORECASE)
"""`at` of a reading: of the model that proposes tokens, alone or with the one that the row names"""


def _allocated_peak(job: Mapping[str, Value], counter: Counter) -> int:
    if job.get("engine.kind") != "hf":
        raise Skip("not modelled yet")
    return allocated(job, counter)


PREDICTIONS: dict[str, Callable[[Mapping[str, Value], Counter], int]] = {
    "weights": lambda job, counter: loaded_bytes(served(job)),
    "kv_bytes_per_token": lambda job, counter: served(job).kv_bytes_per_token(),
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
    value = PREDICTIONS[reading.quantity](row.job or {}, row.counter)
    return structs.replace(reading, predicted=value, low=value, high=value)
