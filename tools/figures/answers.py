"""The figures that a document can ask of a job, as text.

    peak, rollout, training           the most of the whole job, or of these phases; GiB, or with a unit: `peak GB`
    logits at most                    the most that terms ever hold; several are joined with +
    weights at step GB                what they hold while the optimizer steps; also at peak, or in a phase of that name
    ... per-parameter, ... percent    bytes of a parameter, adapters in fp32 as a share of the parameters
    place, verdict, capacity, refusal where the peak stands, whether it fits, the card, why there is no answer
    fraction, gpus, tp                of a job that was settled
    pool, cache, need 16384           of its engine: the pool, its cache, and what so many tokens of cache need
    sum, sum training, static, fits   of the rules: a sum, the parts counted by parameters, whether they fit
    KV cache, optimizer+gradients     parts of the rules' largest sum
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from tools.figures.jobs import Job, asks_rules, exact, job, rules

from vramcast.catalog.models import model_config
from vramcast.errors import Refused
from vramcast.estimate import peak_phase
from vramcast.rules_of_thumb import ArticleForecast
from vramcast.rules_of_thumb.lines import DECIMAL, number
from vramcast.types.result import Forecast, PhaseBytes
from vramcast.units import GIB

_PHASES = {"training": ("forward", "loss", "backward", "step"), "rollout": ("engine.start", "generate", "sync")}
_UNITS = ("GB", "per-parameter", "percent")
_VERDICTS = {"fits": "fits", "tight": "tight", "does_not_fit": "does not fit", None: "no card"}
_COLUMN = re.compile(r"(?:\[([^]]*)] )?(.*): (\w+)")
_NUMBER = r"(?<![\d.,])\d[\d,]*(?:\.\d+)?"


class Shown(NamedTuple):
    """A figure as it must stand in the text, and the shape by which it is found there."""

    text: str
    shape: str


def shown(words: str, figures: str, names: Mapping[str, Job]) -> Iterator[Shown]:
    """The figures of a comment, in their order.

    Raises:
        Refused: a job without an answer, of which something else than `refusal` is asked.
    """
    for figure in (part.strip() for part in figures.split(";")):
        if figure == "refusal":
            yield Shown(_refusal(words, names), r"[\w.]+ = [^|;<]*? modelled yet")
        elif asks_rules(words):
            yield _of_rules(figure, rules(job(words, names)))
        else:
            yield _of_job(figure, job(words, names))


def _refusal(words: str, names: Mapping[str, Job]) -> str:
    try:
        exact(job(words, names))
    except Refused as refused:
        return "; ".join(mistake.fact for mistake in refused.mistakes)
    return "it has an answer"


def _of_rules(figure: str, answer: ArticleForecast) -> Shown:
    what, _, name = figure.partition(" ")
    if figure == "fits":
        return Shown("yes" if answer.fits else "no", r"\b(?:yes|no)\b")
    phases = {phase.name: phase for phase in answer.phases}
    phase = phases[name if what == "sum" and name else answer.peak_phase]
    if what == "sum":
        return _gb(phase.gb)
    wanted = figure.split("+")
    found = [term.gb for term in phase.terms
             if (figure == "static" and term.unit == DECIMAL) or (any(term.name.startswith(part) for part in wanted)
             and term.role == "policy")]  # fmt: skip
    if not found:
        raise ValueError(f"no part of the rules is called {figure!r}")
    return _gb(sum(found, Decimal(0)))


def _gb(amount: Decimal) -> Shown:
    text = f"{amount / 1000:.2f} TB" if amount >= 1000 else f"{amount:,} GB"
    return Shown(text, rf"{_NUMBER} [GT]B")


def _of_job(figure: str, asked: Job) -> Shown:
    whole, what = exact(asked), figure.split()[0]
    if what in _WORDS:
        return _WORDS[what](whole, asked)
    if what in _ENGINE:
        return _size(_ENGINE[what](whole, figure), "GiB")
    *named, unit = figure.split() if figure.endswith(_UNITS) else (*figure.split(), "GiB")
    terms, _, where = " ".join(named).partition(" at ")
    if not where:
        terms, where = "total", terms
    size = whole.peak.bytes if (terms, where) == ("total", "peak") else held(whole, terms, where)
    return _size(size, unit, asked)


_WORDS: dict[str, Callable[[Forecast, Job], Shown]] = {
    "place": lambda whole, asked: Shown(moment(peak_phase(whole)), r"[a-z.]+ · [a-z ]*[a-z]"),
    "verdict": lambda whole, asked: Shown(_VERDICTS[whole.verdict], r"does not fit|fits|tight"),
    "capacity": lambda whole, asked: _size(whole.peak.capacity_bytes or 0, "GiB"),
    "fraction": lambda whole, asked: Shown(asked["engine.fraction"], r"0\.\d+"),
    "gpus": lambda whole, asked: Shown(asked["gpus"], _NUMBER),
    "tp": lambda whole, asked: Shown(asked["engine.tp"], _NUMBER),
}
_ENGINE: dict[str, Callable[[Forecast, str], int]] = {
    "pool": lambda whole, figure: whole.groups[0].engines[0].pool_bytes,
    "cache": lambda whole, figure: whole.groups[0].engines[0].kv_bytes,
    "need": lambda whole, figure: int(figure.split()[1]) * whole.groups[0].engines[0].kv_bytes_per_token,
}


def moment(phase: PhaseBytes) -> str:
    """An instant in words."""
    return f"{phase.name} · {phase.instant}"


def held(whole: Forecast, terms: str, where: str) -> int:
    """Bytes of some terms, joined with +, at an instant."""
    wanted = terms.split("+")
    if where == "most":
        return max(_sum(phase, wanted) for phase in whole.groups[0].phases)
    return _sum(instant(whole, where), wanted)


def _sum(phase: PhaseBytes, wanted: list[str]) -> int:
    return phase.bytes if wanted == ["total"] else sum(term.bytes for term in phase.terms if term.name in wanted)


def instant(whole: Forecast, where: str) -> PhaseBytes:
    """The fullest instant of some phases; of `step`, the one of every later step."""
    if where == "peak":
        return peak_phase(whole)
    names = _PHASES.get(where, (where,))
    found = [phase for phase in whole.groups[0].phases
             if phase.name in names and (where != "step" or phase.when == "steady")]  # fmt: skip
    return max(found, key=lambda phase: phase.bytes)


def _size(size: int, unit: str, asked: Mapping[str, str] | None = None) -> Shown:
    if unit in ("GiB", "GB"):
        return Shown(f"{size / (GIB if unit == 'GiB' else 10**9):,.1f} {unit}", f"{_NUMBER} {unit}")
    params = model_config((asked or {})["model"]).params
    assert params is not None
    share = Fraction(size, params)
    return Shown(number(share if unit == "per-parameter" else 100 * share / 4), _NUMBER)


def terms_table(columns: str, names: Mapping[str, Job]) -> str:
    """Terms of some instants side by side, the largest first: `JOB: WHERE | [a title] JOB: WHERE`."""
    asked = [_COLUMN.fullmatch(column.strip()) for column in columns.split("|")]
    phases = [instant(exact(job(one[2], names)), one[3]) for one in asked if one]
    titles = [f"{one[1]}, {moment(phase)}" if one and one[1] else moment(phase)
              for one, phase in zip(asked, phases, strict=True)]  # fmt: skip
    sizes = [{(term.name, term.role): term.bytes for term in phase.terms} for phase in phases]
    order = sorted({key for found in sizes for key in found}, key=lambda key: -max(s.get(key, 0) for s in sizes))
    rows = [(f"`{name}` ({role})", *(f"{found.get((name, role), 0) / GIB:,.2f}" for found in sizes))
            for name, role in order]  # fmt: skip
    rows = [row for row in rows if set(row[1:]) != {"0.00"}]
    total = ("total", *(f"{phase.bytes / GIB:,.2f}" for phase in phases))
    lines = [f"| {' | '.join(row)} |" for row in (("term, GiB", *titles), *rows, total)]
    lines.insert(1, f"|---|{'---:|' * len(phases)}")
    return "\n".join(lines) + "\n"


def rules_table(words: str, names: Mapping[str, Job]) -> str:
    """The rules' largest sum, part by part."""
    answer = rules(job(words, names))
    phase = next(phase for phase in answer.phases if phase.name == answer.peak_phase)
    rows = [(term.name if term.role == "policy" else f"{term.name} ({term.role})", f"{term.gb:,}", str(term.rule))
            for term in phase.terms]  # fmt: skip
    lines = ["| part | GB | rule |", "|---|---:|---:|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join([*lines, f"| sum | {phase.gb:,} |  |"]) + "\n"

