"""A replayed recording in the formulas' words, and its verdict on a card."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from tests.trace.scripts import Script

from vramcast.catalog.gpus import find_gpu
from vramcast.memory.term import TERMS
from vramcast.trace.allocator import parse
from vramcast.trace.judged import Judged, judge
from vramcast.trace.recording import NO_BLOCK, Mark, Purpose, Recording, Storage
from vramcast.trace.replay import replay
from vramcast.trace.timeline import PROCESS, ROLE, term_of, timeline
from vramcast.types.result import PhaseBytes
from vramcast.units import MIB

GPU = find_gpu("a100-sxm-80gb")
CONTEXT = GPU.context_bytes
DEFAULT = parse("")


def told(script: Script) -> list[PhaseBytes]:
    recording = script.recording()
    return timeline(recording, replay(recording, DEFAULT), GPU)


def sizes(phase: PhaseBytes) -> dict[str, int]:
    """Terms of tensors."""
    outside = ("cuda.context", "allocator.cached", "allocator.rounding")
    return {term.name: term.bytes for term in phase.terms if term.name not in outside}


# --- sums -------------------------------------------------------------------------------------------------------------

PHASES = ("load", "forward", "loss", "backward", "step", "score.reference")


@st.composite
def recordings(draw: st.DrawFn) -> Recording:
    """Anything, in any phase, for any purpose; some of it before the first mark."""
    script, live = Script(), list[str]()
    marked = False
    for index in range(draw(st.integers(1, 40))):
        if draw(st.integers(0, 3)) == 0 or (index == 20 and not marked):
            marked = True
            when = draw(st.sampled_from(["first", "steady"]))
            script.mark(draw(st.sampled_from(PHASES)), draw(st.sampled_from("ab")), when, draw(st.integers(-1, 2)))
        purpose = draw(st.sampled_from(get_args(Purpose)))
        size = draw(st.sampled_from([0, 1, 511, 512, 513, MIB - 1, MIB, 3 * MIB, 11 * MIB, 43 * MIB + 7]))
        script.born(str(index), size, purpose=purpose, block=draw(st.integers(-1, 2)))
        live.append(str(index))
        if draw(st.booleans()):
            script.dead(live.pop(draw(st.integers(0, len(live) - 1))))
        if draw(st.integers(0, 9)) == 0:
            script.empty()
    return script.recording()


@given(recordings())
@settings(max_examples=60)
def test_terms_sum_to_the_processes(recording: Recording) -> None:
    """In every instant, at each end of the interval, whatever the recording."""
    replayed = replay(recording, DEFAULT)
    phases = timeline(recording, replayed, GPU)
    assert len(phases) == len({(span.mark.when, span.mark.phase, span.mark.instant) for span in replayed.spans})
    for phase in phases:
        (process,) = phase.processes
        counted = dict.fromkeys(("allocated", "cached", "outside"), 0)
        for term in phase.terms:
            counted[term.counter] += term.bytes
            assert term.bytes >= 0
            assert (term.role, term.process, term.name in TERMS) == (ROLE, PROCESS, True)
        assert counted["allocated"] == process.allocated_bytes
        assert counted["allocated"] + counted["cached"] == process.reserved_bytes
        assert counted["outside"] == process.other_bytes == CONTEXT.point
        assert phase.bytes == sum(counted.values())
        assert phase.low_bytes == phase.bytes - CONTEXT.point + CONTEXT.low
        assert phase.high_bytes == phase.bytes - CONTEXT.point + CONTEXT.high
        assert [term.bytes for term in phase.terms] == sorted((term.bytes for term in phase.terms), reverse=True)


def test_rounding_and_what_is_cached_are_terms() -> None:
    """100 bytes keep 512 of a segment of 2 MiB; 43 MiB and 7 bytes keep all of 44."""
    (small,) = told(Script().mark("forward").born("a", 100))
    found = {term.name: (term.bytes, term.counter) for term in small.terms}
    assert found["allocator.rounding"] == (412, "allocated")
    assert found["allocator.cached"] == (2 * MIB - 512, "cached")
    (large,) = told(Script().mark("forward").born("a", 43 * MIB + 7))
    found = {term.name: (term.bytes, term.counter) for term in large.terms}
    assert found["allocator.rounding"] == (MIB - 7, "allocated")
    assert "allocator.cached" not in found


def test_a_term_of_a_trace_says_so() -> None:
    (phase,) = told(Script().mark("forward").born("a", 100, purpose="weight"))
    known = {term.name: (term.basis, term.source) for term in phase.terms}
    assert known["weights"] == ("exact", "trace")
    assert known["cuda.context"] == ("calibrated", TERMS["cuda.context"].source)


# --- instants ---------------------------------------------------------------------------------------------------------


def test_an_instant_of_many_spans_is_its_worst() -> None:
    """What the blocks make, at the block that makes most; what is reserved may be most in another."""
    script = Script().mark("forward", "last block", block=0).born("a", 30 * MIB, block=0)
    script.mark("forward", "last block", block=1).born("b", 20 * MIB, block=1).dead("a").born("c", 40 * MIB, block=1)
    script.mark("forward", "last block", block=2).born("d", 11 * MIB, block=2).dead("b")
    (phase,) = told(script)
    assert phase.processes[0].allocated_bytes == 71 * MIB
    assert sizes(phase) == {"activations.block": 11 * MIB, "activations.saved": 60 * MIB}
    assert phase.processes[0].reserved_bytes == 30 * MIB + 20 * MIB + 40 * MIB  # d lies in what a left


def test_the_first_run_comes_before_the_later_ones() -> None:
    script = Script()
    for when in ("first", "steady", "steady"):
        for phase in ("forward", "step"):
            script.mark(phase, when=when).born(f"{phase} {when}", MIB)
    assert [(phase.when, phase.name) for phase in told(script)] == [
        *[("first", "forward"), ("first", "step")],
        *[("steady", "forward"), ("steady", "step")],
    ]


def test_what_a_role_does_is_said() -> None:
    script = Script()
    for phase in PHASES:
        script.mark(phase)
    assert [phase.states[ROLE] for phase in told(script)] == ["rest", "forward", "loss", "backward", "step", "infer"]


# --- terms ------------------------------------------------------------------------------------------------------------

BY_PURPOSE: list[tuple[Purpose, str]] = [
    ("weight", "weights"), ("buffer", "weights"), ("adapter", "adapters"), ("gradient", "gradients"),
    ("state", "optimizer.state"), ("input", "inputs"), ("cache", "kv_cache"), ("workspace", "cublas.workspace"),
]  # fmt: skip


@pytest.mark.parametrize(("purpose", "term"), BY_PURPOSE)
@pytest.mark.parametrize("phase", PHASES)
def test_what_has_a_purpose_belongs_to_its_term_in_every_phase(purpose: Purpose, term: str, phase: str) -> None:
    for block in (NO_BLOCK, 0, 1):
        storage = Storage(1, purpose, 0, 0, 0, block)
        assert term_of(storage, Mark(0, phase, "blocks", "steady", 1), "load") == term


# (purpose, block of the storage, phase in which it was made; phase, instant and block that run; term)
BY_PLACE: list[tuple[Purpose, int, str, str, str, int, str]] = [
    # what an operator made: the running block's work, what another block saved, the head's
    ("activation", 2, "forward", "forward", "last block", 2, "activations.block"),
    ("activation", 1, "forward", "forward", "last block", 2, "activations.saved"),
    ("activation", 2, "forward", "backward", "blocks", 2, "activations.block"),
    ("activation", 1, "forward", "backward", "blocks", 2, "activations.saved"),
    ("activation", 1, "forward", "loss", "head", NO_BLOCK, "activations.saved"),
    ("activation", 1, "forward", "backward", "loss", NO_BLOCK, "activations.saved"),
    ("activation", NO_BLOCK, "forward", "forward", "last block", NO_BLOCK, "activations.block"),
    ("activation", NO_BLOCK, "loss", "loss", "head", NO_BLOCK, "logits"),
    ("activation", NO_BLOCK, "loss", "backward", "loss", NO_BLOCK, "logits"),
    ("activation", NO_BLOCK, "backward", "backward", "loss", NO_BLOCK, "logits"),
    # what the loss made and somebody still holds; what backward makes outside of blocks
    ("activation", NO_BLOCK, "loss", "backward", "blocks", 1, "outputs"),
    ("activation", NO_BLOCK, "backward", "backward", "embedding", NO_BLOCK, "activations.block"),
    # in the step: the optimizer's own, and what is left of before
    ("activation", NO_BLOCK, "step", "step", "update", NO_BLOCK, "optimizer.step"),
    ("activation", 2, "forward", "step", "update", NO_BLOCK, "outputs"),
    ("hidden", NO_BLOCK, "forward", "step", "update", NO_BLOCK, "outputs"),
    # the input of a block is saved until its own backward runs
    ("hidden", 2, "forward", "forward", "last block", 2, "activations.saved"),
    ("hidden", NO_BLOCK, "forward", "loss", "head", NO_BLOCK, "activations.saved"),
    ("hidden", 2, "forward", "backward", "blocks", 1, "activations.saved"),
    ("hidden", 2, "forward", "backward", "blocks", 2, "activations.block"),
    ("hidden", NO_BLOCK, "forward", "backward", "loss", NO_BLOCK, "activations.saved"),
    # a weight in another dtype
    ("cast", 2, "forward", "forward", "last block", 2, "autocast.weights"),
    ("cast", 2, "forward", "backward", "blocks", 2, "autocast.weights"),
    ("cast", NO_BLOCK, "step", "step", "update", NO_BLOCK, "optimizer.step"),
]  # fmt: skip


@pytest.mark.parametrize(("purpose", "block", "born", "phase", "instant", "running", "term"), BY_PLACE)
def test_what_an_operator_made_belongs_where_it_is(
    purpose: Purpose, block: int, born: str, phase: str, instant: str, running: int, term: str
) -> None:
    script = Script().mark(born, "before").born("a", MIB, purpose=purpose, block=block)
    script.mark(phase, instant, block=running)
    assert sizes(told(script)[-1]) == {term: MIB}


# --- the verdict ------------------------------------------------------------------------------------------------------

RESERVED = 80 * MIB


def step() -> Recording:
    """Reserves 120 MiB on a card without end; 80 are enough where the cache is given back."""
    script = Script().mark("load", when="first").born("weights", 30 * MIB, purpose="weight")
    return script.mark("forward").born("a", 40 * MIB).dead("a").born("b", 50 * MIB).recording()


def judged(capacity: int | None, recording: Recording | None = None) -> Judged:
    gpu = structs.replace(GPU, context_bytes=structs.replace(CONTEXT, low=2 * MIB, point=4 * MIB, high=8 * MIB))
    return judge(recording or step(), DEFAULT, gpu, capacity)


@pytest.mark.parametrize(
    ("capacity", "verdict", "fails"),
    [
        (RESERVED + 8 * MIB, "fits", False),
        (RESERVED + 8 * MIB - 1, "tight", False),
        (RESERVED + 4 * MIB, "tight", False),
        (RESERVED + 4 * MIB - 1, "tight", True),
        (RESERVED + 2 * MIB, "tight", True),
        (RESERVED + 2 * MIB - 1, "does_not_fit", True),
        (0, "does_not_fit", True),
    ],
)
def test_the_verdict_is_where_the_replay_ends(capacity: int, verdict: str, fails: bool) -> None:
    """Beside the largest context, beside the smallest; whether it fails, beside the usual one."""
    found = judged(capacity)
    assert (found.verdict, found.failed is not None) == (verdict, fails)


def test_what_does_not_fit_is_told_as_on_a_card_without_end() -> None:
    ends, whole = judged(RESERVED - 4 * MIB), judged(None)
    assert ends.failed is not None
    assert (ends.failed.asked, ends.failed.mark) == (50 * MIB, step().marks[1])
    assert ends.phases == whole.phases
    assert (whole.verdict, whole.failed) == (None, None)
    assert whole.worst.processes[0].reserved_bytes == 120 * MIB


def test_retries_are_warned_of_and_so_are_assumptions() -> None:
    assumed = structs.replace(step(), assumed=["a mask selects all tokens"])
    assert judged(10 << 30, assumed).warnings == ["a mask selects all tokens"]
    assert judged(RESERVED + 8 * MIB, assumed).warnings == [
        "it fits because cached blocks are freed once: slow",
        "a mask selects all tokens",
    ]


def test_a_share_of_the_card_counts_too() -> None:
    """Half of a card that is large enough is not."""
    half = parse("per_process_memory_fraction:0.5")
    gpu = structs.replace(GPU, total_bytes=structs.replace(GPU.total_bytes, value=2 * RESERVED - 2))
    assert judge(step(), half, gpu, 10 << 30).verdict == "does_not_fit"
    assert judge(step(), DEFAULT, gpu, 10 << 30).verdict == "fits"


def test_instants_stand_as_a_steps_last_micro_batch_has_them() -> None:
    """What makes the batch, before a step's scores, counts as its forward; it does not bring forward to the front."""
    script = Script().mark("forward", "last block").born("ids", MIB)
    for number in range(2):
        script.mark("score.old", "head").born(f"scores {number}", MIB)
    for number in range(2):
        script.mark("forward", "last block").born(f"kept {number}", 2 * MIB)
        script.mark("loss", "head").born(f"loss {number}", MIB)
        script.mark("backward", "loss").dead(f"kept {number}")
    script.mark("step", "update").born("state", MIB)
    names = [phase.name for phase in told(script)]
    assert names == ["score.old", "forward", "loss", "backward", "step"]


def test_a_score_has_a_head_too() -> None:
    script = Script().mark("score.old", "head").born("tile", MIB)
    assert sizes(told(script)[0]) == {"logits": MIB}
