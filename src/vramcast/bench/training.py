"""Readings of a training run: predicted from the instants of its forecast, or skipped with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import structs

from vramcast.bench.counters import VERDICTS, Range, allocated, capacity_of, device, read, worst
from vramcast.bench.jobs import Skip
from vramcast.bench.method import Phases
from vramcast.bench.ranges import between_of
from vramcast.bench.reading import Reading
from vramcast.bench.rows import Row
from vramcast.bench.stacks import facts_of
from vramcast.errors import Refused
from vramcast.types.job import Fact, Origin, Understanding, check_value
from vramcast.types.paths import Value
from vramcast.types.result import PhaseBytes

Instants: TypeAlias = tuple[Mapping[str, Value], Sequence[PhaseBytes]]
"""the paths of a job, and what it shows"""


_AT_REST = {"static", "allocated_after_load"}
_ONLY_AT_WORK = {"fused_kernels", "loss", "recompute", "attention", "offload.activations"}
"""paths that change nothing of what stays between two steps"""
_SAME = {("peft", "static"): "allocated_after_step"}
"""(stack, quantity) -> the quantity that it is: PEFT's comparison reads memory_allocated after optimizer.step()"""


class Training:
    """A run, asked once for all readings that the same instants answer."""

    def __init__(self, row: Row, phases: Phases) -> None:
        self.row = row
        self.phases = phases
        self.found: dict[str, Instants | Refused] = {}
        self.facts: list[Fact] = []
        self.fault: Skip | Refused | None = None
        try:
            self.facts = _facts(row)
        except (Skip, Refused) as fault:
            self.fault = fault

    def predict(self, reading: Reading, capacity: object) -> Reading:
        """The reading with what is predicted of it. `capacity`: what the row says of the card.

        Raises:
            Skip, Refused: why nothing is.
        """
        if self.fault is not None:
            raise self.fault
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
        between = self.row.between if self.row.job is not None else between_of(self.row.fields)
        if not between:
            raise Skip(self.row.open_question)
        ranges = [self._range(reading, edit) for edit in between]
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


def _facts(row: Row) -> list[Fact]:
    if row.job is None:
        return facts_of(row.fields)
    origin = Origin("row")
    return [Fact(path, value, origin) for path, value in row.job.items()]
