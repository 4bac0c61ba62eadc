"""PyTorch's caching allocator, rule by rule; the comments are the arithmetic."""

from __future__ import annotations

import pytest

from vramcast.memory.segments import place
from vramcast.trace.allocator import Allocator, Block, NoRoom, parse
from vramcast.units import GIB, MIB

HALF = MIB // 2


def made(text: str = "", capacity: int | None = None, total: int | None = None) -> Allocator:
    return Allocator(parse(text), capacity, total)


def counters(allocator: Allocator) -> tuple[int, int]:
    return allocator.allocated, allocator.reserved


def filled(allocator: Allocator, *sizes: int) -> list[Block]:
    return [allocator.malloc(size) for size in sizes]


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes", [[1], [MIB], [MIB + 1], [10 * MIB], [11 * MIB], [9 * MIB + HALF] * 2, [12 * MIB + HALF, MIB + HALF // 2]]
)
def test_fresh_tensors_lie_as_the_formulas_have_them(sizes: list[int]) -> None:
    allocator = made()
    filled(allocator, *sizes)
    assert counters(allocator) == place(sizes)


def test_requested_bytes_are_the_tensors_own() -> None:
    allocator = made()
    block = allocator.malloc(11 * MIB - 1)
    assert (allocator.requested, block.size) == (11 * MIB - 1, 12 * MIB)  # 1 MiB of the segment is not split off
    allocator.free(block)
    assert (allocator.requested, allocator.allocated, allocator.reserved) == (0, 0, 12 * MIB)


def test_large_segment_size_is_what_medium_tensors_share() -> None:
    allocator = made("large_segment_size_mb:32")
    filled(allocator, *[9 * MIB] * 3)
    assert counters(allocator) == (27 * MIB, 32 * MIB)  # 32 - 27 = 5 are left


@pytest.mark.parametrize(
    ("size", "block"),
    [
        (2049, 2560),  # from 2048 on by 2048 / 4
        (2048, 2048),
        (1025, 1536),  # up to 4 x 512 by 512
        (5000, 5120),  # 4096 + 1024
        (5 * MIB, 5 * MIB),
        (5 * MIB + 1, 6 * MIB),
        (70 * MIB, 80 * MIB),  # 64 + 16
    ],
)
def test_sizes_are_rounded_up_to_divisions_between_powers_of_two(size: int, block: int) -> None:
    assert made("roundup_power2_divisions:4").malloc(size).size == block


def test_divisions_may_differ_by_size() -> None:
    allocator = made("roundup_power2_divisions:[16:8,32:2,>:1]")
    blocks = filled(allocator, 9 * MIB + 1, 40 * MIB, 70 * MIB)
    assert [block.size for block in blocks] == [10 * MIB, 48 * MIB, 70 * MIB]  # 8 + 2 x 1; 32 + 16; none


# --- free blocks ------------------------------------------------------------------------------------------------------


def test_the_smallest_block_that_fits_is_taken() -> None:
    allocator = made()
    blocks = filled(allocator, 40 * MIB, 30 * MIB, 50 * MIB)
    addresses = [block.address for block in blocks]
    for block in blocks:
        allocator.free(block)
    assert allocator.malloc(29 * MIB).address == addresses[1]
    assert allocator.malloc(31 * MIB).address == addresses[0]


@pytest.mark.parametrize(
    ("size", "lower"),
    [
        (30 * MIB, "second"),  # segments of their own: the newer one is lower
        (10 * MIB, "first"),  # segments of 10 MiB: the older one
        (4 * MIB, "first"),  # in one segment
    ],
)
def test_of_equal_blocks_the_one_at_the_lower_address(size: int, lower: str) -> None:
    allocator = made()
    first, kept, second = filled(allocator, size, 2 * MIB, size)
    assert (second.address < first.address) == (lower == "second")
    allocator.free(second)
    allocator.free(first)
    assert allocator.malloc(size) is (second if lower == "second" else first)
    assert kept.allocated


def test_what_a_block_leaves_is_split_off_where_its_pool_can_use_it() -> None:
    allocator = made()
    large, small = filled(allocator, 30 * MIB, 512)
    allocator.free(large)
    assert allocator.malloc(29 * MIB).size == 30 * MIB  # 1 MiB is not more than 1 MiB
    allocator.free(small)
    assert allocator.malloc(MIB).size == MIB  # of 2 MiB, to the last 512 bytes


def test_free_neighbours_become_one() -> None:
    allocator = made()
    first, second, third = filled(allocator, 6 * MIB, 6 * MIB, 8 * MIB)  # one segment
    allocator.free(first)
    allocator.free(third)
    allocator.free(second)
    assert allocator.malloc(20 * MIB).size == 20 * MIB
    assert allocator.reserved == 20 * MIB


