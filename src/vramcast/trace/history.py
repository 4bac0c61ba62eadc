"""The entries of a memory snapshot: what the allocator did at every event, with stacks, and the segments it left."""

from __future__ import annotations

from sys import intern
from typing import Any, TypeAlias

from vramcast.trace.allocator import Block, NoRoom
from vramcast.trace.recording import Mark, Recording, Storage
from vramcast.trace.replay import Heap

Frame: TypeAlias = dict[str, Any]
Entry: TypeAlias = dict[str, Any]
_POOL = [0, 0]
"""the default pool; others are of CUDA graphs"""
_NO_CATEGORY = "unknown"
"""MemoryViz.js stops if entries have categories and none is this one"""


class History:
    """What the allocator did, entry by entry, and the segments that it left."""

    def __init__(self, recording: Recording, heap: Heap) -> None:
        self.entries: list[Entry] = []
        self._recording = recording
        self._heap = heap
        self._stacks = _Stacks(recording)
        self._frames: dict[int, list[Frame]] = {}
        """of every storage, as it was born"""
        self._segments: dict[int, list[Frame]] = {}
        """address of a segment -> frames of the storage that it was reserved for"""
        self._event = 0
        self._current: list[Frame] = []
        self._note = ""
        heap.allocator.card.watch = self._segment

    def run(self) -> None:
        notes = {first: intern(instant_of(mark)) for mark, first, end in self._recording.spans() if first < end}
        try:
            for event, code in enumerate(self._recording.events):
                self._event = event
                self._note = notes.get(event, self._note)
                self._step(code)
        except NoRoom as full:
            card = self._heap.allocator.card
            left = 0 if card.capacity is None else card.capacity - card.reserved
            self._add("oom", full.size, self._stream(self._event), device_free=left)

    def _step(self, code: int) -> None:
        storage = code >> 1
        if code < 0:
            self._current = []
            self._heap.apply(self._event)
        elif code & 1:
            self._free(storage)
        else:
            self._allocate(storage)

    def _allocate(self, index: int) -> None:
        storage = self._recording.storages[index]
        self._current = self._frames[index] = self._stacks.of(storage, self._note)
        self._heap.apply(self._event)
        block = self._heap.blocks.get(index)
        if block is not None:
            self._add("alloc", storage.bytes, storage.stream, addr=block.address, category=intern(storage.purpose))

    def _free(self, index: int) -> None:
        block = self._heap.blocks.get(index)
        if block is not None:
            self._current = self._frames[index]
            for action in ("free_requested", "free_completed"):
                self._add(action, block.requested, block.pool.stream, addr=block.address)
        self._heap.apply(self._event)

    def _stream(self, event: int) -> int:
        return self._recording.storages[self._recording.events[event] >> 1].stream

    def _segment(self, action: str, address: int, size: int, stream: int) -> None:
        self._segments[address] = self._current
        self._add(action, size, stream, addr=address, category=_NO_CATEGORY)

    def _add(self, action: str, size: int, stream: int, **fields: Any) -> None:
        self.entries.append(
            {
                "action": action,
                **fields,
                "size": size,
                "stream": stream,
                "time_us": self._event,
                "pool_id": _POOL,
                "compile_context": "N/A",
                "user_metadata": self._note,
                "frames": self._current,
            }
        )

    # --- the state at the end -----------------------------------------------------------------------------------------

    def segments(self) -> list[dict[str, Any]]:
        """Every segment, and every stretch of mapped pages of an expandable one, by address."""
        owners = {block.address: index for index, block in self._heap.blocks.items()}
        blocks = list(self._heap.blocks.values())
        for pool in self._heap.allocator.pools():
            blocks += pool.blocks()
        heads = [block for block in blocks if block.before is None or not block.before.mapped]
        return [self._described(head, owners) for head in sorted(heads, key=lambda block: block.address)]

    def _described(self, head: Block, owners: dict[int, int]) -> dict[str, Any]:
        blocks: list[dict[str, Any]] = []
        block: Block | None = head
        while block is not None and block.mapped:
            blocks.append(
                {
                    "address": block.address,
                    "size": block.size,
                    "requested_size": block.requested,
                    "state": "active_allocated" if block.allocated else "inactive",
                    "frames": self._frames[owners[block.address]] if block.allocated else [],
                }
            )
            block = block.after
        active = sum(each["size"] for each in blocks if each["state"] == "active_allocated")
        return {
            "device": 0,
            "address": head.address,
            "total_size": sum(each["size"] for each in blocks),
            "allocated_size": active,
            "active_size": active,
            "requested_size": sum(each["requested_size"] for each in blocks),
            "stream": head.pool.stream,
            "segment_type": "small" if head.pool.small else "large",
            "segment_pool_id": _POOL,
            "is_expandable": head.expandable is not None,
            "frames": self._segments.get(head.address, []),
            "blocks": blocks,
        }


class _Stacks:
    """Frames of storages, innermost first. Equal ones are the same object, so that the file holds each once."""

    def __init__(self, recording: Recording) -> None:
        self._names = [intern(name) for name in recording.names]
        self._stacks: dict[tuple[int, int, int, str, str], list[Frame]] = {}
        self._frames: dict[tuple[str, str], Frame] = {}

    def of(self, storage: Storage, instant: str) -> list[Frame]:
        key = (storage.shape, storage.op, storage.module, storage.purpose, instant)
        if key not in self._stacks:
            module = self._names[storage.module]
            modules = [module[:end] for end in range(len(module), 0, -1) if module[end : end + 1] in ("", ".")]
            self._stacks[key] = [
                self._frame("tensor", f"{self._names[storage.shape]} ({storage.purpose})"),
                self._frame("operator", self._names[storage.op]),
                *(self._frame("module", path) for path in modules),
                self._frame("phase", instant),
            ]
        return self._stacks[key]

    def _frame(self, kind: str, name: str) -> Frame:
        key = (kind, name)
        if key not in self._frames:
            self._frames[key] = {"filename": kind, "line": 0, "name": intern(name)}
        return self._frames[key]


def instant_of(mark: Mark) -> str:
    """A mark in words."""
    return f"{mark.phase}, {mark.instant}, {mark.when} step"
