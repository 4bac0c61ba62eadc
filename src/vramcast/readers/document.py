"""A configuration as a mapping with line numbers, from YAML, JSON or TOML text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from vramcast.errors import Refused, refuse

MAX_NODES = 50_000
"""Values of a configuration."""
_DEEPEST = 100
_DOTTED = re.compile(r"[\w.-]+")
_INSIDE_KEYS = str.maketrans("", "", " \t\"'")
_MOST_KEYS = 1000
_LONGEST_KEY = 80


class Document(NamedTuple):
    """A mapping, and the line (from 1) of each key by its dotted name; JSON and TOML come without lines."""

    content: dict[str, Any]
    lines: dict[str, int]
    remarks: tuple[str, ...] = ()
    """What is odd about how it is written."""


def parse(name: str, text: str) -> Document:
    """The mapping in `text`, in the format that the ending of `name` or the text itself shows.

    Raises:
        Refused: not of the format, no mapping, or more or deeper values than any configuration has.
    """
    ending = name.lower()
    if ending.endswith(".toml"):
        read = _toml
    elif ending.endswith(".json"):
        read = _json
    else:
        read = _yaml if ending.endswith((".yaml", ".yml")) else _guess
    document = read(name, text)
    _check_size(document.content, name)
    return document


def _check_size(content: dict[str, Any], name: str) -> None:
    """Refuse what would keep the readers busy: they look at every value, and go down into every mapping."""
    level: list[Any] = [content]
    values = depth = 0
    while level:
        values, depth = values + len(level), depth + 1
        if values > MAX_NODES:
            raise too_many(name)
        if depth > _DEEPEST:
            raise refuse(f"{name} is nested too deeply")
        level = [value for each in level for value in _inside(each)]


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()  # pyright: ignore


def too_many(name: str) -> Refused:
    return refuse(f"{name} holds more than {MAX_NODES:,} values: not a configuration")


def formats() -> str:
    """What is read, for messages."""
    return (
        "TRL YAML (SFT, DPO, GRPO), verl and accelerate YAML; launch scripts of verl and TRL; "
        "job files in TOML, YAML or JSON"
    )


def _guess(name: str, text: str) -> Document:
    if text.lstrip().startswith("{"):
        return _json(name, text)
    try:
        return _toml(name, text)
    except Refused:
        return _yaml(name, text)


def _yaml(name: str, text: str) -> Document:
    from vramcast.readers.yaml_lines import parse_yaml

    return Document(*parse_yaml(text, name))


def _toml(name: str, text: str) -> Document:
    import tomllib

    if text.count("\n") > MAX_NODES:
        raise too_many(name)
    keys = _DOTTED.findall(text.translate(_INSIDE_KEYS))
    if any(run.count(".") > _DEEPEST and sum(map(bool, run.split("."))) > _DEEPEST for run in keys):
        raise refuse(f"{name} is nested too deeply")  # tomllib would take minutes to find out
    try:
        content = tomllib.loads(text)
    except ValueError as error:  # also an integer of more digits than Python reads
        raise refuse(f"{name} is not TOML: {error}") from None
    except RecursionError:
        raise refuse(f"{name} is nested too deeply") from None
    if not content:
        raise refuse(f"{name} is empty")
    return Document(content, {})


def _json(name: str, text: str) -> Document:
    import json

    remarks: list[str] = []

    def last(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = [key for key in found if keys.count(key) > 1] if len(keys) < _MOST_KEYS else ["a key"]
            remarks.extend(f"{name}: {key[:_LONGEST_KEY]} is given twice: the last one counts" for key in twice)
        return found

    try:
        content = json.loads(text, object_pairs_hook=last)  # NaN and Infinity too, as Python writes them
    except ValueError as error:
        raise refuse(f"{name} is not JSON: {error}") from None
    except RecursionError:
        raise refuse(f"{name} is nested too deeply") from None
    if not isinstance(content, dict):
        raise refuse(f"the top level of {name} is not an object with keys")
    if not content:
        raise refuse(f"{name} is empty")
    return Document(content, {}, tuple(remarks))  # pyright: ignore[reportUnknownArgumentType]
