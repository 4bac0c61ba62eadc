"""PyTorch's caching allocator, as far as a formula can know it: what rounding keeps beyond the tensors themselves.

Source: c10/cuda/CUDACachingAllocator.cpp and c10/core/AllocatorConfig.h (torch 2.13).
"""

from __future__ import annotations

from vramcast.memory.seat import Seat
from vramcast.memory.term import TERMS, Term, term
from vramcast.num import Size, let, tabulate, total

BLOCK = 512
LARGE = 10 << 20
SEGMENT = 2 << 20


@term(
    "allocator.cached",
    lives=lambda seat: True,
    counter="cached",
    basis="derived",
    source="c10/cuda/CUDACachingAllocator.cpp: round_size, get_allocation_size, should_split",
)
def allocator_cached(seat: Seat) -> Size:
    """What the caching allocator keeps beyond the tensors: the rounding of those that stay.

    Every tensor is rounded to 512 bytes. One of 10 MiB or more gets a segment of its own, rounded to 2 MiB: the
    remainder is split off above 1 MiB and unusable below. With expandable segments only the 512 bytes remain. Tensors
    that live for a moment reuse what is cached and are left out. The high value adds the blocks kept from an earlier
    phase: they are given back before an allocation fails, but other processes cannot use them.
    """
    entries = [entry for entry in TERMS.values() if entry.tensors and entry.lives(seat) and entry.rounds(seat)]
    return total(seat.once(f"{entry.name} rounding", lambda entry=entry: _rounding(entry, seat)) for entry in entries)


def _rounding(entry: Term, seat: Seat) -> Size:
    slack = _page_slack if seat.expandable else _segment_slack
    tensors = entry.tensors(seat) if entry.tensors else ()
    return let(f"{entry.name} rounding", total(count * tabulate(slack, size) for count, size in tensors))


def _segment_slack(size: int) -> int:
    return _page_slack(size) if size < LARGE else -(-size // SEGMENT) * SEGMENT - size


def _page_slack(size: int) -> int:
    return -(-size // BLOCK) * BLOCK - size
