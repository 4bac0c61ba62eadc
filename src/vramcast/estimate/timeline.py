"""The timeline: bytes by group, phase, instant and rank, as sums of named terms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import structs

from vramcast.algorithms import ALGORITHMS
from vramcast.algorithms.table import Algorithm, Instant, Phase, When
from vramcast.estimate.resolve import Resolved
from vramcast.estimate.seats import Seats
from vramcast.memory import terms as _declared
from vramcast.memory.term import Reading, read
from vramcast.types.result import PhaseBytes, ProcessBytes, TermBytes

TRAINER = "trainer"

assert _declared  # importing the package declares the terms


def algorithm_of(job: Resolved) -> Algorithm:
    """The phase table; pre-training is supervised training to memory."""
    name = job.settings.algorithm
    return ALGORITHMS["sft" if name == "pretrain" else name]


def timeline(job: Resolved) -> list[PhaseBytes]:
    """Every instant of the first run of the loop and of a later one, on one GPU."""
    algorithm = algorithm_of(job)
    makers = [Seats(job, role) for role in algorithm.roles]
    phases = [_phase(makers, phase, instant, when) for phase, instant, when in moments(algorithm)]
    return _with_kept_blocks(phases, expandable=makers[0].base.expandable)


def moments(algorithm: Algorithm) -> Iterator[tuple[Phase, Instant, When]]:
    """(phase, instant, run) in the order they happen."""
    runs: tuple[When, When] = ("first", "steady")
    for when in runs:
        for phase in algorithm.phases:
            if when in phase.when:
                for instant in phase.instants:
                    yield phase, instant, when


def _phase(makers: Iterable[Seats], phase: Phase, instant: Instant, when: When) -> PhaseBytes:
    seats = [maker.seat(phase, instant, when) for maker in makers]
    terms = [_term(reading, seat.role) for seat in seats for reading in read(seat)]
    terms.sort(key=lambda term: -term.bytes)
    return PhaseBytes(
        name=phase.name,
        instant=instant.name,
        rank="all",
        when=when,
        states={seat.role: seat.state for seat in seats},
        bytes=sum(term.bytes for term in terms),
        low_bytes=sum(term.low_bytes for term in terms),
        high_bytes=sum(term.high_bytes for term in terms),
        processes=[_process(TRAINER, terms)],
        terms=terms,
    )


def _term(reading: Reading, role: str) -> TermBytes:
    entry = reading.term
    return TermBytes(
        name=entry.name,
        role=role,
        process=TRAINER,
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


def _with_kept_blocks(phases: list[PhaseBytes], *, expandable: bool) -> list[PhaseBytes]:
    """Raise the high value of `allocator.cached` by what an earlier instant left reserved.

    The allocator keeps freed blocks (c10/cuda/CUDACachingAllocator.cpp); expandable segments keep at most 1 % more than
    is allocated.
    """
    reserved = 0
    result: list[PhaseBytes] = []
    for phase in phases:
        process = phase.processes[0]
        reserved = max(reserved, process.reserved_bytes)
        kept = reserved - process.reserved_bytes
        if expandable:
            kept = min(kept, process.allocated_bytes // 100)
        terms = [
            structs.replace(term, high_bytes=term.high_bytes + kept) if term.counter == "cached" else term
            for term in phase.terms
        ]
        result.append(structs.replace(phase, terms=terms, high_bytes=phase.high_bytes + kept))
    return result
