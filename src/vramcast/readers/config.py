"""One TRL file while it is read: its keys with their lines, and what has been made of them so far."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from typing import Any

from vramcast.errors import Mistakes
from vramcast.readers.document import Document
from vramcast.readers.frameworks.trl.keys import flag
from vramcast.types.job import Fact, Idle, Missing, Origin, Understanding, Unread, check_value

_LEFT_OUT = "null: as if it were left out"


class ConfigReader:
    """The keys of a file, and the facts, unread keys, warnings and mistakes that the rules find in them.

    Every key must end as one of these, or as one without effect: what no rule has spoken of is unread.
    """

    def __init__(self, document: Document, name: str) -> None:
        self.content = dict(document.content)
        self.said = document.content
        self.lines = document.lines
        self.name = name
        self.written: dict[str, str] = {}
        self.facts: list[Fact] = []
        self.unread: list[Unread] = []
        self.warnings: list[str] = []
        self.missing: list[Missing] = []
        self.idle: list[Idle] = []
        self.no_effect: list[Unread] = []
        self.mistakes = Mistakes()
        self.settled: set[str] = set()
        """keys as they are written, of which something has been made"""

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
        with self.reading(key):
            if isinstance(value, str) and value.strip().startswith("{"):
                value = _json(value)
            if value is not None and not isinstance(value, dict):
                raise ValueError(f"{value!r} is not a mapping")
            return {str(name): inner for name, inner in (value or {}).items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
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
        self.settled.add(self.label(key))
        with self.mistakes.collect():
            self.facts.append(Fact(path, check_value(path, value, origin), origin))

    def leave(self, key: str) -> None:
        """The key stays unread."""
        self.settled.add(self.label(key))
        self.unread.append(Unread(self.label(key), self.where(key)))

    def rest(self, key: str, why: str = "") -> None:
        """The key changes no memory: of this job, because of `why`; without a reason, of none."""
        self.settled.add(self.label(key))
        if why:
            self.idle.append(Idle(self.label(key), _plain(self.get(key)), self.where(key), why))
        else:
            self.no_effect.append(Unread(self.label(key), self.where(key)))

    def warn(self, key: str, text: str) -> None:
        self.settled.add(self.label(key))
        self.warnings.append(f"{self.where(key)}: {self.label(key)} {text}")

    def needs(self, path: str, key: str, text: str) -> None:
        """Only the user can say what `path` is."""
        self.settled.add(self.label(key))
        self.missing.append(Missing(path, f"{self.where(key)}  {self.label(key)} {text}"))

    def refuse(self, key: str, what: str, value: Any = None) -> None:
        """The key chooses something that is not modelled."""
        self.settled.add(self.label(key))
        shown = _plain(self.get(key) if value is None else value)
        text = str(shown).lower() if isinstance(shown, bool) else str(shown)
        self.mistakes.add(
            f"{self.label(key)} = {text[:60]} is not modelled yet",
            **{"from": self.where(key), "why": what, "help": "leave the key out to price the job without it"},
        )

    @contextmanager
    def reading(self, key: str) -> Generator[None, None, None]:
        """A `ValueError` inside the block is a mistake of this key."""
        try:
            yield
        except ValueError as error:
            fact = f"{self.label(key)}: {error}"
            self.settled.add(self.label(key))
            if all(mistake.fact != fact for mistake in self.mistakes.found):  # several rules may read one key
                self.mistakes.add(fact, **{"from": self.where(key)})

    def settle(self, without_effect: Collection[str]) -> None:
        """Nothing that is written stays without an answer: what no rule spoke of has no effect, or is unread."""
        for key, value in self.said.items():
            inner = self.table(key) if isinstance(value, dict) or key in self._opened() else {}
            if inner and key not in without_effect:
                for name in inner:
                    self._settle(f"{key}.{name}", inner[name], without_effect)
            else:
                self._settle(key, value, without_effect)

    def _opened(self) -> set[str]:
        """Keys of which a rule has read a part."""
        return {key.partition(".")[0] for key in self.settled if "." in key}

    def _settle(self, key: str, value: Any, without_effect: Collection[str]) -> None:
        if key in self.settled or key.partition(".")[0] in self.settled:
            return
        if key in without_effect:
            self.rest(key)
        elif value is None:
            self.rest(key, _LEFT_OUT)
        elif value in ("", [], {}):
            self.rest(key, "empty")
        else:
            self.leave(key)

    def understanding(self) -> Understanding:
        """What was made of the file.

        Raises:
            Refused: with every mistake that was found.
        """
        self.mistakes.done()
        return Understanding(
            self.facts, self.unread, self.warnings, self.missing, idle=self.idle, no_effect=self.no_effect
        )


def _json(text: str) -> Any:
    import json

    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _plain(value: Any) -> Any:
    """A value as reports show it."""
    if isinstance(value, list | tuple | Mapping):
        return str(value)  # pyright: ignore[reportUnknownArgumentType]
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)
