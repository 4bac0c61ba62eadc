"""One TRL file while it is read: its keys with their lines, and what has been made of them so far."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from vramcast.errors import Mistakes
from vramcast.readers.document import Document
from vramcast.readers.trl_keys import flag
from vramcast.types.job import Fact, Missing, Origin, Understanding, Unread, check_value


class Sheet:
    """The keys of a file, and the facts, unread keys, warnings and mistakes that the rules find in them."""

    def __init__(self, document: Document, name: str) -> None:
        self.content = dict(document.content)
        self.lines = document.lines
        self.name = name
        self.written: dict[str, str] = {}
        self.facts: list[Fact] = []
        self.unread: list[Unread] = []
        self.warnings: list[str] = []
        self.missing: list[Missing] = []
        self.mistakes = Mistakes()

    def get(self, key: str) -> Any:
        """The value of a key; None when it is null or not there."""
        return self.content.get(key)

    def flag(self, key: str) -> bool | None:
        """A true or false key; None when it is null, not there, or neither (a mistake)."""
        value = self.get(key)
        if value is None:
            return None
        with self.reading(key):
            return flag(value)
        return None

    def table(self, key: str) -> dict[str, Any]:
        """A key that holds a mapping, or JSON in a string as on TRL's command line; empty when it is not there."""
        value = self.get(key)
        if isinstance(value, str) and value.strip().startswith("{"):
            import json

            with self.reading(key):
                return json.loads(value)
            return {}
        with self.reading(key):
            if value is not None and not isinstance(value, dict):
                raise ValueError(f"{value!r} is not a mapping")
            return value or {}  # pyright: ignore[reportUnknownVariableType]
        return {}

    def take_as(self, written: str, key: str, value: Any) -> None:
        """Read what is written under one name as if it stood under another."""
        self.content[key] = value
        self.written[key] = written

    def label(self, key: str) -> str:
        """The key as it is written in the file."""
        return self.written.get(key, key)

    def where(self, key: str) -> str:
        line = self.lines.get(self.label(key))
        return f"{self.name}:{line}" if line else self.name

    def fact(self, path: str, value: Any, key: str) -> None:
        """`path = value`, because of `key`."""
        origin = Origin(self.where(key), self.label(key))
        with self.mistakes.collect():
            self.facts.append(Fact(path, check_value(path, value, origin), origin))

    def leave(self, key: str) -> None:
        """The key stays unread."""
        self.unread.append(Unread(self.label(key), self.where(key)))

    def warn(self, key: str, text: str) -> None:
        self.warnings.append(f"{self.where(key)}: {self.label(key)} {text}")

    def needs(self, path: str, key: str, text: str) -> None:
        """Only the user can say what `path` is."""
        self.missing.append(Missing(path, f"{self.where(key)}  {self.label(key)} {text}"))

    @contextmanager
    def reading(self, key: str) -> Generator[None, None, None]:
        """A `ValueError` inside the block is a mistake of this key."""
        try:
            yield
        except ValueError as error:
            fact = f"{self.label(key)}: {error}"
            if all(mistake.fact != fact for mistake in self.mistakes.found):  # several rules may read one key
                self.mistakes.add(fact, **{"from": self.where(key)})

    def understanding(self) -> Understanding:
        """What was made of the file.

        Raises:
            Refused: with every mistake that was found.
        """
        self.mistakes.done()
        return Understanding(self.facts, self.unread, self.warnings, self.missing)
