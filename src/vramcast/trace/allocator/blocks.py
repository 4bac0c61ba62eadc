"""Blocks of a segment, and the pools that hold the free ones in the order in which they are looked for.

Source: CUDACachingAllocator.cpp: Block, BlockPool, BlockComparatorSize, try_merge_blocks. PyTorch keeps the streams of
a pool in one sorted set; no search crosses from one to the next, so each stream has a pool of its own here.
"""

from __future__ import annotations

from bisect import bisect_left, insort

ADDRESS_BITS = 56
_ADDRESS = (1 << ADDRESS_BITS) - 1


class Block:
    """A range of a segment: allocated, free or, in an expandable segment, without memory behind it."""

    __slots__ = (
        "address",
        "after",
        "allocated",
        "before",
        "expandable",
        "mapped",
        "pool",
        "requested",
        "since",
        "size",
    )

    def __init__(self, address: int, size: int, pool: Pool, expandable: Expandable | None = None) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.expandable = expandable
        """the expandable segment that it is in"""
        self.allocated = False
        self.mapped = True
        self.before: Block | None = None
        self.after: Block | None = None
        self.requested = 0
        self.since = 0
        """searches of the pool when it became free: its age for garbage collection"""

    @property
    def whole(self) -> bool:
        """It is all of its segment."""
        return self.before is None and self.after is None

    def cut(self, size: int) -> Block:
        """Leave it `size` bytes; the rest becomes its neighbour."""
        rest = Block(self.address + size, self.size - size, self.pool, self.expandable)
        rest.before, rest.after = self, self.after
        if self.after is not None:
            self.after.before = rest
        self.after = rest
        self.size = size
        return rest

    def merge(self, other: Block | None) -> None:
        """Take in a free neighbour that is as mapped as this block."""
        if other is None or other.allocated or other.mapped is not self.mapped:
            return
        other.pool.remove(other)
        if self.before is other:
            self.address = other.address
            self.before = other.before
            if other.before is not None:
                other.before.after = self
        else:
            self.after = other.after
            if other.after is not None:
                other.after.before = self
        self.size += other.size


class Expandable:
    """An expandable segment: where its address range begins, and the pages by which memory is mapped into it."""

    __slots__ = ("address", "page")

    def __init__(self, address: int, page: int) -> None:
        self.address = address
        self.page = page


class Pool:
    """The free blocks of a stream that are small, or those that are large: by size, then by address."""

    __slots__ = ("_blocks", "keys", "page", "small", "stream", "unmapped")

    def __init__(self, stream: int, *, small: bool, page: int) -> None:
        self.stream = stream
        self.small = small
        self.page = page
        """what expandable segments grow by"""
        self.keys: list[int] = []
        """size and, below it, address of every free block, sorted"""
        self._blocks: dict[int, Block] = {}
        self.unmapped: list[Block] = []
        """address ranges without memory, by address"""

    def add(self, block: Block) -> None:
        if block.mapped:
            insort(self.keys, block.size << ADDRESS_BITS | block.address)
            self._blocks[block.address] = block
        else:
            insort(self.unmapped, block, key=_address)

    def remove(self, block: Block) -> None:
        if block.mapped:
            del self.keys[bisect_left(self.keys, block.size << ADDRESS_BITS | block.address)]
            del self._blocks[block.address]
        else:
            self.unmapped.remove(block)

    def first_fit(self, size: int) -> int:
        """Index of the smallest free block of at least `size` bytes; the number of blocks, if there is none."""
        return bisect_left(self.keys, size << ADDRESS_BITS)

    def at(self, index: int) -> Block:
        return self._blocks[self.keys[index] & _ADDRESS]

    def pop(self, index: int) -> Block:
        return self._blocks.pop(self.keys.pop(index) & _ADDRESS)

    def blocks(self) -> list[Block]:
        """All free blocks, in order."""
        return [self._blocks[key & _ADDRESS] for key in self.keys]


def _address(block: Block) -> int:
    return block.address
