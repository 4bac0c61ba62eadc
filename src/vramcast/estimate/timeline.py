"""The timeline: bytes by phase, instant and process, as sums of named terms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from vramcast.algorithms import algorithm_of, is_apart
from vramcast.algorithms.table import Instant, Modes, Phase, Role, When
from vramcast.estimate.kept import spread_of, with_kept_blocks
from vramcast.estimate.pools import KV, Pool, holds_pool, pool_term, size_pool
from vramcast.estimate.resolve import Resolved
from vramcast.estimate.seats import Seats, is_sharded
from vramcast.memory import terms as _declared
from vramcast.memory.alloc_conf import parse
from vramcast.memory.seat import Seat
from vramcast.memory.term import Reading, read
from vramcast.types.result import PhaseBytes, ProcessBytes, TermBytes

assert _declared  # importing the package declares the terms


class Timeline(NamedTuple):
    """Every instant, and the engine's pool if the job has one."""

    phases: list[PhaseBytes]
    pool: Pool | None


class Moment(NamedTuple):
    """A phase, one of its instants, and the run of the loop."""

    phase: Phase
    instant: Instant
    when: When


def modes_of(job: Resolved) -> Modes:
    """The choices that decide which roles and phases there are."""
    settings, source = job.settings, job.settings.logprob_source
    recomputed = job.recipe.old_logprobs if source is None else source == "trainer"
    return Modes(
        reference=settings.reference_kind,
        engine=settings.engine_kind,
        apart=is_apart(settings),
        sharded=is_sharded(settings, job.recipe),
        mixed=len(job.arch.kinds) > 1 and job.arch.measured is None,
        old_logprobs=recomputed and settings.engine_kind != "hf",
    )


def roles_of(job: Resolved) -> tuple[Role, ...]:
    """The roles that hold GPU memory."""
    return algorithm_of(job.settings.algorithm).roles(modes_of(job))


def moments(job: Resolved) -> Iterator[Moment]:
    """All moments in the order they happen: the first run of the loop, then a later one."""
    phases = algorithm_of(job.settings.algorithm).phases(modes_of(job))
    runs: tuple[When, When] = ("first", "steady")
    for when in runs:
        for phase in phases:
            if when in phase.when:
                yield from (Moment(phase, instant, when) for instant in phase.instants)


def timeline(job: Resolved) -> Timeline:
    """Every instant of the first run of the loop and of a later one, on one of its GPUs."""
    found = list(instants(job))
    return Timeline(after_each_other(job, [phase for phase, _ in found]), found[-1][1])


def after_each_other(job: Resolved, phases: list[PhaseBytes]) -> list[PhaseBytes]:
    """The instants with what the allocator keeps of earlier ones."""
    expandable = parse(job.settings.allocator).expandable_segments
    return with_kept_blocks(phases, spread_of(job, expandable=expandable), expandable=expandable)


def instants(job: Resolved) -> Iterator[tuple[PhaseBytes, Pool | None]]:
    """The instants one by one, each with the engine's pool if it has started; without what earlier ones leave
    reserved."""
    makers = [Seats(job, role) for role in roles_of(job)]
    pool: Pool | None = None
    for moment in moments(job):
        seats = [maker.seat(*moment) for maker in makers]
        readings = [(seat, read(seat)) for seat in seats]
        for seat, found in readings:
            if moment.phase.name == "engine.start" and seat.engine is not None:
                pool = size_pool(job, seat, found)
        yield _phase(moment, readings, pool), pool


def _phase(moment: Moment, readings: list[tuple[Seat, list[Reading]]], pool: Pool | None) -> PhaseBytes:
    terms = [_term(reading, seat.role, seat.process) for seat, found in readings for reading in found]
    terms += [pool_term(pool, seat) for seat, _ in readings if pool is not None and holds_pool(seat)]
    terms.sort(key=lambda term: -term.bytes)
    return PhaseBytes(
        name=moment.phase.name,
        instant=moment.instant.name,
        rank="all",
        when=moment.when,
        states={seat.role: seat.state for seat, _ in readings},
        bytes=sum(term.bytes for term in terms),
        low_bytes=sum(term.low_bytes for term in terms),
        high_bytes=sum(term.high_bytes for term in terms),
        processes=[_process(name, terms) for name in dict.fromkeys(seat.process for seat, _ in readings)],
        terms=terms,
    )


def _term(reading: Reading, role: str, process: str) -> TermBytes:
    entry = reading.term
    return TermBytes(
        name=entry.name,
        role=role,
        process=process,
        bytes=reading.point,
        low_bytes=reading.low,
        high_bytes=reading.high,
        counter=entry.counter,
        elastic=False,
        formula="",
        figures="",
        basis=entry.basis,
        source=entry.source,
    )


def _process(name: str, terms: list[TermBytes]) -> ProcessBytes:
    by = {
        counter: sum(term.bytes for term in terms if term.process == name and term.counter == counter)
        for counter in ("allocated", "cached", "outside")
    }
    return ProcessBytes(
        name=name,
        allocated_bytes=by["allocated"],
        reserved_bytes=by["allocated"] + by["cached"],
        other_bytes=by["outside"],
    )


def demand(phase: PhaseBytes, pool: Pool | None) -> int:
    """Bytes the phase needs: all of it, and of a pool at least one sequence.

    The engine checks at its start that its whole share is free (vllm/v1/worker/utils.py, request_memory), and wakes to
    the same size, so the share counts whole even while nothing is in it.
    """
    held = next((term.bytes for term in phase.terms if term.name == KV), None)
    return phase.bytes if held is None or pool is None else phase.bytes - held + max(held, pool.least)
