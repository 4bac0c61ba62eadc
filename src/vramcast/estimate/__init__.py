"""From facts to an answer: resolve the job, seat its roles, sum the terms, judge."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from vramcast import PREDICTIONS, __version__
from vramcast.catalog.frameworks import parse_framework
from vramcast.catalog.gpus import usual_gpus
from vramcast.estimate.effects import ineffective
from vramcast.estimate.host import nodes
from vramcast.estimate.pools import Pool, describe
from vramcast.estimate.resolve import Resolved, resolve
from vramcast.estimate.texts import Texts
from vramcast.estimate.timeline import demand, timeline
from vramcast.types.job import Fact, Origin, Understanding
from vramcast.types.result import SCHEMA, Card, Forecast, Group, Ineffective, Peak, PhaseBytes, Priced, Verdict

__all__ = ["Resolved", "forecast", "ineffective", "resolve"]


def forecast(said: Understanding, *, texts: bool = False, cards: bool = True) -> Forecast:
    """The whole answer to "will it fit", without levers.

    `texts` adds formulas and figures to the terms; `cards` what the job is asked once: the verdict of every usual card,
    where none is named, and which of the values that were said have no effect.

    Raises:
        Refused: with every mistake of the job.
    """
    job = resolve(said)
    phases, pool = timeline(job)
    if texts:
        writer = Texts(job)
        phases = [writer.write(phase) for phase in phases]
    without = ineffective(said, job) if cards else []
    return answer(job, phases, pool, _cards(said) if cards and not job.card_named else [], without)


def answer(
    job: Resolved,
    phases: list[PhaseBytes],
    pool: Pool | None,
    cards: list[Card],
    without: list[Ineffective],
    *,
    formulas: bool = True,
    verdict: Verdict | None = None,
    warnings: Sequence[str] = (),
) -> Forecast:
    """The answer that a timeline gives, of the formulas or of a trace. `without`: what was said and has no effect;
    `verdict`: one that is known better than from sums."""
    capacity = capacity_of(job)
    group = Group(
        name="all",
        roles=list(dict.fromkeys(role for phase in phases for role in phase.states)),
        gpu=job.gpu.id if job.card_named else None,
        gpus=job.settings.gpus,
        capacity_bytes=capacity,
        phases=phases,
        engines=[describe(job, pool, phases)] if pool is not None else [],
    )
    peak = _peak(group, pool)
    return Forecast(
        schema=SCHEMA,
        version=__version__,
        predictions=PREDICTIONS,
        verdict=(verdict or _verdict(peak, pool)) if capacity is not None else None,
        framework=_priced(job),
        job=job.job.to_file(),
        peak=peak,
        groups=[group],
        nodes=nodes(job) if formulas else [],
        cards=cards,
        assumptions=job.assumptions,
        unread=job.unread,
        ignored=job.ignored,
        ineffective=without,
        warnings=[*job.warnings, *_pool_warnings(job, pool, group), *warnings],
        levers=[],
    )


def _priced(job: Resolved) -> Priced:
    """A framework without a version is the newest one that is known."""
    fact = job.facts["framework"]
    release, named = parse_framework(str(fact.value)), "==" in str(fact.value)
    origin = str(fact.origin).removeprefix("assumed: ")
    return Priced(
        value=f"{release.name}=={release.version}",
        origin=origin if named else f"{origin}: the newest that is known",
        assumed=not named or "framework" not in job.job.values or origin != str(fact.origin),
    )


def capacity_of(job: Resolved) -> int | None:
    """Bytes of the card that the job may use; None where no card is named."""
    return job.gpu.total_bytes.value - job.settings.busy_bytes if job.card_named else None


def _verdict(peak: Peak, pool: Pool | None) -> Verdict:
    """An engine whose share cannot hold one sequence does not start."""
    verdict = judge(peak)
    if pool is None or pool.kv >= pool.least:
        return verdict
    return "does_not_fit" if pool.high < pool.least or verdict == "does_not_fit" else "tight"


def _pool_warnings(job: Resolved, pool: Pool | None, group: Group) -> list[str]:
    if pool is None or pool.kv >= pool.least:
        return []
    engine = group.engines[0]
    lowest = f"; raise engine.fraction to {engine.fraction_low}" if 0 < (engine.fraction_low or 0) <= 1 else ""
    return [
        f"the engine's pool holds {engine.kv_tokens:,} tokens, less than one sequence of {pool.longest:,}"
        f"{lowest}{' or' if lowest else ';'} lower engine.max_len: it will not start"
    ]


def judge(peak: Peak) -> Verdict:
    """fits: high within capacity; does_not_fit: low above it; else tight."""
    assert peak.capacity_bytes is not None
    if peak.high_bytes <= peak.capacity_bytes:
        return "fits"
    return "does_not_fit" if peak.low_bytes > peak.capacity_bytes else "tight"


def _peak(group: Group, pool: Pool | None) -> Peak:
    demands = [demand(phase, pool) for phase in group.phases]
    extra = [need - phase.bytes for need, phase in zip(demands, group.phases, strict=True)]
    index = max(range(len(demands)), key=lambda at: (demands[at], group.phases[at].processes[0].allocated_bytes))
    worst = group.phases[index]
    return Peak(
        bytes=demands[index],
        low_bytes=max(phase.low_bytes + more for phase, more in zip(group.phases, extra, strict=True)),
        high_bytes=max(phase.high_bytes + more for phase, more in zip(group.phases, extra, strict=True)),
        capacity_bytes=group.capacity_bytes,
        needs_high_bytes=max(_needs_high(phase) + more for phase, more in zip(group.phases, extra, strict=True)),
        margin_bytes=None if group.capacity_bytes is None else group.capacity_bytes - demands[index],
        resource="gpu",
        group=group.name,
        phase=worst.name,
        instant=worst.instant,
        rank=worst.rank,
        when=worst.when,
    )


def _needs_high(phase: PhaseBytes) -> int:
    """The high value without the blocks that are only kept."""
    return phase.high_bytes - sum(term.high_bytes - term.bytes for term in phase.terms if term.counter == "cached")


def _cards(said: Understanding) -> list[Card]:
    """The usual cards of the catalogue, the smallest first, each with its own verdict."""
    found: list[Card] = []
    busy = said.winners().get("busy_bytes")
    for gpu in sorted(usual_gpus(), key=lambda gpu: gpu.total_bytes.value):
        if busy is not None and isinstance(busy.value, int) and busy.value >= gpu.total_bytes.value:
            continue  # a card that is smaller than what others hold of it
        asked = Understanding([Fact("gpu", gpu.id, Origin("catalogue")), *said.facts], missing=said.missing)
        answer = forecast(asked, cards=False)
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
