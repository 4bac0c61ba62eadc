"""A configuration as a mapping with line numbers, from YAML, JSON or TOML text."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

from vramcast.errors import refuse


class Document(NamedTuple):
    """A mapping, and the line (from 1) of each key by its dotted name; JSON and TOML come without lines."""

    content: dict[str, Any]
    lines: dict[str, int]


def parse(name: str, text: str) -> Document:
    """The mapping in `text`, in the format that the ending of `name` or the text itself shows.

    Raises:
        Refused: not of the format, or no mapping.
    """
    ending = name.lower()
    if ending.endswith(".toml"):
        return _toml(name, text)
    if ending.endswith(".json"):
        return _json(name, text)
    if ending.endswith((".yaml", ".yml")):
        return _yaml(name, text)
    return _guess(name, text)


def formats() -> str:
    """What is read, for messages."""
    return (
        "TRL YAML (SFT, DPO, GRPO), verl and accelerate YAML; launch scripts of verl and TRL; "
        "job files in TOML, YAML or JSON"
    )


def _guess(name: str, text: str) -> Document:
    import tomllib

    if text.lstrip().startswith("{"):
        return _json(name, text)
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError):
        return _yaml(name, text)
    return Document(content, {}) if content else _yaml(name, text)


def _yaml(name: str, text: str) -> Document:
    from vramcast.readers.yaml_lines import parse_yaml

    return Document(*parse_yaml(text, name))


def _toml(name: str, text: str) -> Document:
    import tomllib

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

    try:
        content = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except ValueError as error:
        raise refuse(f"{name} is not JSON: {error}") from None
    except RecursionError:
        raise refuse(f"{name} is nested too deeply") from None
    if not isinstance(content, dict):
        raise refuse(f"the top level of {name} is not an object with keys")
    if not content:
        raise refuse(f"{name} is empty")
    return Document(content, {})  # pyright: ignore[reportUnknownArgumentType]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key!r} is given twice")
        found[key] = value
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")
