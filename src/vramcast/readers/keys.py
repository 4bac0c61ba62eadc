"""A key of a framework, the path that it feeds, and how the value is read from the one and written as the other.

What is written back (a lever's edit, in the keys of the user's own file) is the same table read from right to left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from vramcast.errors import near
from vramcast.units import MIB

UNSAID: Any = object()
"""What a codec writes for a value that the framework has no word for."""


def same(value: Any) -> Any:
    return value


class Codec(Struct, frozen=True):
    """How a value is read, and how it is written."""

    read: Callable[[Any], Any]
    """the framework's value → the value of our path, or None for no fact; `ValueError`: not a value of this key"""
    write: Callable[[Any], Any] = same
    """our value → the framework's, or `UNSAID`"""


class Key(Struct, frozen=True):
    """A key that sets one path."""

    native: str
    path: str
    codec: Codec = Codec(same)
    when: str = ""
    """the switch without which the key has no effect"""


def one_of(table: Mapping[str, Any]) -> Callable[[Any], Any]:
    """A reader for a key with named values."""

    def read(value: Any) -> Any:
        if not isinstance(value, str) or value not in table:
            known = near(str(value), table) or ", ".join(table)
            raise ValueError(f"{value!r} is not modelled; known: {known}")
        return table[value]

    return read


def spelled(table: dict[str, Any], case: Callable[[str], str]) -> Codec:
    """Named values that may be written in any case."""
    return named(table, lambda value: one_of(table)(case(str(value))))


def named(table: dict[str, Any], read: Callable[[Any], Any] | None = None) -> Codec:
    """Named values. Of several names of one value the framework is told the one that is also ours, else the first."""
    first: dict[Any, str] = {ours: theirs for theirs, ours in reversed(table.items())}
    return Codec(read or one_of(table), lambda ours: ours if ours in table else first.get(ours, UNSAID))


def flag(value: Any) -> bool:
    """A flag, as argparse casts it: also in quotes."""
    if isinstance(value, str) and value.lower() in ("true", "yes", "1", "false", "no", "0"):
        return value.lower() in ("true", "yes", "1")
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is not true or false")
    return value


def switch(on: str, off: str, read: Callable[[Any], bool] = flag) -> Codec:
    """A flag that chooses between two named values."""
    return Codec(lambda value: on if read(value) else off, lambda ours: {on: True, off: False}.get(ours, UNSAID))


def number(value: Any) -> float:
    """A number, as argparse casts it: PyYAML reads 2e-5 as text."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{value!r} is not a number") from None


def whole(value: Any) -> int:
    """A count of one or more, also in quotes."""
    try:
        found = int(value)
    except (TypeError, ValueError, OverflowError):
        found = 0
    if found < 1:
        raise ValueError(f"{value!r} is not a whole number from 1")
    return found


def names(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]  # pyright: ignore[reportUnknownArgumentType]


def given(value: Any) -> Any:
    """A value that the framework cannot do without.

    Raises:
        ValueError: null.
    """
    if value is None:
        raise ValueError("null is no value that verl runs with")
    return value


HOMES = spelled({"none": "none", "cpu": "cpu", "nvme": "nvme"}, str.lower)
"""Where states rest."""
FLAG, NAMES, GIVEN = Codec(flag), Codec(names), Codec(given)
MIBS = Codec(
    lambda value: f"{given(value)}MiB",
    lambda size: size // MIB if isinstance(size, int) and not size % MIB else UNSAID,
)
"""Megabytes of 2**20 bytes, as a plain number."""
