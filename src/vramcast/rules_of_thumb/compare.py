"""Article beside exact, part by part, with the reason for each difference."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from msgspec import Struct

from vramcast import __version__
from vramcast.errors import Refused
from vramcast.estimate import Resolved, forecast, peak_phase, resolve
from vramcast.rules_of_thumb.answer import GENERATION, TRAINING, ArticleForecast, Sum, answer, sums_of
from vramcast.rules_of_thumb.lines import decimal, whole_bytes
from vramcast.rules_of_thumb.parts import PARTS, held, largest, part_of_line
from vramcast.rules_of_thumb.question import Question, question
from vramcast.rules_of_thumb.reasons import Ground, reason, total_reason
from vramcast.rules_of_thumb.shapes import is_round
from vramcast.types.job import Understanding
from vramcast.types.result import Forecast, Peak, PhaseBytes, Verdict

COMPARISON_SCHEMA = 1
_PHASES = {
    GENERATION: ("generate",),
    TRAINING: ("forward", "loss", "backward", "step"),
}


class ComparedPart(Struct, frozen=True, kw_only=True):
    """One part on one GPU. `article_gb` in the article's GB, the same in bytes; null: this side has no such part."""

    part: str
    article_gb: Decimal | None
    article_bytes: int | None
    exact_bytes: int | None
    reason: str


class ComparedPhase(Struct, frozen=True, kw_only=True):
    """A sum of the articles beside the worst instant of the forecast's phases of that kind. The last part is the
    total."""

    name: str
    instant: str
    parts: list[ComparedPart]


class Comparison(Struct, frozen=True, kw_only=True):
    """Both answers to one job. `refused` says why there is no exact one."""

    schema: int
    version: str
    article: ArticleForecast
    verdict: Verdict | None
    peak: Peak | None
    refused: list[str]
    phases: list[ComparedPhase]


def compare(said: Understanding) -> Comparison:
    """Article and exact for one job.

    Raises:
        Refused: a job that the rules do not cover. One that only the forecast does not cover is no refusal.
    """
    job, found, refused = _exact(said)
    asked = question(said, job.facts if job else None)
    phases = [_phase(total, asked, job, found) for total in sums_of(asked)]
    return Comparison(
        schema=COMPARISON_SCHEMA,
        version=__version__,
        article=answer(asked),
        verdict=found.verdict if found else None,
        peak=found.peak if found else None,
        refused=refused,
        phases=phases,
    )


def _exact(said: Understanding) -> tuple[Resolved | None, Forecast | None, list[str]]:
    if "model" in said.winners() and is_round(said.winners()["model"].value):
        name = said.winners()["model"].value
        return None, None, [f"{name} is a round model: no vocabulary, no MLP, no key heads to compute with"]
    try:
        return resolve(said), forecast(said, cards=False), []
    except Refused as error:
        return None, None, [mistake.fact for mistake in error.mistakes]


def _phase(total: Sum, asked: Question, job: Resolved | None, found: Forecast | None) -> ComparedPhase:
    during = _during(found, total.name) if found else []
    at = _worst(found, during) if found else None
    lines = {part: [line for line in total.lines if part_of_line(line.part, line.role) == part] for part in PARTS}
    exact = held(at) if at else {}
    best = largest(during)
    parts: list[ComparedPart] = []
    for part in PARTS:
        if not lines[part] and part not in best:
            continue
        size = sum((line.size for line in lines[part]), Fraction(0))
        ground = None if not (job and found and at) else Ground(
            part, lines[part], size, exact.get(part, 0), best.get(part), at, job, found, asked
        )  # fmt: skip
        parts.append(
            ComparedPart(
                part=part,
                article_gb=decimal(sum((line.gb for line in lines[part]), Fraction(0))) if lines[part] else None,
                article_bytes=whole_bytes(size) if lines[part] else None,
                exact_bytes=exact.get(part, 0) if at else None,
                reason=reason(ground) if ground else "",
            )
        )
    parts.append(_total(total, at))
    return ComparedPhase(name=total.name, instant=_moment(at), parts=parts)


def _total(total: Sum, at: PhaseBytes | None) -> ComparedPart:
    return ComparedPart(
        part="total",
        article_gb=decimal(total.gb),
        article_bytes=whole_bytes(sum((line.size for line in total.lines), Fraction(0))),
        exact_bytes=at.bytes if at else None,
        reason=total_reason(total.lines) if at else "",
    )


def _during(found: Forecast, name: str) -> list[PhaseBytes]:
    """The instants that a sum of the articles is about; all of them when it adds everything up."""
    phases = found.groups[0].phases
    return [phase for phase in phases if phase.name in _PHASES[name]] if name in _PHASES else phases


def _worst(found: Forecast, during: list[PhaseBytes]) -> PhaseBytes:
    peak = peak_phase(found)
    return peak if peak in during else max(during, key=lambda phase: phase.bytes)


def _moment(at: PhaseBytes | None) -> str:
    if at is None:
        return ""
    return f"{at.name} · {at.instant} ({'first step' if at.when == 'first' else 'every later step'})"
