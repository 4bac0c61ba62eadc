"""The second pass: what an engine takes depends on the card, not on its tensors, and is frozen once it has started."""

from __future__ import annotations

from typing import NamedTuple

from vramcast.estimate.lengths import rollout_sequences, total_len
from vramcast.estimate.resolve import Resolved
from vramcast.estimate.rollout import sequences_per_engine
from vramcast.memory.seat import Engine, Seat
from vramcast.memory.term import TERMS, Reading
from vramcast.memory.terms.engine import engine_of, one_sequence
from vramcast.models.cache.vllm import BLOCK, Run
from vramcast.num import portion, up_to
from vramcast.types.result import EngineBytes, PhaseBytes, TermBytes
from vramcast.units import PPM, ppm

KV = "engine.kv"
POOLED = ("engine.weights", "engine.activation", "engine.graphs", "engine.runtime")
"""Terms that come out of the engine's share before its cache."""


class Pool(NamedTuple):
    """The engine's share of a GPU: what was asked for and what is left of it for keys and values."""

    requested: int
    low: int
    kv: int
    high: int
    least: int
    """one sequence of the engine's length"""
    engine: Engine

    @property
    def longest(self) -> int:
        """Tokens of one sequence of the engine's length, in whole blocks."""
        return int(up_to(self.engine.max_len, BLOCK))

    @property
    def tokens(self) -> int:
        """Tokens that it holds. Where layers see a window only, those of as many of the longest sequences, as vLLM's
        log says since 0.20."""
        plan = self.engine.served.plan
        blocks = plan.blocks(self.kv)
        if any(page.sort != "full" for group in plan.groups for page in group.pages):
            return plan.tokens(blocks, self.longest, self._run)
        return plan.tokens_by_block(blocks)

    def at_once(self, tokens: int) -> int:
        """Sequences of so many tokens that fit, however many the engine runs."""
        plan = self.engine.served.plan
        return int(plan.concurrency(plan.blocks(self.kv), tokens, self._run))

    @property
    def _run(self) -> Run:
        return self.engine.served.run(int(self.engine.max_batched_tokens))


def size_pool(job: Resolved, seat: Seat, readings: list[Reading]) -> Pool:
    """Size the pool from the readings of the engine at its start.

    `engine.kv_bytes` says it directly; else the pool is what the fraction leaves. The parts that are only known as
    intervals make it an interval the other way round.
    """
    settings = job.settings
    parts = [reading for reading in readings if reading.term.name in POOLED]
    rigid = sum(reading.point for reading in parts)
    least, engine = int(one_sequence(seat)), engine_of(seat)
    if settings.engine_kv_bytes is not None:
        kv = settings.engine_kv_bytes
        return Pool(rigid + kv, kv, kv, kv, least, engine)
    requested = int(portion(ppm(round(settings.engine_fraction or 0.0, 6)), job.gpu.total_bytes.value))
    kv = max(requested - rigid, 0)
    low = max(requested - sum(reading.high for reading in parts), 0)
    high = max(requested - sum(reading.low for reading in parts), 0)
    return Pool(requested, min(low, kv), kv, max(high, kv), least, engine)


def holds_pool(seat: Seat) -> bool:
    """The pool is mapped: while the engine starts and generates, and always without sleep mode."""
    if seat.engine is None or seat.state == "absent":
        return False
    return seat.state in ("infer", "generate") or seat.engine.sleep == "none"


def pool_term(pool: Pool, seat: Seat) -> TermBytes:
    """The pool as a term of a phase. Elastic before it is taken; rigid afterwards."""
    return TermBytes(
        name=KV,
        role=seat.role,
        process=seat.process,
        bytes=pool.kv,
        low_bytes=pool.low,
        high_bytes=pool.high,
        counter="allocated",
        elastic=seat.when == "first" and seat.state in ("infer", "generate"),
        formula="⌈fraction × total⌉ - engine.weights - engine.activation - engine.graphs - engine.runtime",
        figures=f"{pool.requested:,} - {pool.requested - pool.kv:,}",
        basis="derived",
        source=TERMS[KV].source,
    )


def describe(job: Resolved, pool: Pool, phases: list[PhaseBytes]) -> EngineBytes:
    """What the pool is good for, and the fractions between which the job works."""
    settings = job.settings
    total = job.gpu.total_bytes.value
    at_once = min(pool.at_once(total_len(settings)), int(pool.engine.max_seqs))
    low, high = window(job, pool, phases)
    return EngineBytes(
        role="rollout",
        pool_bytes=pool.requested,
        kv_bytes=pool.kv,
        kv_bytes_per_token=pool.engine.served.kv_bytes_per_token(windowed=True),
        kv_tokens=pool.tokens,
        kv_least_bytes=pool.least,
        max_concurrency=pool.at_once(pool.longest),
        waves=-(-sequences_per_engine(settings) // max(at_once, 1)) if rollout_sequences(settings) else 0,
        fraction_low=_hundredths(low, total, up=True) if job.card_named else None,
        fraction_high=_hundredths(high, total, up=False) if job.card_named else None,
    )


def window(job: Resolved, pool: Pool, phases: list[PhaseBytes]) -> tuple[int, int]:
    """(least, most) bytes of an engine's share that work with their whole range: one sequence must fit into it, and the
    rest of the GPU beside it. Blocks that are only cached are given back.

    Nothing is free for it on a GPU that is full in a phase where the pool is not mapped.
    """
    capacity = job.gpu.total_bytes.value - job.settings.busy_bytes
    mapped = [phase for phase in phases if any(term.name == KV for term in phase.terms)]
    least = max(sum(term.high_bytes for term in phase.terms if term.name in POOLED) for phase in phases) + pool.least
    if any(phase.bytes > capacity for phase in phases if phase not in mapped):
        return least, 0
    return least, max(capacity - max(map(_beside, mapped)), 0)


def _beside(phase: PhaseBytes) -> int:
    """The most that a phase holds beside the engine's share: all of its other terms, and what the engine's own parts
    may be beyond what its cache was sized with. Cached blocks that fit nothing are given back before."""
    return sum((term.bytes if term.counter == "cached" else term.high_bytes)
               - (term.low_bytes if term.name in POOLED else 0)
               for term in phase.terms if term.name != KV)  # fmt: skip


def _hundredths(size: int, total: int, *, up: bool) -> float:
    """A fraction in hundredths, as people set it: rounded to the safe side."""
    hundredth = PPM // 100
    parts = size * PPM // total
    return (-(-parts // hundredth) if up else parts // hundredth) / 100
