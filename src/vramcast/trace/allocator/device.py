"""The allocator of one card: sizes come, blocks go out, and the counters are PyTorch's.

Source: CUDACachingAllocator.cpp: DeviceCachingAllocator (round_size, get_allocation_size, get_free_block, should_split,
alloc_block, malloc, free_block). Not replayed: pools of CUDA graphs and user pools, record_stream, the trickle of
memory that cudaMalloc itself rounds away.
"""

from __future__ import annotations

from vramcast.memory.alloc_conf import INTERVALS, AllocatorSettings
from vramcast.memory.alloc_words import UNLIMITED
from vramcast.memory.segments import BLOCK, LARGE, SEGMENT, SMALL
from vramcast.trace.allocator import expandable, release
from vramcast.trace.allocator.blocks import Block, Pool
from vramcast.trace.allocator.card import Card
from vramcast.units import MIB


class NoRoom(Exception):
    """Out of memory: not even with an empty cache is there a segment for the block."""

    def __init__(self, size: int, tried: int) -> None:
        super().__init__(size, tried)
        self.size = size
        """of the block"""
        self.tried = tried
        """of the segment: what PyTorch's message says that it tried to allocate"""


class Allocator:
    """`capacity`: bytes that the card has for this process's segments; `total`: bytes of the whole card."""

    def __init__(self, settings: AllocatorSettings, capacity: int | None = None, total: int | None = None) -> None:
        self.settings = settings
        self.card = Card(capacity, total, settings.allowed(total or capacity))
        self.allocated = 0
        """bytes of blocks, with what was too short to be split off"""
        self.requested = 0
        self.retries = 0
        self._small: dict[int, Pool] = {}
        self._large: dict[int, Pool] = {}
        self._searches = 0
        """for large blocks: the clock of garbage collection"""
        self._threshold = 0
        if self.card.allowed is not None and settings.garbage_collection_threshold > 0:
            self._threshold = int(settings.garbage_collection_threshold * self.card.allowed)
        self._divides = any(count > 1 for count in settings.roundup_power2_divisions)

    @property
    def reserved(self) -> int:
        """Bytes of segments."""
        return self.card.reserved

    def malloc(self, requested: int, stream: int = 0) -> Block:
        """A block for a tensor of at least one byte.

        Raises:
            NoRoom: the card is full.
        """
        size = self._rounded(requested) if self._divides else -(-requested // BLOCK) * BLOCK
        pool = self._pool(stream, size)
        block = self._cached(pool, size) or self._new(pool, size)
        rest = block.size - size
        if rest and self._splits(pool, size, rest):
            pool.add(block.cut(size))
        block.allocated = True
        block.requested = requested
        self.allocated += block.size
        self.requested += requested
        return block

    def free(self, block: Block) -> None:
        """Back to its pool, in one piece with free neighbours."""
        self.allocated -= block.size
        self.requested -= block.requested
        block.allocated = False
        block.requested = 0
        block.merge(block.before)
        block.merge(block.after)
        block.since = self._searches
        block.pool.add(block)

    def empty_cache(self) -> None:
        """Give every segment back that holds nothing."""
        release.everything(self.card, self.pools())

    def pools(self) -> list[Pool]:
        """In the order in which they are emptied."""
        return [kind[stream] for kind in (self._large, self._small) for stream in sorted(kind)]

    # --- sizes --------------------------------------------------------------------------------------------------------

    def _rounded(self, size: int) -> int:
        """A tensor's block: the next of the divisions between two powers of two, or the next multiple of 512."""
        interval = min(max(size.bit_length() - MIB.bit_length(), 0), INTERVALS - 1)
        divisions = self.settings.roundup_power2_divisions[interval]
        if divisions <= 1 or size <= BLOCK * divisions:
            return -(-size // BLOCK) * BLOCK
        step = (1 << size.bit_length() - 1) // divisions
        return -(-size // step) * step

    def _segment(self, size: int) -> int:
        """What cudaMalloc is asked for."""
        if size <= SMALL:
            return SEGMENT
        return self.settings.large_segment_size if size < LARGE else -(-size // SEGMENT) * SEGMENT

    def _splits(self, pool: Pool, size: int, rest: int) -> bool:
        """What is left becomes a block of its own, if a tensor of the pool could use it."""
        if pool.small or self.settings.expandable_segments:
            return rest >= BLOCK
        return rest > SMALL and size < self.settings.max_split_size

    # --- blocks -------------------------------------------------------------------------------------------------------

    def _pool(self, stream: int, size: int) -> Pool:
        pools = self._small if size <= SMALL else self._large
        pool = pools.get(stream)
        if pool is None:
            page = SEGMENT if size <= SMALL else self.settings.large_segment_size
            pool = pools[stream] = Pool(stream, small=size <= SMALL, page=page)
        return pool

    def _cached(self, pool: Pool, size: int) -> Block | None:
        """The free block that fits best, unless max_split_size keeps it for others."""
        if self._threshold and not pool.small:
            self._searches += 1
        index = pool.first_fit(size)
        if index == len(pool.keys):
            return None
        if self.settings.expandable_segments:
            index = self._least_growth(pool, index)
        found, limit = pool.at(index).size, self.settings.max_split_size
        if found >= limit and (size < limit or found >= size + self.settings.max_non_split_rounding):
            return None
        return pool.pop(index)

    def _least_growth(self, pool: Pool, index: int) -> int:
        """Go on while the next block can expand to less than this one."""
        size = expandable.growth(pool.at(index))
        while index + 1 < len(pool.keys):
            following = expandable.growth(pool.at(index + 1))
            if following >= size:
                break
            index, size = index + 1, following
        return index

    def _new(self, pool: Pool, size: int) -> Block:
        """A block from CUDA; if it has none, cached segments are freed for it, as few as may do and then all."""
        if self._threshold:
            release.by_age(self.card, self._large.values(), self._searches, self._threshold)
        segment, limit = self._segment(size), self.settings.max_split_size
        if self.settings.throw_on_cudamalloc_oom and not self.card.allows(segment):
            raise NoRoom(size, segment)
        block = self._reserve(pool, size, segment)
        if block is None and limit < UNLIMITED and release.oversize(self.card, pool, size, limit):
            block = self._reserve(pool, size, segment)
        if block is None:
            self.empty_cache()
            self.retries += 1
            block = self._reserve(pool, size, segment)
        if block is None:
            raise NoRoom(size, segment)
        return block

    def _reserve(self, pool: Pool, size: int, segment: int) -> Block | None:
        if not self.card.allows(segment):
            return None
        if self.settings.expandable_segments:
            return expandable.take(self.card, pool, size)
        if not self.card.take(segment):
            return None
        block = Block(self.card.place(segment), segment, pool)
        self.card.tell("segment_alloc", block.address, segment, pool.stream)
        return block
