"""Formulas and figures of the terms, read with named sizes."""

from __future__ import annotations

from msgspec import structs

from vramcast.estimate.resolve import Resolved
from vramcast.estimate.seats import Seats
from vramcast.estimate.timeline import moments, roles_of
from vramcast.memory.seat import Seat
from vramcast.memory.term import TERMS, explain
from vramcast.num import Named
from vramcast.types.result import PhaseBytes, TermBytes


class Texts:
    """The job read once more with named sizes."""

    def __init__(self, job: Resolved) -> None:
        self.moments = {(one.phase.name, one.instant.name, one.when): one for one in moments(job)}
        self.known: dict[tuple[str, ...], tuple[str, str]] = {}
        self.makers = {role.name: Seats(job, role, names=True) for role in roles_of(job)}
        self.seats: dict[tuple[str, ...], Seat] = {}

    def formula(self, phase: PhaseBytes, term: TermBytes) -> Named | None:
        """A term's bytes at an instant as a formula with its levels; None for a measured constant."""
        return explain(TERMS[term.name], self._seat(phase, term.role))

    def _seat(self, phase: PhaseBytes, role: str) -> Seat:
        """A role at an instant; its terms share the seat."""
        at = (phase.name, phase.instant, phase.when)
        if (role, *at) not in self.seats:
            self.seats[role, *at] = self.makers[role].seat(*self.moments[at])
        return self.seats[role, *at]

    def write(self, phase: PhaseBytes) -> PhaseBytes:
        """The phase with formula and figures on every term."""
        return structs.replace(phase, terms=[self._write(phase, term) for term in phase.terms])

    def _write(self, phase: PhaseBytes, term: TermBytes) -> TermBytes:
        if term.formula:  # a pool is sized from the card, and brings its own text
            return term
        formula, figures = self._text(phase, term)
        return structs.replace(term, formula=formula, figures=figures or f"{term.bytes:,}")

    def _text(self, phase: PhaseBytes, term: TermBytes) -> tuple[str, str]:
        """Formula and figures; a term of the same bytes at the same instant of another run reads the same."""
        key = (term.role, term.name, phase.name, phase.instant, str(term.bytes))
        if key not in self.known:
            text = self.formula(phase, term)
            self.known[key] = ("measured", "") if text is None else (text.formula, text.figures)
        return self.known[key]
