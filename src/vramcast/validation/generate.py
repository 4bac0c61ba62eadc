"""What PyTorch's counter shows while Transformers generates, by the paths of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from vramcast.estimate import forecast
from vramcast.types.job import Fact, Origin, Understanding, check_value
from vramcast.types.paths import Value
from vramcast.types.result import Forecast, PhaseBytes

Counter: TypeAlias = Literal["peak", "current"]
"""`torch.cuda.max_memory_allocated` over the run, or `memory_allocated` at its end, between two steps"""
_WITHIN_A_STEP = ("activations.block", "kv_cache.grow")


def allocated(job: Mapping[str, Value], counter: Counter) -> int:
    """Bytes on the counter.

    Raises:
        Refused: what the forecast does not know.
    """
    origin = Origin("row")
    facts = [Fact(path, check_value(path, value, origin), origin) for path, value in job.items()]
    answer = forecast(Understanding(facts), cards=False)
    if counter == "current":
        return _between_steps(answer)
    return max(process.allocated_bytes for phase in _phases(answer) for process in phase.processes)


def _between_steps(answer: Forecast) -> int:
    """The last step's tensors are gone, the cache is whole."""
    decode = next(phase for phase in _phases(answer) if phase.instant == "decode")
    return sum(term.bytes for term in decode.terms if term.counter == "allocated" and term.name not in _WITHIN_A_STEP)


def _phases(answer: Forecast) -> list[PhaseBytes]:
    return [phase for group in answer.groups for phase in group.phases]
