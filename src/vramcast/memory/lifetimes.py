"""One table for what the tape and what a trace say: tensors by birth and death, and the sums and peaks of a stretch.

Steps are events, a birth or a death each, in order; a tensor is there from its birth on and until its death. Sizes are
of any reading.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from vramcast.models.measured import NEVER
from vramcast.num import Size, running_peak, total


class Life(NamedTuple):
    """A tensor of the table."""

    name: str
    kind: str
    size: Size
    born: int
    dies: int = NEVER
    """`NEVER`: it outlives the table"""

    def is_there(self, step: int) -> bool:
        """Whether it lives when a step begins."""
        return self.born < step and (self.dies == NEVER or self.dies >= step)


class Lifetimes:
    """Tensors in order of birth."""

    def __init__(self, lives: Iterable[Life]) -> None:
        self.lives = tuple(lives)

    def living(self, step: int, kind: str | None = None, since: int = 0) -> list[Life]:
        """Those of a kind that are there when a step begins, born from step `since` on."""
        return [
            life for life in self.lives if life.born >= since and life.is_there(step) and kind in (None, life.kind)
        ]

    def alive(self, step: int, kind: str | None = None, since: int = 0) -> Size:
        """Their bytes."""
        return total(life.size for life in self.living(step, kind, since))

    def left(self, kind: str) -> Size:
        """Bytes of a kind that outlive the table."""
        return total(life.size for life in self.lives if life.kind == kind and life.dies == NEVER)

    def peak(self, start: int = 0, end: int | None = None, *, since: int = 0, without: str | None = None) -> Size:
        """Most bytes alive at any step from `start` on and before `end`, of tensors born from `since` on, one kind
        left out."""
        start = max(start, since)
        steps: list[tuple[int, int, Size]] = []
        for life in self.lives:
            if life.born < since or life.kind == without or (life.born < start and not life.is_there(start)):
                continue
            steps.append((max(life.born, start - 1), 1, life.size))
            if life.dies != NEVER:
                steps.append((life.dies, -1, life.size))
        steps.sort(key=lambda step: step[0])
        return running_peak([(sign, size) for at, sign, size in steps if end is None or at < end])
