"""The card's memory as one process sees it: what it has reserved, what is left, and at which addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from vramcast.memory.segments import SHARED
from vramcast.units import GIB

Watch: TypeAlias = Callable[[str, int, int, int], None]
"""(action, address, bytes, stream) of what happens to segments, by the names of memory snapshots"""
_FIRST = 0x7F00_0000_0000
_UNKNOWN = 256 * GIB
"""address space is reserved for a card of this size if its size is not known"""


class Card:
    """Counts segments, and places them. An address that was given back is not used again.

    Segments that one tensor may fill alone are placed downwards, as Linux places mappings (the driver reserves address
    space for each); smaller ones upwards, in ranges that the driver shares out. It matters because of blocks of one
    size PyTorch takes the one at the lowest address, here the newest segment: the reserved peaks of the ten T4 runs
    with eager attention in fitcheck-llm 0.3.1 then come out within 12 MiB, in rising order six of them are off by up
    to 500.
    """

    __slots__ = ("_low", "_next", "allowed", "capacity", "peak", "reserved", "total", "watch")

    def __init__(self, capacity: int | None, total: int | None, allowed: int | None) -> None:
        self.capacity = capacity
        """bytes for the segments of this process; None: without end"""
        self.total = total or capacity or _UNKNOWN
        self.allowed = allowed
        """bytes that PyTorch lets itself reserve; None: all"""
        self.reserved = 0
        self.peak = 0
        """most that was reserved since it was last set"""
        self.watch: Watch | None = None
        self._next = self._low = _FIRST

    def take(self, size: int) -> bool:
        """Reserve bytes, if they are there."""
        if self.capacity is not None and self.reserved + size > self.capacity:
            return False
        self.reserved += size
        if self.reserved > self.peak:
            self.peak = self.reserved
        return True

    def give(self, size: int) -> None:
        """Give bytes back."""
        self.reserved -= size

    def place(self, size: int, gap: int = 0) -> int:
        """The address of a new range, with a gap behind it."""
        if size > SHARED:
            self._low -= size + gap
            return self._low
        address = self._next
        self._next += size + gap
        return address

    def allows(self, size: int) -> bool:
        """The process's own limit leaves room for so many bytes."""
        return self.allowed is None or self.reserved + size <= self.allowed

    def tell(self, action: str, address: int, size: int, stream: int) -> None:
        if self.watch is not None:
            self.watch(action, address, size, stream)
