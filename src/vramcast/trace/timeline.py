"""A replayed recording as the same timeline that the formulas give: phases, instants, processes and terms."""

from __future__ import annotations

from collections import Counter
from typing import TypeAlias

from vramcast.catalog.gpus import Gpu
from vramcast.memory import terms as _declared
from vramcast.memory.allocator import CACHED
from vramcast.memory.term import TERMS
from vramcast.trace.recording import NO_BLOCK, Mark, Recording, Storage
from vramcast.trace.replay import Replay, Span
from vramcast.types.result import PhaseBytes, ProcessBytes, TermBytes

assert _declared  # importing the package declares the terms
PROCESS, ROLE = "trainer", "policy"
ROUNDING, CONTEXT = "allocator.rounding", "cuda.context"
_BY_PURPOSE = {
    "weight": "weights", "buffer": "weights", "adapter": "adapters", "gradient": "gradients",
    "state": "optimizer.state", "input": "inputs", "cache": "kv_cache", "workspace": "cublas.workspace",
    "tower": "activations.vision",
}  # fmt: skip
STATES = {"load": "rest", "forward": "forward", "loss": "loss", "backward": "backward", "step": "step"}


def timeline(recording: Recording, replayed: Replay, gpu: Gpu) -> list[PhaseBytes]:
    """Every instant at its worst moment, in the order of the first run of the loop, then of a later one."""
    instants = _instants(replayed.spans)
    worst = {key: max(spans, key=lambda span: span.allocated) for key, spans in instants.items()}
    living = _living(recording, {span.event for span in worst.values()})
    return [
        _phase(span, max(one.reserved for one in instants[key]), _terms(living[span.event], span.mark), gpu)
        for key, span in worst.items()
    ]


def _instants(spans: list[Span]) -> dict[tuple[str, str, str], list[Span]]:
    """(when, phase, instant) -> its spans, in the order in which a step's last micro-batch has them: what comes before
    a step's scores counts as its forward."""
    found: dict[tuple[str, str, str], list[Span]] = {}
    for when in ("steady", "first"):
        for span in reversed(spans):
            if span.mark.when == when:
                found.setdefault((when, span.mark.phase, span.mark.instant), []).append(span)
    return dict(reversed(found.items()))


Alive: TypeAlias = list[tuple[Storage, str]]
"""storages, each with the phase in which it was born"""


def _living(recording: Recording, events: set[int]) -> dict[int, Alive]:
    """Event -> what lives after it."""
    found: dict[int, Alive] = {-1: []}
    alive: dict[int, tuple[Storage, str]] = {}
    phase, begins = "", {mark.event: mark.phase for mark in recording.marks}
    for index, event in enumerate(recording.events):
        phase = begins.get(index, phase)
        if event >= 0 and event & 1:
            alive.pop(event >> 1, None)
        elif event >= 0:
            alive[event >> 1] = recording.storages[event >> 1], phase
        if index in events:
            found[index] = list(alive.values())
    return found


def _terms(alive: Alive, mark: Mark) -> Counter[str]:
    found: Counter[str] = Counter()
    for storage, born in alive:
        found[term_of(storage, mark, born)] += storage.bytes
    return found


def term_of(storage: Storage, mark: Mark, born: str) -> str:
    """The term that a storage of phase `born` belongs to while the step is at a mark.

    What an operator made is the work of the block that runs, or what a block that does not run has saved; outside of
    blocks it is the head's, or the optimizer's; what outlives its use is what the caller keeps of the model's outputs.
    """
    if storage.purpose == "cast":
        return "optimizer.step" if mark.phase == "step" else "autocast.weights"
    known = _BY_PURPOSE.get(storage.purpose)
    if known is not None:
        return known
    if mark.phase == "step":
        return "optimizer.step" if born == "step" else "outputs"
    if storage.purpose == "hidden":
        runs = mark.phase == "backward" and storage.block == mark.block != NO_BLOCK
        return "activations.block" if runs else "activations.saved"
    if storage.block == NO_BLOCK:
        if _in_head(mark):
            return "logits"
        return "outputs" if mark.phase == "backward" != born else "activations.block"
    return "activations.block" if storage.block == mark.block else "activations.saved"


def _in_head(mark: Mark) -> bool:
    return mark.phase == "loss" or mark.instant == "head" or (mark.phase, mark.instant) == ("backward", "loss")


def _phase(span: Span, reserved: int, sums: Counter[str], gpu: Gpu) -> PhaseBytes:
    sums[ROUNDING] = span.allocated - span.requested
    sums[CACHED] = reserved - span.allocated
    terms = [_term(name, size, size, size) for name, size in sums.items() if size]
    context = gpu.context_bytes
    terms.append(_term(CONTEXT, context.low, context.point, context.high))
    terms.sort(key=lambda term: -term.bytes)
    mark = span.mark
    return PhaseBytes(
        name=mark.phase,
        instant=mark.instant,
        rank="all",
        when=mark.when,
        states={ROLE: STATES.get(mark.phase, "infer")},
        bytes=sum(term.bytes for term in terms),
        low_bytes=sum(term.low_bytes for term in terms),
        high_bytes=sum(term.high_bytes for term in terms),
        processes=[
            ProcessBytes(
                name=PROCESS, allocated_bytes=span.allocated, reserved_bytes=reserved, other_bytes=context.point
            )
        ],
        terms=terms,
    )


def _term(name: str, low: int, point: int, high: int) -> TermBytes:
    entry = TERMS[name]
    return TermBytes(
        name=name,
        role=ROLE,
        process=PROCESS,
        bytes=point,
        low_bytes=low,
        high_bytes=high,
        counter=entry.counter,
        elastic=False,
        formula="",
        figures="",
        basis="exact" if entry.basis != "calibrated" else entry.basis,
        source="trace" if entry.basis != "calibrated" else entry.source,
    )