def test_small_and_large_tensors_do_not_share() -> None:
    allocator = made()
    allocator.free(allocator.malloc(MIB + 1))
    allocator.malloc(MIB)
    assert allocator.reserved == 22 * MIB


def test_streams_do_not_share() -> None:
    allocator = made()
    allocator.free(allocator.malloc(30 * MIB))
    allocator.malloc(30 * MIB, stream=7)
    assert allocator.reserved == 60 * MIB
    allocator.malloc(30 * MIB)
    assert allocator.reserved == 60 * MIB


def test_an_empty_cache_keeps_segments_that_hold_something() -> None:
    allocator = made()
    kept, _, freed = filled(allocator, 6 * MIB, 6 * MIB, 40 * MIB)
    allocator.free(kept)
    allocator.free(freed)
    allocator.empty_cache()
    assert counters(allocator) == (6 * MIB, 20 * MIB)


# --- a full card ------------------------------------------------------------------------------------------------------


def test_the_cache_is_freed_when_the_card_is_full() -> None:
    allocator = made(capacity=100 * MIB)
    allocator.free(allocator.malloc(60 * MIB))
    allocator.malloc(80 * MIB)
    assert (allocator.retries, allocator.reserved) == (1, 80 * MIB)


def test_out_of_memory_says_the_segment() -> None:
    allocator = made(capacity=100 * MIB)
    filled(allocator, 6 * MIB, 60 * MIB)  # 80 reserved, 14 of them free but split
    with pytest.raises(NoRoom) as full:
        allocator.malloc(20 * MIB + HALF)
    assert (full.value.size, full.value.tried) == (20 * MIB + HALF, 22 * MIB)
    assert (allocator.retries, *counters(allocator)) == (1, 66 * MIB, 80 * MIB)


def test_a_share_of_the_card_limits_the_process() -> None:
    allocator = made("per_process_memory_fraction:0.5", capacity=190 * MIB, total=200 * MIB)
    allocator.malloc(100 * MIB)
    with pytest.raises(NoRoom):
        allocator.malloc(512)


def test_above_the_share_it_may_fail_without_freeing_the_cache() -> None:
    """60 + 80 are above 0.5 x 200."""
    text = "per_process_memory_fraction:0.5"
    allocator, hasty = made(text, total=200 * MIB), made(f"{text},throw_on_cudamalloc_oom:True", total=200 * MIB)
    for each in (allocator, hasty):
        each.free(each.malloc(60 * MIB))
    allocator.malloc(80 * MIB)
    with pytest.raises(NoRoom):
        hasty.malloc(80 * MIB)
    assert (allocator.retries, allocator.reserved, hasty.retries, hasty.reserved) == (1, 80 * MIB, 0, 60 * MIB)


# --- max_split_size ---------------------------------------------------------------------------------------------------


def test_oversize_blocks_are_not_split_and_serve_only_what_is_close() -> None:
    allocator = made("max_split_size_mb:40")
    allocator.free(allocator.malloc(80 * MIB))
    allocator.malloc(20 * MIB)  # below the limit: not from an oversize block
    assert allocator.reserved == 100 * MIB
    allocator.malloc(60 * MIB)  # 80 is not less than 60 + 20
    assert allocator.reserved == 160 * MIB
    assert allocator.malloc(60 * MIB + 512).size == 80 * MIB
    assert allocator.reserved == 160 * MIB


def test_how_close_can_be_set() -> None:
    allocator = made("max_split_size_mb:40,max_non_split_rounding_mb:21")
    allocator.free(allocator.malloc(80 * MIB))
    assert allocator.malloc(60 * MIB).size == 80 * MIB


def test_one_oversize_block_is_freed_if_it_is_enough() -> None:
    allocator = made("max_split_size_mb:40", capacity=160 * MIB)
    blocks = filled(allocator, 60 * MIB, 80 * MIB)
    for block in blocks:
        allocator.free(block)
    allocator.malloc(40 * MIB)  # 60 and 80 are too far; 60 is freed
    assert (allocator.retries, allocator.reserved) == (0, 120 * MIB)


def test_several_oversize_blocks_are_freed_from_the_largest_down() -> None:
    allocator = made("max_split_size_mb:40", capacity=300 * MIB)
    for block in filled(allocator, 60 * MIB, 70 * MIB, 80 * MIB):
        allocator.free(block)
    allocator.malloc(120 * MIB)  # 80 + 70 are enough
    assert (allocator.retries, allocator.reserved) == (0, 180 * MIB)


# --- garbage collection -----------------------------------------------------------------------------------------------


