"""A quantization_config as a table of fields, each checked once and with where it stands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from vramcast.errors import Mistakes, near


class Section:
    """One object of a config. Mistakes of all sections are collected in one place."""

    def __init__(self, config: Mapping[str, Any], source: str, place: str, mistakes: Mistakes) -> None:
        self.config = config
        self.source = source
        self.place = place
        self.mistakes = mistakes

    def wrong(self, fact: str, **context: str) -> None:
        self.mistakes.add(fact, **{"from": self.source, **context})

    def number(self, name: str, otherwise: int | None, allowed: Iterable[int] = ()) -> int:
        """A whole number, -1 included; `otherwise` (None: there must be one) for a field that is missing."""
        value = self.config.get(name)
        if value is None and otherwise is not None:
            return otherwise
        options = list(allowed)
        if not isinstance(value, int) or isinstance(value, bool) or (options and value not in options):
            known = ", ".join(map(str, options))
            problem = "is missing" if value is None else f"= {value!r} is not known"
            self.wrong(f"{self.place}.{name} {problem}", allowed=known)
            return options[0] if options else 128
        return value

    def group(self, name: str = "group_size", otherwise: int | None = None) -> int:
        """A group size: -1 for a whole row, else above 0."""
        value = self.number(name, otherwise)
        if value != -1 and value < 1:
            self.wrong(f"{self.place}.{name} = {value} is no group size", allowed="-1 (a whole row), 32, 64, 128 …")
            return 128
        return value

    def flag(self, name: str, otherwise: bool) -> bool:
        value = self.config.get(name)
        return otherwise if value is None else bool(value)

    def word(self, name: str, known: Iterable[str], otherwise: str = "") -> str:
        """One of `known` words."""
        value = self.config.get(name)
        if value is None and otherwise:
            return otherwise
        words = list(known)
        if value not in words:
            problem = "is missing" if value is None else f"= {value!r} is not known"
            self.wrong(f"{self.place}.{name} {problem}", near=near(str(value), words), allowed=", ".join(words))
            return words[0]
        return str(value)

    def names(self, *fields: str) -> tuple[str, ...] | None:
        """The strings of the first list that is there, nested lists flattened; None if there is none."""
        for field in fields:
            value = self.config.get(field)
            if value is not None:
                return tuple(_strings(value))
        return None

    def sub(self, name: str) -> Section | None:
        """A nested object; None if there is none."""
        value = self.config.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.wrong(f"{self.place}.{name} must be an object, not {value!r}")
            return None
        return Section(cast("dict[str, Any]", value), self.source, f"{self.place}.{name}", self.mistakes)

    def subs(self) -> list[tuple[str, Section]]:
        """Every nested object by its key."""
        return [(key, found) for key in self.config if isinstance(self.config[key], dict) and (found := self.sub(key))]


def _strings(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, (list, tuple)):
        return [text for one in cast("list[object]", value) for text in _strings(one)]
    return []
