"""A recording cut into parts: what lives in a block, before the blocks and behind them, birth by birth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from vramcast.errors import Refused, refuse
from vramcast.models.measured import NEVER, Kind
from vramcast.trace.recording import NO_BLOCK, Mark, Recording, Storage

_KEPT = ("weight", "adapter", "buffer", "state", "workspace")
"""purposes of what is there all the time, or has a term of its own"""
_KINDS: dict[str, Kind] = {"gradient": "gradient", "cast": "cast", "input": "batch"}


class Seen(NamedTuple):
    """A tensor at one size. Steps count the births and deaths of its part."""

    born: int
    dies: int
    kind: Kind
    bytes: int
    operator: str
    module: str
    dtype: str

    @property
    def key(self) -> tuple[str, ...]:
        """What a tensor is by, whatever its size."""
        return self.operator, self.module, self.dtype, self.kind


class Cut(NamedTuple):
    """A part at one size."""

    borders: tuple[int, ...]
    tensors: tuple[Seen, ...]


class Batch(NamedTuple):
    """A micro-batch: events at which its stretches begin and end."""

    start: int
    end: int
    forward: dict[int, tuple[int, int]]
    """block → its forward; what happens between two blocks belongs to the second"""
    loss: int
    backward: int
    back: dict[int, tuple[int, int]]
    embedding: int | None

    @property
    def blocks(self) -> int:
        return len(self.forward)


class CutBatch(NamedTuple):
    """The parts of a micro-batch."""

    front: Cut
    blocks: tuple[Cut, ...]
    tail: Cut
    embedding: Cut


def cut(recording: Recording) -> list[CutBatch]:
    """Every micro-batch of a recording.

    Raises:
        Refused: the blocks do not run one after the other, there and back.
    """
    batches = list(_batches(recording))
    lives = _Lives(recording)
    shared = _shared(lives, batches)
    return [
        CutBatch(
            lives.front(batch, shared),
            tuple(lives.block(batch, index) for index in range(batch.blocks)),
            lives.tail(batch),
            lives.embedding(batch),
        )
        for batch in batches
    ]


def _batches(recording: Recording) -> Iterator[Batch]:
    spans = list(recording.spans())
    starts = [
        index
        for index, (mark, _, _) in enumerate(spans)
        if mark.phase == "forward" and (index == 0 or spans[index - 1][0].phase != "forward")
    ]
    for start, end in zip(starts, [*starts[1:], len(spans)], strict=True):
        yield _batch([span for span in spans[start:end] if span[0].phase in ("forward", "loss", "backward")])


def _batch(spans: list[tuple[Mark, int, int]]) -> Batch:
    forward: dict[int, tuple[int, int]] = {}
    back: dict[int, tuple[int, int]] = {}
    embedding: int | None = None
    loss = backward = -1
    before = spans[0][1]
    for mark, first, end in spans:
        if mark.phase == "forward" and mark.block != NO_BLOCK:
            _once(forward, mark.block)
            forward[mark.block] = (before if mark.block else first, end)
            before = end
        elif mark.phase == "loss" and loss < 0:
            loss = first
        elif mark.phase == "backward" and mark.block != NO_BLOCK:
            _once(back, mark.block)
            back[mark.block] = (first, end)
        elif mark.phase == "backward" and mark.instant == "embedding":
            embedding = first
        elif mark.phase == "backward" and backward < 0:
            backward = first
    if loss < 0 or backward < 0 or list(forward) != list(range(len(forward))) or list(back) != list(forward)[::-1]:
        raise _out_of_order()
    return Batch(spans[0][1], spans[-1][2], forward, loss, backward, back, embedding)


def _once(found: dict[int, tuple[int, int]], block: int) -> None:
    if block in found:
        raise _out_of_order()


def _out_of_order() -> Refused:
    return refuse("the model's blocks do not run one after the other, forward and backward: no block stands for all")


def _shared(lives: _Lives, batches: list[Batch]) -> set[int]:
    """Inputs that are made for all micro-batches at once: those of one of them."""
    made = [index for index, storage in enumerate(lives.storages) if storage.purpose == "input" and not lives.module(storage)]
    there = [index for index in made if all(lives.at(index, batch.forward[0][0]) for batch in batches)]
    return set(there[len(there) // len(batches) :])


class _Lives:
    """When each storage of a recording is born and dies."""

    def __init__(self, recording: Recording) -> None:
        self.storages = recording.storages
        self.names = recording.names
        self.born = [0] * len(recording.storages)
        self.dies = [len(recording.events)] * len(recording.storages)
        for event, code in enumerate(recording.events):
            if code >= 0:
                (self.dies if code & 1 else self.born)[code >> 1] = event

    def module(self, storage: Storage) -> str:
        return self.names[storage.module]

    def at(self, index: int, event: int) -> bool:
        """Whether a storage is there before an event."""
        return self.born[index] < event <= self.dies[index]

    def between(self, start: int, end: int) -> Iterator[int]:
        """Storages that are born there, of what has no term of its own."""
        for index, storage in enumerate(self.storages):
            if start <= self.born[index] < end and storage.purpose not in _KEPT:
                yield index

    # --- parts ----------------------------------------------------------------------------------------------------

    def front(self, batch: Batch, without: set[int]) -> Cut:
        """Ids, masks, tables and the first hidden states, until the micro-batch is over."""
        begins = batch.forward[0][0]
        part = _Part(self, batch.start, batch.end)
        for index, storage in enumerate(self.storages):
            if storage.purpose == "input" and index not in without and self.at(index, batch.start):
                part.enter(index, batch.start, "batch")
        for index in self.between(batch.start, begins):
            if index not in without:
                part.add(index, "output" if self._is_hidden(index, 0) else None)
        middle = batch.blocks // 2
        over = max((self.born[index] for index in self.between(batch.start, batch.end)), default=batch.start)
        return part.cut(batch.forward[middle][0], batch.back[middle][0], batch.back[0][0], over + 1)

    def block(self, batch: Batch, block: int) -> Cut:
        """A block's forward, then its backward with what it is given."""
        (begins, ends), (back, over) = batch.forward[block], batch.back[block]
        part = _Part(self, begins, over)
        for index in self._handed_over(batch, begins, block):
            part.enter(index, begins, "input" if self._is_hidden(index, block) else "activation")
        for index in self.between(begins, ends):
            part.add(index, "output" if self.storages[index].purpose == "hidden" else None)
        for index in self._given(batch, back, block):
            part.enter(index, back, "activation")
        for index in self.between(back, over):
            part.add(index)
        return part.cut(begins, ends, back, (back, True), first=begins)

    def tail(self, batch: Batch) -> Cut:
        """Final norm, head and loss, until the gradient of the last block's output is there. At first the model's forward
        still holds what it made before the blocks."""
        last = batch.blocks - 1
        begins, over = batch.forward[last][1], batch.back[last][0]
        part = _Part(self, begins, over)
        for index in self.between(batch.start, begins):
            if self.storages[index].purpose == "hidden" and self.born[index] >= batch.forward[last][0]:
                part.enter(index, begins, "input")
            elif self.at(index, begins) and self.dies[index] < batch.backward and self.storages[index].purpose != "cast":
                part.enter(index, begins, "activation")
        for index in self.between(begins, over):
            part.add(index)
        return part.cut((begins, True), batch.loss, batch.backward)

    def embedding(self, batch: Batch) -> Cut:
        """The embedding's backward; nothing where no gradient reaches it."""
        if batch.embedding is None:
            return Cut((0,), ())
        part = _Part(self, batch.embedding, batch.end)
        for index in self._given(batch, batch.embedding, NO_BLOCK):
            part.enter(index, batch.embedding, "activation")
        for index in self.between(batch.embedding, batch.end):
            part.add(index)
        return part.cut((batch.embedding, True))

    # --- what comes from elsewhere --------------------------------------------------------------------------------

    def _is_hidden(self, index: int, block: int) -> bool:
        return self.storages[index].purpose == "hidden" and self.storages[index].block == block

    def _handed_over(self, batch: Batch, event: int, block: int) -> Iterator[int]:
        """What a block gets from the one before it: its input, and what nothing saves."""
        for index in self.between(batch.start, event):
            if self._is_hidden(index, block):
                yield index
            elif self.storages[index].block != NO_BLOCK and self.at(index, event) and self.storages[index].purpose != "hidden":
                if self.dies[index] < batch.backward and self.storages[index].purpose == "activation":
                    yield index

    def _given(self, batch: Batch, event: int, block: int) -> Iterator[int]:
        """What a backward is given: gradients of what comes behind it, and what is not freed there yet."""
        for index in self.between(batch.start, event):
            if not self.at(index, event) or self.storages[index].purpose in ("gradient", "input"):
                continue
            late = block != NO_BLOCK and self.storages[index].block > block and self.storages[index].purpose != "hidden"
            if self.born[index] >= batch.backward or late:
                yield index