def aged(text: str) -> Allocator:
    """320 MiB on a card of 1000. Free: 20 MiB and two of 100, one of them a search for a large block older."""
    allocator = made(text, total=1000 * MIB)
    small, first, second, _ = filled(allocator, 20 * MIB, 100 * MIB, 100 * MIB, 100 * MIB)
    allocator.free(small)
    allocator.free(first)
    allocator.free(allocator.malloc(20 * MIB))
    allocator.free(second)
    return allocator


def test_segments_older_than_the_average_are_freed_above_the_threshold() -> None:
    """0.5 x 0.5 x 1000 = 250: 70 to free. At the next search the ages are 1, 2 and 1: only the 2 is above 4 / 3."""
    allocator = aged("garbage_collection_threshold:0.5,per_process_memory_fraction:0.5")
    allocator.malloc(110 * MIB)
    assert (allocator.retries, allocator.reserved) == (0, (320 - 100 + 110) * MIB)


def test_rounds_go_on_until_enough_is_freed() -> None:
    """0.4 x 0.5 x 1000 = 200: 120 to free, the older 100 and then both of the same age."""
    allocator = aged("garbage_collection_threshold:0.4,per_process_memory_fraction:0.5")
    allocator.malloc(110 * MIB)
    assert allocator.reserved == (320 - 220 + 110) * MIB


def test_a_threshold_without_a_share_does_nothing() -> None:
    """PyTorch collects only if set_per_process_memory_fraction, or its setting, gave a limit."""
    allocator = aged("garbage_collection_threshold:0.1")
    allocator.malloc(110 * MIB)
    assert allocator.reserved == (320 + 110) * MIB


# --- expandable segments ----------------------------------------------------------------------------------------------


def expandable(capacity: int | None = None, text: str = "") -> Allocator:
    return made(f"expandable_segments:True{text}", capacity, 16 * GIB)


def test_an_expandable_segment_grows_by_pages() -> None:
    allocator = expandable()
    allocator.malloc(3 * MIB)
    assert counters(allocator) == (3 * MIB, 20 * MIB)
    allocator.malloc(18 * MIB)  # 17 are free at its end
    assert counters(allocator) == (21 * MIB, 40 * MIB)
    allocator.malloc(100)
    assert counters(allocator) == (21 * MIB + 512, 42 * MIB)  # small ones have pages of 2 MiB


def test_its_pages_have_the_size_of_large_segments() -> None:
    allocator = expandable(text=",large_segment_size_mb:12")
    allocator.malloc(25 * MIB)
    assert allocator.reserved == 36 * MIB


def test_whole_pages_that_hold_nothing_are_unmapped() -> None:
    allocator = expandable()
    _, block = filled(allocator, 3 * MIB, 18 * MIB)
    allocator.free(block)  # 3 to 40 is free: the second page
    allocator.empty_cache()
    assert allocator.reserved == 20 * MIB


def test_a_gap_is_mapped_again_by_what_fits_into_it() -> None:
    allocator = expandable()
    first, second, _ = filled(allocator, *[20 * MIB] * 3)
    middle = second.address
    allocator.free(second)
    allocator.empty_cache()
    assert allocator.reserved == 40 * MIB
    allocator.malloc(25 * MIB)  # too large for the gap: two pages at the end
    assert allocator.reserved == 80 * MIB
    assert allocator.malloc(20 * MIB).address == middle == first.address + 20 * MIB
    assert allocator.reserved == 100 * MIB


def test_it_prefers_blocks_that_cannot_grow() -> None:
    """Free are 5 MiB at the end, which can grow, and 8 between others: best fit takes the 8."""
    allocator = expandable()
    _, block, _ = filled(allocator, 20 * MIB, 8 * MIB, 7 * MIB)
    between = block.address
    allocator.free(block)
    assert allocator.malloc(4 * MIB).address == between


def test_pages_of_both_pools_share_the_card() -> None:
    allocator = expandable(capacity=41 * MIB)
    allocator.free(allocator.malloc(30 * MIB))  # two pages
    allocator.malloc(512)  # a page of 2 MiB is free only after the cache is
    assert (allocator.retries, allocator.reserved) == (1, 2 * MIB)


def test_it_runs_out_page_by_page() -> None:
    allocator = expandable(capacity=50 * MIB)
    allocator.malloc(30 * MIB)
    with pytest.raises(NoRoom) as full:
        allocator.malloc(11 * MIB)  # 10 are left in the pages
    assert full.value.tried == 12 * MIB  # the message rounds as for a segment
    assert allocator.malloc(10 * MIB).size == 10 * MIB


def test_an_address_range_without_pages_is_forgotten() -> None:
    allocator = expandable()
    block = allocator.malloc(30 * MIB)
    first = block.address
    allocator.free(block)
    allocator.empty_cache()
    assert allocator.reserved == 0
    assert [pool.unmapped for pool in allocator.pools()] == [[]]
    assert not first <= allocator.malloc(30 * MIB).address < first + 16 * GIB  # another range
