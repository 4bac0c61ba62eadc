"""What NCCL holds outside PyTorch's counters, by ranks."""

from __future__ import annotations

from collections.abc import Callable

from vramcast.catalog.overheads import nccl
from vramcast.memory.term import Interval
from vramcast.num import Size, tabulate


def communicator(ranks: Size) -> Interval:
    """Bytes of one communicator's channels and buffers on each of its ranks."""

    def bound(name: str) -> Callable[[int], int]:
        def buffers(count: int) -> int:
            return getattr(nccl(count), name)

        return buffers

    return Interval(*(tabulate(bound(name), ranks) for name in Interval._fields))
