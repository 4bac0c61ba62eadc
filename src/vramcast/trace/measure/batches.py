"""The micro-batches of a recording: at which events their stretches begin and end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from vramcast.errors import Refused, refuse
from vramcast.trace.recording import NO_BLOCK, Mark, Recording

_PHASES = ("forward", "loss", "backward")


class Batch(NamedTuple):
    """A micro-batch."""

    start: int
    end: int
    forward: dict[int, tuple[int, int]]
    """block → its forward; what happens between two blocks belongs to the second"""
    loss: int
    backward: int
    back: dict[int, tuple[int, int]]
    """block → its backward"""
    embedding: int | None
    """where its backward begins, if a gradient reaches it"""

    @property
    def last(self) -> int:
        """The index of the last block."""
        return len(self.forward) - 1

    @property
    def blocks_begin(self) -> int:
        return self.forward[0][0]

    @property
    def blocks_end(self) -> int:
        return self.forward[self.last][1]


def batches(recording: Recording) -> list[Batch]:
    """Every micro-batch.

    Raises:
        Refused: the blocks do not run one after the other, there and back.
    """
    spans = list(recording.spans())
    starts = [
        index
        for index, (mark, _, _) in enumerate(spans)
        if mark.phase == "forward" and (index == 0 or spans[index - 1][0].phase != "forward")
    ]
    return [
        _batch([span for span in spans[start:end] if span[0].phase in _PHASES])
        for start, end in zip(starts, [*starts[1:], len(spans)], strict=True)
    ]


def _batch(spans: list[tuple[Mark, int, int]]) -> Batch:
    forward: dict[int, tuple[int, int]] = {}
    back: dict[int, tuple[int, int]] = {}
    before = spans[0][1]
    for mark, first, end in spans:
        if mark.block == NO_BLOCK or mark.phase == "loss":
            continue
        found = forward if mark.phase == "forward" else back
        if mark.block in found:
            raise _out_of_order()
        found[mark.block] = (before if found is forward and mark.block else first, end)
        before = end
    loss = next(_events(spans, "loss"), None)
    backward = next(_events(spans, "backward"), None)
    order = list(range(len(forward)))
    if loss is None or backward is None or not order or list(forward) != order or list(back) != order[::-1]:
        raise _out_of_order()
    embedding = next(
        (first for mark, first, _ in spans if (mark.phase, mark.instant) == ("backward", "embedding")), None
    )
    return Batch(spans[0][1], spans[-1][2], forward, loss, backward, back, embedding)


def _events(spans: list[tuple[Mark, int, int]], phase: str) -> Iterator[int]:
    return (first for mark, first, _ in spans if mark.phase == phase)


def _out_of_order() -> Refused:
    return refuse("the model's blocks do not run one after the other, forward and backward: no block stands for all")
