"""From facts to an answer: resolve the job, seat its roles, sum the terms, judge."""

from __future__ import annotations

from msgspec import structs

from vramcast import PREDICTIONS, __version__
from vramcast.catalog.gpus import gpus
from vramcast.estimate.resolve import Resolved, resolve
from vramcast.estimate.texts import Texts
from vramcast.estimate.timeline import timeline
from vramcast.types.job import Fact, Origin, Understanding
from vramcast.types.result import SCHEMA, Card, Forecast, Group, Peak, PhaseBytes, Verdict

__all__ = ["Resolved", "forecast", "resolve"]


def forecast(said: Understanding, *, texts: bool = False) -> Forecast:
    """The whole answer to "will it fit", without levers. `texts` adds formulas and figures to the terms.

    Raises:
        Refused: with every mistake of the job.
    """
    job = resolve(said)
    phases = timeline(job)
    if texts:
        writer = Texts(job)
        phases = [writer.write(phase) for phase in phases]
    capacity = job.gpu.total_bytes.value - job.settings.busy_bytes if job.card_named else None
    group = Group(
        name="all",
        roles=["policy"],
        gpu=job.gpu.id if job.card_named else None,
        gpus=job.settings.gpus,
        capacity_bytes=capacity,
        phases=phases,
        engines=[],
    )
    peak = _peak(group)
    return Forecast(
        schema=SCHEMA,
        version=__version__,
        predictions=PREDICTIONS,
        verdict=judge(peak) if capacity is not None else None,
        job=job.job.to_file(),
        peak=peak,
        groups=[group],
        nodes=[],
        cards=[] if job.card_named else _cards(said),
        assumptions=job.assumptions,
        unread=job.unread,
        ignored=job.ignored,
        ineffective=job.ineffective,
        warnings=job.warnings,
        levers=[],
    )


def judge(peak: Peak) -> Verdict:
    """fits: high within capacity; does_not_fit: low above it; else tight."""
    assert peak.capacity_bytes is not None
    if peak.high_bytes <= peak.capacity_bytes:
        return "fits"
    return "does_not_fit" if peak.low_bytes > peak.capacity_bytes else "tight"


def _peak(group: Group) -> Peak:
    worst = max(group.phases, key=lambda phase: phase.bytes)
    return Peak(
        bytes=worst.bytes,
        low_bytes=max(phase.low_bytes for phase in group.phases),
        high_bytes=max(phase.high_bytes for phase in group.phases),
        capacity_bytes=group.capacity_bytes,
        margin_bytes=None if group.capacity_bytes is None else group.capacity_bytes - worst.bytes,
        resource="gpu",
        group=group.name,
        phase=worst.name,
        instant=worst.instant,
        rank=worst.rank,
        when=worst.when,
    )


def _cards(said: Understanding) -> list[Card]:
    """Every card of the catalogue, the smallest first, with its own verdict."""
    found: list[Card] = []
    for gpu in sorted(gpus(), key=lambda gpu: gpu.total_bytes.value):
        asked = Understanding([Fact("gpu", gpu.id, Origin("catalogue")), *said.facts], missing=said.missing)
        answer = forecast(asked)
        assert answer.verdict is not None
        assert answer.peak.capacity_bytes is not None
        found.append(Card(gpu.id, answer.peak.capacity_bytes, answer.peak.bytes, answer.verdict))
    return found


def peak_phase(answer: Forecast) -> PhaseBytes:
    """The phase and instant that the peak names."""
    peak = answer.peak
    group = next(group for group in answer.groups if group.name == peak.group)
    return next(
        phase
        for phase in group.phases
        if (phase.name, phase.instant, phase.when, phase.rank) == (peak.phase, peak.instant, peak.when, peak.rank)
    )


def edited(said: Understanding, edits: dict[str, object], why: str) -> Understanding:
    """The same facts with some paths set anew, before all others."""
    from vramcast.types.job import check_value

    facts = [Fact(path, check_value(path, value, Origin(why)), Origin(why)) for path, value in edits.items()]
    return structs.replace(said, facts=[*facts, *said.facts])
