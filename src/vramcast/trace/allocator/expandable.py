"""Expandable segments: an address range for a pool and stream, into which memory is mapped page by page.

Source: CUDACachingAllocator.cpp: ExpandableSegment, find_expandable_block, map_block, try_allocate_expandable_block,
unmap_block. Pages have 2 MiB for small blocks and `large_segment_size` for large ones; a range spans 9/8 of the card.
"""

from __future__ import annotations

from vramcast.memory.segments import SEGMENT
from vramcast.trace.allocator.blocks import Block, Expandable, Pool
from vramcast.trace.allocator.card import Card


def take(card: Card, pool: Pool, size: int) -> Block | None:
    """A block of at least `size` bytes, grown by mapping pages; None if the card has no more of them.

    Pages that were mapped before the card was full stay with the pool.
    """
    block = _room(card, pool, size)
    if not block.mapped and not _map(card, block, min(block.size, size)):
        return None
    while block.size < size:
        following = block.after
        assert following is not None  # _room saw address space behind it
        if not _map(card, following, min(size - block.size, following.size)):
            return None
        block = following  # which took in the block before it
    pool.remove(block)
    return block


def give(card: Card, block: Block) -> None:
    """Unmap the pages of a free block that nothing else touches; forget the range when all of it is unmapped."""
    pool, home = block.pool, block.expandable
    assert home is not None
    start = home.address - (home.address - block.address) // home.page * home.page
    end = home.address + (block.address + block.size - home.address) // home.page * home.page
    if start >= end:
        return
    pool.remove(block)
    if start > block.address:
        rest = block.cut(start - block.address)
        pool.add(block)
        block = rest
    if end - start < block.size:
        pool.add(block.cut(end - start))
    block.mapped = False
    block.merge(block.before)
    block.merge(block.after)
    pool.add(block)
    card.give(end - start)
    card.tell("segment_unmap", start, end - start, pool.stream)
    if block.whole:
        pool.remove(block)


def growth(block: Block) -> int:
    """The size that a block can expand to: best fit goes by it."""
    after = block.after
    return block.size if after is None or after.mapped else block.size + after.size


def _room(card: Card, pool: Pool, size: int) -> Block:
    """The lowest address at which free and unmapped blocks in a row have `size` bytes."""
    for block in pool.unmapped:
        before = block.before
        first = before if before is not None and not before.allocated else block
        if _is_room(first, size):
            return first
    length = -(-(card.total + card.total // 8) // pool.page) * pool.page
    new = Block(card.place(length, gap=SEGMENT), length, pool)
    new.expandable = Expandable(new.address, pool.page)
    new.mapped = False
    pool.add(new)
    return new


def _is_room(block: Block | None, size: int) -> bool:
    found = 0
    while found < size and block is not None and not block.allocated:
        found += block.size
        block = block.after
    return found >= size


def _map(card: Card, block: Block, size: int) -> bool:
    """Put memory behind the first `size` bytes of an unmapped block, in whole pages: all of them or none."""
    pool = block.pool
    size = -(-size // pool.page) * pool.page
    if not card.take(size):
        return False
    address = block.address
    pool.remove(block)
    if size < block.size:
        rest = block.cut(size)
        rest.mapped = False
        pool.add(rest)
    block.mapped = True
    block.merge(block.before)
    block.merge(block.after)
    pool.add(block)
    card.tell("segment_map", address, size, pool.stream)
    return True
