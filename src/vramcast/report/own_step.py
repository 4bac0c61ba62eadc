"""What `vramcast trace --step` prints: a user's own step by instant, and what its peak holds."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from vramcast import PREDICTIONS, __version__
from vramcast.report.trace import TermsOf, gib, instant_line, mib, moment, terms_of
from vramcast.trace import OwnTrace
from vramcast.types.result import SCHEMA, PhaseBytes, Verdict


class OwnReport(Struct, frozen=True, kw_only=True):
    """The answer of `trace --step`. `phases` are as in a forecast."""

    schema: int
    version: str
    predictions: int
    versions: dict[str, str]
    patches: list[str]
    assumed: list[str]
    step: str
    gpu: str
    verdict: Verdict
    bytes: int
    capacity_bytes: int
    phases: list[PhaseBytes]
    peak_terms: list[TermsOf]
    events: int


def own_report(traced: OwnTrace) -> OwnReport:
    """What a user's step needs."""
    worst = traced.judged.worst
    return OwnReport(
        schema=SCHEMA,
        version=__version__,
        predictions=PREDICTIONS,
        versions=traced.judged.recording.versions,
        patches=traced.judged.recording.patches,
        assumed=traced.judged.recording.assumed,
        step=traced.question.target,
        gpu=traced.gpu.id,
        verdict=traced.judged.verdict or "fits",
        bytes=worst.bytes,
        capacity_bytes=traced.gpu.total_bytes.value,
        phases=traced.judged.phases,
        peak_terms=terms_of(worst),
        events=len(traced.judged.recording.events),
    )


_WORDS = {"fits": "FITS", "tight": "TIGHT", "does_not_fit": "DOES NOT FIT"}


def show_own(report: OwnReport) -> str:
    """The report as text."""
    blocks = [_head(report), _terms(report), _instants(report), _notes(report)]
    return "\n\n".join("\n".join(block) for block in blocks)


def _head(report: OwnReport) -> Iterator[str]:
    worst = max(report.phases, key=lambda phase: phase.bytes)
    yield f"{_WORDS[report.verdict]}: {gib(report.bytes)} of {gib(report.capacity_bytes)} on {report.gpu}"
    yield f"step   {report.step}"
    yield f"peak   {moment(worst.name, worst.instant, worst.when)}"


def _terms(report: OwnReport) -> Iterator[str]:
    yield f"{'what holds it at the peak':<30}{'MiB':>12}"
    for term in report.peak_terms:
        yield f"  {term.name:<28}{mib(term.bytes):>12}"


def _instants(report: OwnReport) -> Iterator[str]:
    yield f"{'phase · instant':<34}{'allocated':>12}{'reserved':>12}  MiB"
    when = ""
    for phase in report.phases:
        if phase.when != when:
            when = phase.when
            yield "  first step" if when == "first" else "  every later step"
        yield instant_line(phase)


def _notes(report: OwnReport) -> Iterator[str]:
    yield "traced with " + ", ".join(f"{name} {version}" for name, version in report.versions.items())
    for line in report.assumed:
        yield f"assumed: {line}"
