"""Readings of a training run: predicted from the instants of its forecast, or skipped with the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import structs

from vramcast.errors import Refused
from vramcast.estimate import forecast
from vramcast.types.job import Fact, Origin, Understanding, check_value
from vramcast.types.paths import Value
from vramcast.types.result import PhaseBytes
from vramcast.validation.counters import VERDICTS, Range, allocated, capacity_of, device, read, worst
from vramcast.validation.reading import Reading, Skip
from vramcast.validation.rows import Row

Phases: TypeAlias = Callable[[Understanding], list[PhaseBytes]]
"""a method: a job -> every instant of the first step and of a later one, on one of its GPUs"""
Instants: TypeAlias = tuple[Mapping[str, Value], Sequence[PhaseBytes]]
"""the paths of a job, and what it shows"""

_AT_REST = {"static", "allocated_after_load"}
_ONLY_AT_WORK = {"fused_kernels", "loss", "recompute", "attention", "offload.activations"}
"""paths that change nothing of what stays between two steps"""
_SAME = {("peft", "static"): "allocated_after_step"}
"""(stack, quantity) -> the quantity that it is: PEFT's comparison reads memory_allocated after optimizer.step()"""


def phases_of(job: Understanding) -> list[PhaseBytes]:
    """The instants by the formulas.

    Raises:
        Refused: what the forecast does not know.
    """
    return forecast(job, cards=False).groups[0].phases


class Training:
    """A run, asked once for all readings that the same instants answer."""

    def __init__(self, row: Row, phases: Phases) -> None:
        self.row = row
        self.phases = phases
        self.found: dict[str, Instants | Refused] = {}
        origin = Origin("row")
        self.facts = [Fact(path, value, origin) for path, value in (row.job or {}).items()]

    def predict(self, reading: Reading, capacity: object) -> Reading:
        """The reading with what is predicted of it. `capacity`: what the row says of the card.

        Raises:
            Skip, Refused: why nothing is.
        """
        if reading.score == "interval":
            return self._within(reading)
        if reading.quantity in VERDICTS:
            return self._verdict(reading, capacity)
        found = self._range(reading, {})
        known = structs.replace(reading, predicted=found.point, low=found.low, high=found.high)
        if reading.score != "bound":
            return known
        return structs.replace(known, right=found.point <= _measured(reading))

    def _within(self, reading: Reading) -> Reading:
        """The range over what the source leaves open."""
        if not self.row.between:
            raise Skip(self.row.open_question)
        ranges = [self._range(reading, edit) for edit in self.row.between]
        low, high = min(one.low for one in ranges), max(one.high for one in ranges)
        return structs.replace(reading, low=low, high=high, right=low <= _measured(reading) <= high)

    def _verdict(self, reading: Reading, stated: object) -> Reading:
        job, phases = self._instants({})
        found, capacity = worst(device, phases), capacity_of(job, stated)
        says = (found.point > capacity) == VERDICTS[reading.quantity]
        return structs.replace(
            reading, predicted=says, low=found.low, high=found.high, right=says == bool(reading.measured)
        )

    def _range(self, reading: Reading, edit: Mapping[str, Any]) -> Range:
        quantity = _SAME.get((self.row.stack, reading.quantity), reading.quantity)
        job, phases = self._instants(edit, rests=quantity in _AT_REST)
        if reading.score == "interval" and self._unnamed:
            return Range(worst(allocated, phases).low, 0, worst(device, phases).high)
        return read(quantity, reading.phase, phases, job)

    @property
    def _unnamed(self) -> bool:
        """The source does not say which counter it read: PyTorch's allocated bytes, the driver's, or one between."""
        return any(note.startswith("quantity") for note in self.row.unknown)

    def _instants(self, edit: Mapping[str, Any], *, rests: bool = False) -> Instants:
        """What the job shows with an edit; at rest also where only its kernels are not modelled."""
        try:
            return self._ask(edit, self.facts)
        except Refused:
            if not rests:
                raise
            return self._ask(edit, [fact for fact in self.facts if fact.path not in _ONLY_AT_WORK])

    def _ask(self, edit: Mapping[str, Any], facts: Sequence[Fact]) -> Instants:
        origin = Origin("what the source leaves open")
        edits = [Fact(path, check_value(path, value, origin), origin) for path, value in edit.items()]
        said = Understanding([*edits, *facts])
        job = said.job().values
        key = repr(job)
        if key not in self.found:
            try:
                self.found[key] = (job, self.phases(said))
            except Refused as refused:
                self.found[key] = refused
        found = self.found[key]
        if isinstance(found, Refused):
            raise found
        return found


def _measured(reading: Reading) -> float:
    if not isinstance(reading.measured, (int, float)):
        raise Skip("nothing was measured")
    return reading.measured
