"""The replay: counters of every span, and where memory runs out."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trace.scripts import Script

from vramcast.trace.allocator import parse
from vramcast.trace.recording import Recording
from vramcast.trace.replay import OutOfMemory, Replay, replay
from vramcast.units import MIB

DEFAULT = parse("")


def steps() -> Recording:
    """Weights of 30 MiB; a forward of 40 + 50, of which 50 stay; a backward that only frees."""
    script = Script().mark("load", when="first").born("weights", 30 * MIB)  # event 0
    script.mark("update", "forward").born("a", 40 * MIB).born("b", 50 * MIB).dead("a")  # 1, 2, 3
    return script.mark("update", "backward").dead("b").empty().recording()  # 4, 5


def test_every_span_has_its_own_peaks() -> None:
    """They begin with what the span before left."""
    load, forward, backward = replay(steps(), DEFAULT).spans
    assert (load.allocated, load.event, load.allocated_end, load.reserved_end) == (30 * MIB, 0, 30 * MIB, 30 * MIB)
    assert (forward.allocated, forward.event, forward.reserved) == (120 * MIB, 2, 120 * MIB)
    assert (forward.allocated_end, forward.reserved_end) == (80 * MIB, 120 * MIB)
    assert (backward.allocated, backward.event, backward.reserved) == (80 * MIB, 3, 120 * MIB)
    assert (backward.allocated_end, backward.reserved_end) == (30 * MIB, 30 * MIB)
    assert [span.mark.phase for span in (load, forward, backward)] == ["load", "update", "update"]


def test_the_whole_has_the_largest() -> None:
    ran = replay(steps(), DEFAULT)
    assert (ran.allocated, ran.reserved, ran.retries, ran.oom) == (120 * MIB, 120 * MIB, 0, None)


def test_requested_and_reserved_bytes_at_the_peak() -> None:
    """11 MiB keep a segment of 12; what is reserved most is reserved later."""
    script = Script().mark("update").born("a", 11 * MIB).born("b", 7).dead("a").born("c", MIB + 1)
    (span,) = replay(script.recording(), DEFAULT).spans
    assert (span.allocated, span.event, span.requested) == (12 * MIB + 512, 1, 11 * MIB + 7)
    assert (span.reserved_there, span.reserved) == (14 * MIB, 14 * MIB)
    later = Script().mark("update").born("a", 60 * MIB).dead("a").born("b", 9 * MIB).born("c", 50 * MIB).recording()
    (span,) = replay(later, parse("max_split_size_mb:40")).spans  # 60 - 50 is less than 20: c takes all of it
    assert (span.allocated, span.event, span.reserved_there, span.reserved) == (69 * MIB, 3, 80 * MIB, 80 * MIB)


def test_storages_without_bytes_have_no_block() -> None:
    script = Script().mark("update").born("a", 0).dead("a").born("b", 0).dead("b")
    assert replay(script.recording(), DEFAULT).reserved == 0


def test_streams_keep_their_memory() -> None:
    script = Script().mark("update").born("a", 30 * MIB).dead("a").born("b", 30 * MIB, stream=7)
    assert replay(script.recording(), DEFAULT).reserved == 60 * MIB


def test_what_comes_before_the_first_mark_is_there() -> None:
    script = Script().born("a", 30 * MIB).mark("update").born("b", 10 * MIB)
    (span,) = replay(script.recording(), DEFAULT).spans
    assert (span.allocated, span.event) == (40 * MIB, 1)


def test_a_recording_of_nothing() -> None:
    assert replay(Script().recording(), DEFAULT) == Replay(spans=[], retries=0)
    (span,) = replay(Script().mark("update").recording(), DEFAULT).spans
    assert (span.allocated, span.event, span.reserved) == (0, -1, 0)


def test_out_of_memory_is_told_with_its_event() -> None:
    ran = replay(steps(), DEFAULT, capacity=100 * MIB)
    assert ran.oom == OutOfMemory(
        event=2,
        mark=steps().marks[1],
        storage=2,
        asked=50 * MIB,
        tried=50 * MIB,
        allocated=70 * MIB,
        reserved=70 * MIB,
    )
    assert (len(ran.spans), ran.spans[1].allocated, ran.retries) == (2, 70 * MIB, 1)


def test_it_fits_in_less_than_it_would_reserve() -> None:
    """The forward frees 40 MiB that 50 do not fit into: without a limit 120 are reserved, 80 are enough."""
    script = Script().mark("update").born("weights", 30 * MIB).born("a", 40 * MIB).dead("a").born("b", 50 * MIB)
    assert replay(script.recording(), DEFAULT).reserved == 120 * MIB
    ran = replay(script.recording(), DEFAULT, capacity=80 * MIB)
    assert (ran.oom, ran.retries, ran.reserved) == (None, 1, 80 * MIB)


def test_memory_may_run_out_before_the_first_mark() -> None:
    ran = replay(Script().born("a", 30 * MIB).mark("update").recording(), DEFAULT, capacity=MIB)
    assert ran.oom is not None
    assert (ran.oom.mark, ran.spans) == (None, [])


def test_a_share_is_of_the_whole_card() -> None:
    text = parse("per_process_memory_fraction:0.5")
    assert replay(steps(), text, total=240 * MIB).oom is None  # 120
    assert replay(steps(), text, capacity=1000 * MIB, total=238 * MIB).oom is not None
    assert replay(steps(), text, capacity=238 * MIB).oom is not None  # the capacity stands for it


@given(st.lists(st.integers(0, 40 * MIB), max_size=30), st.data())
@settings(max_examples=30)
def test_spans_agree_with_counting_by_hand(sizes: list[int], data: st.DataObject) -> None:
    """Rounding and what is not split off may move the peak, never below what is asked for."""
    script, live, peaks = Script(), dict[str, int](), list[int]()
    for index, size in enumerate(sizes):
        if index % 5 == 0:
            script.mark("update", str(index))
            peaks.append(sum(live.values()))
        script.born(str(index), size)
        live[str(index)] = size
        peaks[-1] = max(peaks[-1], sum(live.values()))
        if data.draw(st.booleans()):
            name = data.draw(st.sampled_from(sorted(live)))
            script.dead(name)
            del live[name]
    spans = replay(script.recording(), DEFAULT).spans
    for span, peak in zip(spans, peaks, strict=True):
        assert span.requested <= peak <= span.allocated <= span.reserved
        assert span.reserved_there <= span.reserved
