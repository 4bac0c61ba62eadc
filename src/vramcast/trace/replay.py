"""The replay of a recording: what PyTorch's counters show at every instant, and whether the card is large enough."""

from __future__ import annotations

from msgspec import Struct

from vramcast.trace.allocator import Allocator, AllocatorSettings, Block, NoRoom
from vramcast.trace.recording import Mark, Recording


class Span(Struct, frozen=True, kw_only=True):
    """The counters of one mark, as after torch.cuda.reset_peak_memory_stats() at its start."""

    mark: Mark
    allocated: int
    """the peak of max_memory_allocated"""
    event: int
    """after this event it stands; the one before the mark if memory only falls, -1 before all"""
    requested: int
    """bytes of the storages that live there"""
    reserved_there: int
    reserved: int
    """the peak of max_memory_reserved"""
    allocated_end: int
    reserved_end: int


class OutOfMemory(Struct, frozen=True, kw_only=True):
    """The allocation for which there is no segment, even with an empty cache."""

    event: int
    mark: Mark | None
    """None before the first"""
    storage: int
    asked: int
    """bytes of the storage"""
    tried: int
    """bytes of its segment: PyTorch's message names these"""
    allocated: int
    """when it was asked for, the cache already freed"""
    reserved: int


class Replay(Struct, frozen=True, kw_only=True):
    spans: list[Span]
    """one for each mark; out of memory, the last ends there"""
    retries: int
    """how often the cache was freed because the card was full: num_alloc_retries"""
    oom: OutOfMemory | None = None

    @property
    def allocated(self) -> int:
        return max((span.allocated for span in self.spans), default=0)

    @property
    def reserved(self) -> int:
        return max((span.reserved for span in self.spans), default=0)


def replay(
    recording: Recording, settings: AllocatorSettings, capacity: int | None = None, total: int | None = None
) -> Replay:
    """Run every event through the allocator.

    `capacity`: bytes that the card has free for this process's segments, None: without end. `total`: bytes of the whole
    card, of which `per_process_memory_fraction` is a share; the capacity if it is not known.
    """
    heap = Heap(recording, settings, capacity, total)
    allocator = heap.allocator
    found = list(recording.spans())
    before = found[0][1] if found else len(recording.events)
    spans: list[Span] = []
    oom: OutOfMemory | None = None
    for mark, first, end in [(None, 0, before), *found]:
        peak = _Peak(allocator, first - 1)
        event = first
        try:
            for event in range(first, end):
                heap.apply(event)
                if allocator.allocated > peak.allocated:
                    peak.see(allocator, event)
        except NoRoom as full:
            oom = _oom(heap, mark, event, full)
        if mark is not None:
            spans.append(peak.span(allocator, mark))
        if oom is not None:
            break
    return Replay(spans=spans, retries=allocator.retries, oom=oom)


class Heap:
    """The allocator, and the block of every storage that lives."""

    def __init__(
        self, recording: Recording, settings: AllocatorSettings, capacity: int | None = None, total: int | None = None
    ) -> None:
        self.events = recording.events
        self.storages = recording.storages
        self.allocator = Allocator(settings, capacity, total)
        self.blocks: dict[int, Block] = {}

    def apply(self, event: int) -> None:
        """The next event. A storage without bytes has no block.

        Raises:
            NoRoom: the card is full.
        """
        code = self.events[event]
        if code < 0:
            self.allocator.empty_cache()
        elif code & 1:
            block = self.blocks.pop(code >> 1, None)
            if block is not None:
                self.allocator.free(block)
        else:
            storage = self.storages[code >> 1]
            if storage.bytes:
                self.blocks[code >> 1] = self.allocator.malloc(storage.bytes, storage.stream)


class _Peak:
    """The highest point of a span so far; at its start what the spans before it left."""

    def __init__(self, allocator: Allocator, event: int) -> None:
        allocator.card.peak = allocator.card.reserved
        self.see(allocator, event)

    def see(self, allocator: Allocator, event: int) -> None:
        self.event = event
        self.allocated = allocator.allocated
        self.requested = allocator.requested
        self.reserved = allocator.reserved

    def span(self, allocator: Allocator, mark: Mark) -> Span:
        return Span(
            mark=mark,
            allocated=self.allocated,
            event=self.event,
            requested=self.requested,
            reserved_there=self.reserved,
            reserved=allocator.card.peak,
            allocated_end=allocator.allocated,
            reserved_end=allocator.reserved,
        )


def _oom(heap: Heap, mark: Mark | None, event: int, full: NoRoom) -> OutOfMemory:
    storage = heap.events[event] >> 1
    return OutOfMemory(
        event=event,
        mark=mark,
        storage=storage,
        asked=heap.storages[storage].bytes,
        tried=full.tried,
        allocated=heap.allocator.allocated,
        reserved=heap.allocator.reserved,
    )
