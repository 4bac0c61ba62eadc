"""A forecast as markdown, for an issue or a pull request."""

from __future__ import annotations

from vramcast.estimate import peak_phase
from vramcast.report.why import verdict_line
from vramcast.report.words import edits, moment, value
from vramcast.types.result import Forecast
from vramcast.units import gib


def show_markdown(answer: Forecast) -> str:
    """Verdict, terms at the peak, assumptions and the best lever."""
    phase = peak_phase(answer)
    lines = [f"**{verdict_line(answer)}**", "", f"Peak: {moment(phase, phase.name)}", "", "| term | GiB | bytes |",
             "|---|---:|---:|"]  # fmt: skip
    lines += [f"| `{term.name}` | {gib(term.bytes)} | {term.bytes:,} |" for term in phase.terms]
    lines += ["", "Assumed: " + "; ".join(f"`{item.path}={value(item.value)}`" for item in answer.assumptions)]
    if answer.levers:
        best = answer.levers[0]
        lines += ["", f"Change first: `{edits(best)}` (saves {gib(best.saves_bytes)}, {best.price})"]
    return "\n".join(lines)
