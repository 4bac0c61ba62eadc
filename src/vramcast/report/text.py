"""A forecast as text: the first screen, or with `full` everything that is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vramcast.estimate import peak_phase
from vramcast.report.bars import show_timeline
from vramcast.report.screen import cards, first_screen, labelled, lever_lines, nothing_helps, said_lines
from vramcast.report.why import head, verdict_line
from vramcast.report.words import Page, in_gib, owned, value, wrapped
from vramcast.types.result import Forecast, PhaseBytes
from vramcast.units import GIB

_PLACES = 3


def show(answer: Forecast, *, levers: bool = True, full: bool = False, page: Page | None = None) -> str:
    """The report of `check`; without levers where none were pulled."""
    page = page or Page()
    if not full:
        return first_screen(answer, page, levers=levers)
    blocks: list[Iterable[str]] = [
        wrapped(verdict_line(answer), page.width, ""),
        labelled(head(answer, full=True), page.width),
        _terms(peak_phase(answer), answer.peak.bytes),
        show_timeline(answer),
        _host(answer),
        cards(answer, page.width),
        *(_titled(title, lines, page.width) for title, lines in said_lines(answer)),
        _titled("assumed", (f"{item.path} = {value(item.value)}  ({item.origin})" for item in answer.assumptions),
                page.width),
        _levers(answer, page.width) if levers else (),
    ]  # fmt: skip
    return "\n\n".join("\n".join(lines) for block in blocks if (lines := list(block)))


def _terms(phase: PhaseBytes, need: int) -> Iterator[str]:
    """Every term to the byte; what the peak needs beyond the phase is the rest of one sequence in the engine."""
    rows = [(owned(term), term.bytes, _span(term.low_bytes, term.high_bytes)) for term in phase.terms]
    if need > phase.bytes:
        rows.append(("engine.kv, one sequence", need - phase.bytes, ""))
    yield f"{'what holds it at the peak':<30}{'GiB':>9}  {'bytes':>17}"
    cells = in_gib([size for _, size, _ in rows], need, _PLACES)
    for (name, size, span), cell in zip(rows, cells, strict=True):
        yield f"  {name:<28}{cell:>9}  {size:>17,}{span}"
    yield f"  {'total':<28}{round(need / GIB, _PLACES):>9,.3f}  {need:>17,}"


def _span(low: int, high: int) -> str:
    return "" if low == high else f"  {low / GIB:,.3f} to {high / GIB:,.3f}"


def _host(answer: Forecast) -> Iterator[str]:
    for node in answer.nodes:
        yield f"{'host memory of one machine':<30}{'GiB':>9}  {'bytes':>17}"
        for term, cell in zip(node.terms, in_gib([term.bytes for term in node.terms], node.host_bytes, _PLACES),
                              strict=True):  # fmt: skip
            yield f"  {owned(term):<28}{cell:>9}  {term.bytes:>17,}"


def _titled(title: str, lines: Iterable[str], width: int) -> Iterator[str]:
    found = list(lines)
    if found:
        yield title
    for line in found:
        yield from wrapped(line, width)


def _levers(answer: Forecast, width: int) -> Iterator[str]:
    if not answer.levers:
        yield from nothing_helps()
        return
    yield "change first" if answer.verdict in ("tight", "does_not_fit") else "what would lower it"
    yield from lever_lines(answer.levers, width)
