"""Tensors that are allocated one after another and stay, placed into segments as PyTorch's caching allocator does.

Source: c10/cuda/CUDACachingAllocator.cpp (torch 2.13): round_size, get_allocation_size, best fit of get_free_block,
should_split. Nothing is freed here, so a free block is always the end of a segment.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import NamedTuple

BLOCK = 512
SMALL = 1 << 20
"""tensors up to it come from segments of their own pool"""
LARGE = 10 << 20
"""tensors from it on get a segment of their own"""
SEGMENT = 2 << 20
"""what segments are rounded to, and the size of one for small tensors"""
SHARED = 20 << 20
"""a segment for tensors between small and large ones"""


class Placed(NamedTuple):
    """Bytes that PyTorch's counters show."""

    allocated: int
    """blocks, with the ends of segments that are too short to be split off"""
    reserved: int
    """segments"""


def rounded(size: int) -> int:
    """A tensor's block."""
    return -(-size // BLOCK) * BLOCK


def place(sizes: Iterable[int], *, cached: int = 0) -> Placed:
    """The counters after tensors of `sizes` bytes were allocated in this order.

    Args:
        cached: bytes of a tensor that was there before them, and is gone: its segment waits for them.
    """
    small: list[int] = []
    large: list[int] = []
    allocated = reserved = 0
    if cached:
        reserved = _segment(rounded(cached))
        (small if cached <= SMALL else large).append(reserved)
    for size in map(rounded, sizes):
        free = small if size <= SMALL else large
        index = bisect_left(free, size)
        if index < len(free):
            block = free.pop(index)
        else:
            block = _segment(size)
            reserved += block
        rest = block - size
        if _splits(rest, size):
            insort(free, rest)
            block = size
        allocated += block
    return Placed(allocated, reserved)


def _segment(size: int) -> int:
    if size <= SMALL:
        return SEGMENT
    return SHARED if size < LARGE else -(-size // SEGMENT) * SEGMENT


def _splits(rest: int, size: int) -> bool:
    """An end is split off if another tensor of its pool could use it."""
    return rest >= BLOCK if size <= SMALL else rest > SMALL
