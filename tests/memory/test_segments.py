"""Tensors in segments: what PyTorch's two counters show after they were allocated one after the other."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.memory.segments import Placed, place, rounded
from vramcast.units import MIB

HALF = MIB // 2
TENTH = MIB // 10 // 512 * 512
"""0.1 MiB of whole blocks"""


@pytest.mark.parametrize(("size", "block"), [(0, 0), (1, 512), (512, 512), (513, 1024), (MIB - 1, MIB), (MIB, MIB)])
def test_a_block_is_a_multiple_of_512_bytes(size: int, block: int) -> None:
    assert rounded(size) == block


def test_nothing_takes_nothing() -> None:
    assert place([]) == Placed(0, 0)


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),  # a segment for small tensors
        (MIB, MIB, 2 * MIB),  # the largest of them
        (MIB + 1, MIB + 512, 20 * MIB),  # a segment that larger ones share
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),  # the largest of them
        (10 * MIB - 511, 10 * MIB, 10 * MIB),  # 10 MiB once rounded: a segment of its own
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),  # the end of 2 MiB - 512 is split off
        (11 * MIB - 512, 11 * MIB - 512, 12 * MIB),  # 1 MiB + 512 still is
        (11 * MIB, 12 * MIB, 12 * MIB),  # 1 MiB is not: the tensor keeps it
        (43 * MIB, 44 * MIB, 44 * MIB),
        (42 * MIB + HALF, 42 * MIB + HALF, 44 * MIB),  # 1.5 MiB is
        (44 * MIB, 44 * MIB, 44 * MIB),
    ],
)
def test_one_tensor(size: int, allocated: int, reserved: int) -> None:
    assert place([size]) == Placed(allocated, reserved)


def test_small_tensors_fill_a_segment_to_the_last_512_bytes() -> None:
    assert place([512] * 4096) == Placed(2 * MIB, 2 * MIB)
    assert place([512] * 4097) == Placed(2 * MIB + 512, 4 * MIB)
    assert place([MIB, MIB - 512, 512]) == Placed(2 * MIB, 2 * MIB)


def test_five_tensors_of_3_5_mib_share_a_segment() -> None:
    """Keys of Qwen2.5-7B in bf16. 20 - 5 x 3.5 = 2.5 MiB are left, too few for a sixth."""
    size = 3 * MIB + HALF
    assert place([size] * 5) == Placed(5 * size, 20 * MIB)
    assert place([size] * 6) == Placed(6 * size, 40 * MIB)


def test_an_end_of_up_to_1_mib_stays_with_the_last_tensor_of_a_shared_segment() -> None:
    assert place([9 * MIB + HALF] * 2) == Placed(20 * MIB, 20 * MIB)  # 20 - 2 x 9.5
    almost = 9 * MIB + HALF - 512
    assert place([almost] * 2) == Placed(2 * almost, 20 * MIB)  # 1 MiB + 1 KiB can be used by another


def test_an_end_that_was_split_off_is_used_by_what_fits() -> None:
    """12.5 MiB get 14; the 1.5 behind them take a tensor of 1.25, which keeps the last quarter."""
    assert place([12 * MIB + HALF, MIB + MIB // 4]) == Placed(14 * MIB, 14 * MIB)
    assert place([12 * MIB + HALF, MIB + HALF + 512]) == Placed(14 * MIB + 512, 34 * MIB)  # does not fit


def test_a_tensor_takes_the_smallest_end_that_is_large_enough() -> None:
    """Ends of 1.9 MiB (behind 10.1) and of 1.5 (behind 12.5): 1.3 MiB go into the second, so 1.8 fit into the first.
    Each keeps what is left behind it."""
    first, second = 10 * MIB + TENTH, 12 * MIB + HALF
    assert place([first, second, MIB + 3 * TENTH, MIB + 8 * TENTH]) == Placed(26 * MIB, 26 * MIB)


def test_small_tensors_do_not_use_the_ends_of_large_ones() -> None:
    assert place([12 * MIB + HALF, MIB]) == Placed(13 * MIB + HALF, 16 * MIB)


def test_large_tensors_do_not_use_what_small_ones_left() -> None:
    assert place([512, MIB + 512]) == Placed(MIB + 1024, 22 * MIB)


def test_order_decides_what_a_free_end_is_good_for() -> None:
    """1.25 MiB after 12.5 use its end; before it they open a segment of 20 MiB, into which 12.5 fit as well."""
    short, long = MIB + MIB // 4, 12 * MIB + HALF
    assert place([long, short]) == Placed(14 * MIB, 14 * MIB)
    assert place([short, long]) == Placed(13 * MIB + 3 * MIB // 4, 20 * MIB)


def test_tensors_are_cut_from_one_segment_that_was_there_before() -> None:
    """43 MiB get 44 alone. Cut from what 86 MiB and a small tensor had reserved, 88 MiB, they get what they ask for."""
    sizes = [43 * MIB, 43 * MIB, 512]
    assert place(sizes) == Placed(88 * MIB + 512, 90 * MIB)
    assert place(sizes, cached=sum(sizes)) == Placed(86 * MIB + 512, 90 * MIB)


def test_the_last_one_keeps_an_end_of_up_to_1_mib_of_it() -> None:
    assert place([43 * MIB, 44 * MIB], cached=87 * MIB) == Placed(88 * MIB, 88 * MIB)


def test_a_small_tensor_of_before_leaves_a_segment_for_small_ones() -> None:
    assert place([512], cached=512) == Placed(512, 2 * MIB)
    assert place([512, 2 * MIB], cached=MIB) == Placed(512 + 2 * MIB, 22 * MIB)


# --- laws -------------------------------------------------------------------------------------------------------------

SMALL = st.integers(1, MIB)
LARGE = st.integers(MIB + 1, 64 * MIB)
some = settings(max_examples=50)


@given(st.lists(SMALL | LARGE, max_size=30))
@some
def test_allocated_lies_between_the_blocks_and_what_is_reserved(sizes: list[int]) -> None:
    """No tensor keeps more than 1 MiB beside its block, and segments are whole ones."""
    placed, blocks = place(sizes), sum(map(rounded, sizes))
    assert blocks <= placed.allocated <= min(blocks + len(sizes) * MIB, placed.reserved)
    assert placed.reserved % (2 * MIB) == 0


@given(st.lists(SMALL | LARGE, max_size=20), SMALL | LARGE)
@some
def test_one_tensor_more_never_frees_anything(sizes: list[int], more: int) -> None:
    before, after = place(sizes), place([*sizes, more])
    assert after.allocated >= before.allocated + rounded(more)
    assert after.reserved >= before.reserved


@given(st.lists(SMALL, max_size=20), st.lists(LARGE, max_size=20), st.integers(0, 1000))
@some
def test_the_two_pools_know_nothing_of_each_other(small: list[int], large: list[int], seed: int) -> None:
    """However small and large tensors take turns, each pool has what it has alone."""
    turns = [True] * len(small) + [False] * len(large)
    Random(seed).shuffle(turns)
    queues = {True: iter(small), False: iter(large)}
    together, first, second = place(next(queues[turn]) for turn in turns), place(small), place(large)
    assert together == Placed(first.allocated + second.allocated, first.reserved + second.reserved)


@given(SMALL | LARGE, st.integers(1, 40))
@some
def test_equal_tensors_by_a_formula(size: int, count: int) -> None:
    """So many to a segment; the last of each keeps an end of up to 1 MiB, but a small one keeps none."""
    block = -(-size // 512) * 512
    segment = 2 * MIB if block <= MIB else 20 * MIB if block < 10 * MIB else -(-block // (2 * MIB)) * 2 * MIB
    each = segment // block
    end = segment - each * block
    kept = end if block > MIB and end <= MIB else 0
    assert place([size] * count) == Placed(count * block + count // each * kept, -(-count // each) * segment)
