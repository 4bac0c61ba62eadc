"""A part of a recording: the storages that belong to it, and its births and deaths counted from its beginning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from vramcast.models.measured import NEVER, Kind
from vramcast.trace.recording import Recording

KEPT = ("weight", "adapter", "buffer", "state", "workspace")
"""purposes of what is there all the time, or has a term of its own"""
_KINDS: dict[str, Kind] = {"gradient": "gradient", "cast": "cast", "input": "batch"}
Place: TypeAlias = tuple[int, bool]
"""(event, whether behind what comes in there)"""
_Key: TypeAlias = tuple[tuple[int, bool], int, int]
"""(place, +1 of a birth or -1 of a death, storage)"""


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
        """What a tensor is, whatever its size."""
        return self.operator, self.module, self.dtype, self.kind


class Cut(NamedTuple):
    """A part at one size."""

    borders: tuple[int, ...]
    tensors: tuple[Seen, ...]


class Lives:
    """When each storage of a recording is born and dies."""

    def __init__(self, recording: Recording) -> None:
        self.storages = recording.storages
        self.names = recording.names
        self.born = [0] * len(recording.storages)
        self.dies = [len(recording.events)] * len(recording.storages)
        for event, code in enumerate(recording.events):
            if code >= 0:
                (self.dies if code & 1 else self.born)[code >> 1] = event

    def at(self, index: int, event: int) -> bool:
        """Whether a storage is there before an event."""
        return self.born[index] < event <= self.dies[index]

    def made(self, start: int, end: int) -> Iterator[int]:
        """Storages that are born there, of what has no term of its own."""
        for index, storage in enumerate(self.storages):
            if start <= self.born[index] < end and storage.purpose not in KEPT:
                yield index


class Builder:
    """A part while it is put together; what dies behind its end outlives it."""

    def __init__(self, lives: Lives, end: int) -> None:
        self.lives = lives
        self.end = end
        self.places: dict[int, Place] = {}
        """storage → where it comes in"""
        self.kinds: dict[int, Kind] = {}

    def enter(self, index: int, event: int, kind: Kind) -> None:
        """A storage that is there before an event."""
        if index not in self.kinds:
            self.places[index] = (event, False)
            self.kinds[index] = kind

    def add(self, index: int, kind: Kind | None = None) -> None:
        """A storage that is born here."""
        if index not in self.kinds:
            self.places[index] = (self.lives.born[index], True)
            self.kinds[index] = kind or _KINDS.get(self.lives.storages[index].purpose, "activation")

    def cut(self, *borders: Place) -> Cut:
        """The part with its borders."""
        keys: list[_Key] = [(place, 1, index) for index, place in self.places.items()]
        keys += [
            ((self.lives.dies[index], True), -1, index) for index in self.kinds if self.lives.dies[index] < self.end
        ]
        keys = _in_order(sorted(keys), borders)
        step = {(sign, index): number for number, (_, sign, index) in enumerate(keys)}
        return Cut(
            tuple(sum(place < border for place, _, _ in keys) for border in borders),
            tuple(self._seen(index, step) for _, sign, index in keys if sign > 0),
        )

    def _seen(self, index: int, step: dict[tuple[int, int], int]) -> Seen:
        storage, names = self.lives.storages[index], self.lives.names
        return Seen(
            born=step[1, index],
            dies=step.get((-1, index), NEVER),
            kind=self.kinds[index],
            bytes=storage.bytes,
            operator=names[storage.op],
            module=_below(names[storage.module]),
            dtype=names[storage.shape].rpartition(" ")[2],
        )


def _in_order(keys: list[_Key], borders: tuple[Place, ...]) -> list[_Key]:
    """Deaths that follow each other in the order of birth: a cache that is emptied has none of its own."""
    births = 0
    found: list[tuple[tuple[int, int, int], _Key]] = []
    for key in keys:
        place, sign, index = key
        births += 2 * (sign > 0)
        passed = sum(place >= border for border in borders)
        found.append(((births + (sign < 0), passed, index if sign < 0 else 0), key))
    return [key for _, key in sorted(found, key=lambda pair: pair[0])]


def _below(module: str) -> str:
    """A module's name below its block: what follows the first number."""
    parts = module.split(".")
    number = next((index for index, part in enumerate(parts) if part.isdecimal()), -1)
    return ".".join(parts[number + 1 :])
