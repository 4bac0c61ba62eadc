"""What predicts a training run: the formulas, or a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from vramcast.estimate import forecast
from vramcast.trace.component import Component
from vramcast.types.job import Understanding
from vramcast.types.result import PhaseBytes

Phases: TypeAlias = Callable[[Understanding], list[PhaseBytes]]


class Method(NamedTuple):
    """A method by what it can be asked."""

    phases: Phases
    """every instant of the first step and of a later one, on one of a job's GPUs: all that a reading is made of"""
    component: Callable[[Component], int] | None = None
    """bytes that PyTorch's counter shows at most while a single operator runs"""


def phases_of(job: Understanding) -> list[PhaseBytes]:
    """The instants by the formulas.

    Raises:
        Refused: what the forecast does not know.
    """
    return forecast(job, cards=False).groups[0].phases


FORMULA = Method(phases_of)
