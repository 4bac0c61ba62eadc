"""What the caching allocator keeps beyond the tensors of an instant: blocks of earlier instants, and what was measured
on top of that. Both raise the high end only."""

from __future__ import annotations

from msgspec import structs

from vramcast.algorithms import learns
from vramcast.catalog.spread import Spread, kind_of, spreads
from vramcast.estimate.resolve import Resolved
from vramcast.memory.allocator import CACHED, FRAGMENTED
from vramcast.memory.term import TERMS
from vramcast.num import portion
from vramcast.types.result import PhaseBytes, TermBytes
from vramcast.types.settings import ADAPTED


def spread_of(job: Resolved, *, expandable: bool) -> Spread:
    """The measured spread of the job's kind."""
    settings = job.settings
    kind = kind_of(
        trains=learns(settings),
        adapters=settings.tuning in ADAPTED,
        packed=settings.quant_kind != "none" or job.quantisation is not None,
        gpus=settings.gpus,
        expandable=expandable,
    )
    return spreads()[kind]


def with_kept_blocks(phases: list[PhaseBytes], spread: Spread, *, expandable: bool) -> list[PhaseBytes]:
    """Raise the high values of the trainer's `allocator.cached` and `allocator.fragmented`.

    The allocator keeps freed blocks (c10/cuda/CUDACachingAllocator.cpp): what an earlier instant reserved is still
    there; expandable segments keep at most 1 % more than is allocated. Runs reserve more than that: `spread` says how
    much, measured. Before an engine works the trainers call empty_cache, and nothing is kept.
    """
    rests = _at_rest(phases) if spread.of == "moving" else 0
    reserved = most = 0
    result: list[PhaseBytes] = []
    for phase in phases:
        process = phase.processes[0]
        now, own = process.reserved_bytes, _allocated(phase)
        if phase.states.get("rollout") in ("infer", "generate", "held"):
            reserved = most = 0  # asleep, an engine's own pool is unmapped too
            result.append(phase)
            continue
        reserved = max(reserved, now)
        most = max(most, process.allocated_bytes + int(portion(spread.high, max(own - rests, 0))))
        kept = reserved - now
        if expandable:
            kept = min(kept, process.allocated_bytes // 100)
        result.append(_raised(_raised(phase, CACHED, kept), FRAGMENTED, max(most - now - kept, 0)))
    return result


def _allocated(phase: PhaseBytes) -> int:
    """Tensors of the first process, without an engine's: its pool is one piece."""
    return sum(term.bytes for term in _of_first(phase) if term.counter == "allocated" and term.role != "rollout")


def _of_first(phase: PhaseBytes) -> list[TermBytes]:
    return [term for term in phase.terms if term.process == phase.processes[0].name]


def _at_rest(phases: list[PhaseBytes]) -> int:
    """What is there at every instant of a later step: placed once, it splits no block."""
    steady = [phase for phase in phases if phase.when == "steady"] or phases
    least: dict[tuple[str, str], int] = {}
    for index, phase in enumerate(steady):
        found = {
            (term.name, term.role): term.bytes
            for term in _of_first(phase)
            if term.counter == "allocated" and term.role != "rollout"
        }
        least = found if not index else {key: min(size, found.get(key, 0)) for key, size in least.items()}
    return sum(least.values())


def _raised(phase: PhaseBytes, name: str, more: int) -> PhaseBytes:
    """The phase with `more` bytes in the high value of a term of its first process."""
    if not more:
        return phase
    process = phase.processes[0].name
    own = next((term for term in phase.terms if term.name == name and term.process == process), None)
    if own is not None:
        raised = structs.replace(own, high_bytes=own.high_bytes + more)
        terms = [raised if term is own else term for term in phase.terms]
    else:
        entry = TERMS[name]
        role = "policy" if "policy" in phase.states else next(iter(phase.states))
        terms = [*phase.terms, TermBytes(
            name=name, role=role, process=process, bytes=0, low_bytes=0, high_bytes=more, counter=entry.counter,
            elastic=False, formula="", figures="", basis=entry.basis, source=entry.source,
        )]  # fmt: skip
    return structs.replace(phase, terms=terms, high_bytes=phase.high_bytes + more)
