"""Laws of the allocator, for any order of births and deaths under any settings."""

from __future__ import annotations

from itertools import pairwise
from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.memory.segments import Placed, place
from vramcast.trace.allocator import Allocator, Block, NoRoom, parse
from vramcast.units import GIB, MIB

some = settings(max_examples=30)
SIZES = st.one_of(st.integers(1, MIB), st.integers(MIB, 12 * MIB), st.integers(10 * MIB, 90 * MIB))
Step: TypeAlias = tuple[bool, int, int]
STEPS = st.lists(st.tuples(st.booleans(), SIZES, st.integers(0, 1)), max_size=50)
"""(a birth, its size, its stream); a death otherwise, of the living one that the size points at"""
TEXTS = st.sampled_from(
    [
        "",
        "expandable_segments:True",
        "max_split_size_mb:32",
        "max_split_size_mb:32,expandable_segments:True",
        "roundup_power2_divisions:4",
        "garbage_collection_threshold:0.3,per_process_memory_fraction:0.5",
        "large_segment_size_mb:12,garbage_collection_threshold:0.2,per_process_memory_fraction:0.9",
    ]
)


def run(allocator: Allocator, steps: list[Step]) -> list[Block]:
    """The blocks that live in the end; a birth that fails is left out."""
    live: list[Block] = []
    for birth, size, stream in steps:
        if birth:
            try:
                live.append(allocator.malloc(size, stream))
            except NoRoom:
                continue
        elif live:
            allocator.free(live.pop(size % len(live)))
        assert allocator.requested <= allocator.allocated <= allocator.reserved
        assert allocator.allocated == sum(block.size for block in live)
    return live


@given(TEXTS, STEPS)
@some
def test_blocks_cover_what_was_asked_for_and_segments_cover_blocks(text: str, steps: list[Step]) -> None:
    allocator = Allocator(parse(text), total=GIB)
    live = run(allocator, steps)
    ranges = sorted((block.address, block.address + block.size) for block in live)
    assert all(end <= start for (_, end), (start, _) in pairwise(ranges))
    free = sum(block.size for pool in allocator.pools() for block in pool.blocks())
    assert free == allocator.reserved - allocator.allocated


@given(TEXTS, STEPS)
@some
def test_nothing_is_left_when_all_is_freed(text: str, steps: list[Step]) -> None:
    allocator = Allocator(parse(text), total=GIB)
    for block in run(allocator, steps):
        allocator.free(block)
    assert (allocator.requested, allocator.allocated) == (0, 0)
    allocator.empty_cache()
    assert allocator.reserved == 0
    assert not any(pool.keys or pool.unmapped for pool in allocator.pools())


@given(TEXTS, STEPS, st.integers(20, 400))
@some
def test_a_card_is_never_overfull(text: str, steps: list[Step], capacity: int) -> None:
    allocator = Allocator(parse(text), capacity * MIB, GIB)
    run(allocator, steps)
    assert allocator.card.peak <= capacity * MIB


@given(STEPS)
@some
def test_on_a_large_card_the_cache_is_never_freed(steps: list[Step]) -> None:
    allocator, endless = Allocator(parse(""), 100 * GIB), Allocator(parse(""))
    run(allocator, steps)
    run(endless, steps)
    assert allocator.retries == 0
    assert (allocator.allocated, allocator.reserved) == (endless.allocated, endless.reserved)


@given(TEXTS, STEPS, st.integers(50, 400))
@some
def test_the_same_events_give_the_same_addresses(text: str, steps: list[Step], capacity: int) -> None:
    first, second = (
        [(block.address, block.size) for block in run(Allocator(parse(text), capacity * MIB), steps)] for _ in range(2)
    )
    assert first == second


@given(st.lists(SIZES, max_size=40))
@some
def test_fresh_tensors_lie_as_the_formulas_have_them(sizes: list[int]) -> None:
    allocator = Allocator(parse(""))
    for size in sizes:
        allocator.malloc(size)
    assert Placed(allocator.allocated, allocator.reserved) == place(sizes)


@given(st.lists(SIZES, max_size=40))
@some
def test_expandable_segments_that_only_grow_waste_less_than_a_page_for_each_pool(sizes: list[int]) -> None:
    allocator = Allocator(parse("expandable_segments:True"))
    for size in sizes:
        allocator.malloc(size)
    assert allocator.reserved - allocator.allocated < 20 * MIB + 2 * MIB
    assert allocator.allocated == sum(-(-size // 512) * 512 for size in sizes)