class _Part:
    """A part while it is put together: the storages that belong to it, and when each enters."""

    def __init__(self, lives: _Lives, start: int, end: int) -> None:
        self.lives = lives
        self.start = start
        self.end = end
        self.enters: dict[int, int] = {}
        """storage → the event before which it comes in"""
        self.kinds: dict[int, Kind] = {}

    def enter(self, index: int, event: int, kind: Kind) -> None:
        """A storage that is there already."""
        if index not in self.kinds:
            self.enters[index] = event
            self.kinds[index] = kind

    def add(self, index: int, kind: Kind | None = None) -> None:
        """A storage that is born here."""
        if index not in self.kinds:
            self.kinds[index] = kind or _KINDS.get(self.lives.storages[index].purpose, "activation")

    def cut(self, *borders: int | tuple[int, bool], first: int | None = None) -> Cut:
        """The part. A border is an event, before which storages come in, or behind them if it is true."""
        lives = self.lives
        keys: list[tuple[tuple[int, int], int, int]] = []
        for index in self.kinds:
            enters = self.enters.get(index)
            keys.append(((lives.born[index], 1) if enters is None else (enters, 0), 1, index))
            if lives.dies[index] < self.end:
                keys.append(((lives.dies[index], 1), -1, index))
        places = [border if isinstance(border, tuple) else (border, border == first) for border in borders]
        keys = _in_order(sorted(keys), [(event, int(behind)) for event, behind in places])
        step = {(sign, index): number for number, (_, sign, index) in enumerate(keys)}
        counted = tuple(sum(key < (event, int(behind)) for key, _, _ in keys) for event, behind in places)
        return Cut(counted, tuple(self._seen(index, step) for _, sign, index in keys if sign > 0))

    def _seen(self, index: int, step: dict[tuple[int, int], int]) -> Seen:
        storage, names = self.lives.storages[index], self.lives.names
        return Seen(
            born=step[1, index],
            dies=step.get((-1, index), NEVER),
            kind=self.kinds[index],
            bytes=storage.bytes,
            operator=names[storage.op],
            module=below(names[storage.module]),
            dtype=names[storage.shape].rpartition(" ")[2],
        )


def _in_order(
    keys: list[tuple[tuple[int, int], int, int]], borders: list[tuple[int, int]]
) -> list[tuple[tuple[int, int], int, int]]:
    """Deaths that follow each other in the order of birth: a cache that is emptied has none of its own."""
    births = 0
    groups: list[tuple[int, int, int]] = []
    for key, sign, index in keys:
        births += 2 * (sign > 0)
        passed = sum(key >= border for border in borders)
        groups.append((births + (sign < 0), passed, index if sign < 0 else 0))
    return [key for _, key in sorted(zip(groups, keys, strict=True), key=lambda pair: pair[0])]


def below(module: str) -> str:
    """A module's name below its block: what follows the first number."""
    parts = module.split(".")
    number = next((index for index, part in enumerate(parts) if part.isdecimal()), -1)
    return ".".join(parts[number + 1 :])
