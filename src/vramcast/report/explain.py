"""Terms explained: every level of a formula with its figures, and the manual."""

from __future__ import annotations

from collections.abc import Iterator

from vramcast.estimate import Resolved
from vramcast.estimate.texts import Texts
from vramcast.memory.term import TERMS, Term
from vramcast.num import Named
from vramcast.report.words import moment
from vramcast.types.result import PhaseBytes, TermBytes
from vramcast.units import gib

_LINE = 60


def explain_phase(job: Resolved, phase: PhaseBytes, only: str | None = None) -> str:
    """All terms of a phase (or one) with formula and figures, and what each level is made of, once."""
    texts = Texts(job)
    seen: set[str] = set()
    lines = [f"{moment(phase, phase.name)}: {gib(phase.bytes)}"]
    for term in phase.terms:
        if only in (None, term.name):
            lines += ["", *_term(texts, phase, term, seen)]
    return "\n".join(lines)


def manual(name: str) -> str:
    """A term's page of the manual."""
    entry = TERMS[name]
    return "\n".join([entry.name, "", entry.manual, "", f"counter  {entry.counter}", f"basis    {entry.basis}",
                      f"source   {entry.source}"])  # fmt: skip


def _term(texts: Texts, phase: PhaseBytes, term: TermBytes, seen: set[str]) -> Iterator[str]:
    entry: Term = TERMS[term.name]
    yield f"{term.name}  {term.bytes:,} bytes ({gib(term.bytes)})"
    text = None if term.formula else texts.formula(phase, term)
    if term.formula:
        yield from _folded("= ", term.formula, "  ")
        yield from _folded("= ", term.figures, "  ")
    elif text is None:
        if term.low_bytes != term.high_bytes:
            yield f"  {term.low_bytes:,} to {term.high_bytes:,}"
    else:
        yield from _formula(text, "  ", seen)
    yield f"  source: {entry.source}"


def _formula(size: Named, indent: str, seen: set[str]) -> Iterator[str]:
    yield from _folded("= ", size.formula, indent)
    if size.figures != size.formula:
        yield from _folded("= ", size.figures, indent)
    for name, level in size.parts:
        if name not in seen and level.formula != name:
            seen.add(name)
            yield f"{indent}  {name} = {int(level):,}"
            yield from _formula(level, indent + "    ", seen)


def _folded(lead: str, text: str, indent: str) -> Iterator[str]:
    """A long sum broken at its plus signs."""
    pieces = text.split(" + ")
    line = ""
    for piece in pieces:
        joined = f"{line} + {piece}" if line else piece
        if len(joined) > _LINE and line:
            yield f"{indent}{lead}{line}"
            lead, line = "+ ", piece
        else:
            line = joined
    yield f"{indent}{lead}{line}"
