"""Recordings written by hand."""

from __future__ import annotations

from vramcast.trace.recording import EMPTY_CACHE, NO_BLOCK, Mark, Purpose, Recording, Storage, When


class Script:
    """A recording in the making: storages have names here."""

    def __init__(self) -> None:
        self.names = [""]
        self.storages: list[Storage] = []
        self.events: list[int] = []
        self.marks: list[Mark] = []
        self._index: dict[str, int] = {}

    def mark(self, phase: str, instant: str = "whole", when: When = "steady", block: int = NO_BLOCK) -> Script:
        self.marks.append(Mark(len(self.events), phase, instant, when, block))
        return self

    def born(
        self,
        name: str,
        size: int,
        module: str = "",
        purpose: Purpose = "activation",
        op: str = "mm",
        stream: int = 0,
        block: int = NO_BLOCK,
    ) -> Script:
        self._index[name] = len(self.storages)
        self.events.append(2 * len(self.storages))
        words = (self._name(op), self._name(module), self._name(f"{size} bytes"))
        self.storages.append(Storage(size, purpose, *words, block, stream))
        return self

    def dead(self, *names: str) -> Script:
        self.events += [2 * self._index.pop(name) + 1 for name in names]
        return self

    def empty(self) -> Script:
        self.events.append(EMPTY_CACHE)
        return self

    def recording(self) -> Recording:
        return Recording(
            versions={}, patches=[], names=self.names, storages=self.storages, events=self.events, marks=self.marks
        )

    def _name(self, text: str) -> int:
        if text not in self.names:
            self.names.append(text)
        return self.names.index(text)
