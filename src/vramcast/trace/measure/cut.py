"""A recording cut into parts: what lives in each block, before the blocks and behind them, birth by birth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from vramcast.trace.measure.batches import Batch, batches
from vramcast.trace.measure.part import Builder, Cut, Lives
from vramcast.trace.recording import NO_BLOCK, Recording


class CutBatch(NamedTuple):
    """The parts of a micro-batch, as `models/measured.py` describes them."""

    front: Cut
    blocks: tuple[Cut, ...]
    tail: Cut
    embedding: Cut


def cut(recording: Recording) -> list[CutBatch]:
    """Every micro-batch of a recording.

    Raises:
        Refused: the blocks do not run one after the other, there and back.
    """
    found, lives = batches(recording), Lives(recording)
    others = _of_others(lives, found)
    cutters = [_Cutter(lives, batch) for batch in found]
    return [
        CutBatch(
            each.front(others),
            tuple(each.block(block) for block in each.batch.forward),
            each.tail(),
            each.embedding(),
        )
        for each in cutters
    ]


def _of_others(lives: Lives, found: list[Batch]) -> set[int]:
    """Inputs that are made for all micro-batches at once: those of all but one."""
    made = [
        index for index, storage in enumerate(lives.storages)
        if storage.purpose == "input" and not lives.names[storage.module]
    ]  # fmt: skip
    there = [index for index in made if all(lives.at(index, batch.blocks_begin) for batch in found)]
    return set(there[len(there) // len(found) :])


class _Cutter:
    """The parts of one micro-batch."""

    def __init__(self, lives: Lives, batch: Batch) -> None:
        self.lives = lives
        self.batch = batch
        self.over = max((lives.born[index] for index in lives.made(batch.start, batch.end)), default=batch.start) + 1
        """the event behind which the caller lets go of what it held"""

    def front(self, others: set[int]) -> Cut:
        """Ids, masks, tables and the first hidden states, until the micro-batch is over."""
        batch, lives = self.batch, self.lives
        part = Builder(lives, batch.end)
        for index, storage in enumerate(lives.storages):
            if storage.purpose == "input" and index not in others and lives.at(index, batch.start):
                part.enter(index, batch.start, "batch")
        for index in lives.made(batch.start, batch.blocks_begin):
            if index not in others:
                part.add(index, "output" if self._is_hidden(index, 0) else None)
        middle = len(batch.forward) // 2
        events = (batch.forward[middle][0], batch.back[middle][0], batch.back[0][0], self.over)
        return part.cut(*((event, False) for event in events))

    def block(self, block: int) -> Cut:
        """A block's forward, then its backward with what it is given."""
        (begins, ends), (back, over) = self.batch.forward[block], self.batch.back[block]
        part = Builder(self.lives, over)
        for index in self._handed_over(begins, block):
            part.enter(index, begins, "input" if self._is_hidden(index, block) else "activation")
        for index in self.lives.made(begins, ends):
            part.add(index, "output" if self._purpose(index) == "hidden" else None)
        for index in self._given(back, block):
            part.enter(index, back, "activation")
        for index in self.lives.made(back, over):
            part.add(index)
        return part.cut((begins, True), (ends, False), (back, False), (back, True))

    def tail(self) -> Cut:
        """Final norm, head and loss, until the gradient of the last block's output is there. At first the model's
        forward still holds what it made before the blocks."""
        batch, lives = self.batch, self.lives
        begins, over = batch.blocks_end, batch.back[batch.last][0]
        part = Builder(lives, over)
        for index in lives.made(batch.start, begins):
            if self._purpose(index) == "hidden" and lives.born[index] >= batch.forward[batch.last][0]:
                part.enter(index, begins, "input")
            elif self._purpose(index) != "cast" and lives.at(index, begins) and lives.dies[index] < batch.backward:
                part.enter(index, begins, "activation")
        for index in lives.made(begins, over):
            part.add(index)
        casts = [index for index in lives.made(batch.start, begins) if self._purpose(index) == "cast"]
        emptied = min((lives.dies[index] for index in casts if begins <= lives.dies[index]), default=batch.backward)
        border = min(emptied, batch.backward)
        return part.cut((begins, True), (batch.loss, False), (border, False), (batch.backward, False))

    def embedding(self) -> Cut:
        """The embedding's backward; nothing where no gradient reaches it."""
        begins = self.batch.embedding
        if begins is None:
            return Cut((), ())
        part = Builder(self.lives, self.batch.end)
        for index in self._given(begins, NO_BLOCK):
            part.enter(index, begins, "activation")
        for index in self.lives.made(begins, self.batch.end):
            part.add(index)
        return part.cut()

    # --- what comes from elsewhere --------------------------------------------------------------------------------

    def _purpose(self, index: int) -> str:
        return self.lives.storages[index].purpose

    def _is_hidden(self, index: int, block: int) -> bool:
        return self._purpose(index) == "hidden" and self.lives.storages[index].block == block

    def _handed_over(self, event: int, block: int) -> Iterator[int]:
        """What a block gets from those before it: its input, and what nothing saves."""
        lives, batch = self.lives, self.batch
        for index in lives.made(batch.start, event):
            passes = lives.at(index, event) and lives.dies[index] < batch.backward
            of_blocks = lives.storages[index].block != NO_BLOCK and self._purpose(index) == "activation"
            if self._is_hidden(index, block) or (of_blocks and passes):
                yield index

    def _given(self, event: int, block: int) -> Iterator[int]:
        """What a backward is given: gradients of what comes behind it, and what is not freed there yet; not what the
        caller holds."""
        lives, batch = self.lives, self.batch
        for index in lives.made(batch.start, event):
            if not lives.at(index, event) or self._purpose(index) in ("gradient", "input"):
                continue
            behind = NO_BLOCK != block < lives.storages[index].block and self._purpose(index) != "hidden"
            if lives.born[index] >= batch.backward or (behind and lives.dies[index] < self.over):
                yield index
