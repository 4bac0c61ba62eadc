"""A forecast as markdown, for an issue or a pull request: nothing is cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vramcast.estimate import peak_phase
from vramcast.report.screen import outcome_of, said_lines
from vramcast.report.why import head, verdict_line
from vramcast.report.words import edits, owned, value
from vramcast.types.result import Forecast, PhaseBytes
from vramcast.units import gib


def show_markdown(answer: Forecast) -> str:
    """Verdict and why, every term at the peak, every instant, all that was assumed or not understood, all levers."""
    cards = [f"`{card.gpu}`: {card.verdict.replace('_', ' ')}" for card in answer.cards]
    blocks: list[Iterable[str]] = [
        [f"**{verdict_line(answer)}**"],
        (f"- {label}: {text}" for label, text in head(answer, full=True)),
        _terms(peak_phase(answer), answer.peak.bytes),
        _instants(answer),
        _list("Cards", cards),
        *(_list(title.capitalize(), lines) for title, lines in said_lines(answer)),
        _list("Assumed", (f"`{item.path}={value(item.value)}`: {item.origin}" for item in answer.assumptions)),
        _list("Levers", (f"`{edits(lever)}` ({lever.price}): {gib(lever.peak_bytes)}, saves {gib(lever.saves_bytes)}"
                         + (f", {outcome_of(lever)}" if lever.verdict else "") for lever in answer.levers)),
    ]  # fmt: skip
    return "\n\n".join("\n".join(lines) for block in blocks if (lines := list(block)))


def _terms(phase: PhaseBytes, need: int) -> Iterator[str]:
    """What the peak needs beyond the phase is the rest of one sequence in the engine."""
    yield "| term | GiB | bytes | range |"
    yield "|---|---:|---:|---|"
    for term in phase.terms:
        span = "" if term.low_bytes == term.high_bytes else f"{gib(term.low_bytes)} to {gib(term.high_bytes)}"
        yield f"| `{owned(term)}` | {gib(term.bytes)} | {term.bytes:,} | {span} |"
    if need > phase.bytes:
        yield f"| `engine.kv`, one sequence | {gib(need - phase.bytes)} | {need - phase.bytes:,} | |"
    yield f"| total | {gib(need)} | {need:,} | |"


def _instants(answer: Forecast) -> Iterator[str]:
    yield "| phase | GiB | at worst |"
    yield "|---|---:|---:|"
    for phase in (phase for group in answer.groups for phase in group.phases):
        when = " (first step)" if phase.when == "first" else ""
        yield f"| {phase.name} · {phase.instant}{when} | {gib(phase.bytes)} | {gib(phase.high_bytes)} |"


def _list(title: str, lines: Iterable[str]) -> Iterator[str]:
    found = list(lines)
    if found:
        yield f"{title}:"
        yield ""
    yield from (f"- {line}" for line in found)
