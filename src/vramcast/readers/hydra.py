"""Hydra's overrides (`key=value`, `+key=`, `++key=`, `~key`) and OmegaConf's `${...}`, as flat keys with values.

Hydra's own parser is not used: it needs a second parser runtime, and the part of its grammar that scripts use is small.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from vramcast.errors import Mistakes, refuse
from vramcast.readers.bash.words import EMPTY, UNSET, Gap, Word

_OVERRIDE = re.compile(r"(?P<sign>\+\+|\+|~)?(?P<key>[A-Za-z_][\w.@/:-]*)(?P<assigned>=(?P<value>.*))?", re.DOTALL)
_CONFIG_FLAG = re.compile(r"--?(?P<name>config-name|cn|config-path|cp|config-dir|cd)(?:=(?P<value>.*))?", re.DOTALL)
_INTEGER = re.compile(r"[+-]?(?:0|[1-9]\d*(?:_\d+)*)")
_FLOAT = re.compile(
    r"[+-]?(?:(?:\d[\d_]*\.[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?|\d[\d_]*[eE][+-]?\d+|inf|nan)", re.IGNORECASE
)
_ENVIRONMENT = re.compile(r"\$\{oc\.env:\s*(?P<name>\w+)\s*(?:,(?P<other>[^{}]*))?\}")
_OPENING, _CLOSING = "[{(", "]})"
_DEEPEST = 60
"""Dots of a key, brackets of a value."""
_LONGEST_NUMBER = 1000
_LONGEST_SAID = 80
_MOST_MISTAKES = 20
_MOST_PENDING = 500
"""Interpolations of one configuration."""


class Overrides(NamedTuple):
    """Flat keys with their values, as the overrides leave them."""

    values: dict[str, Any]
    lines: dict[str, int]
    gaps: dict[str, tuple[Gap, ...]]
    """Keys whose value is not known."""
    config: dict[str, Word]
    """`name` and `path` of another configuration tree, if one is chosen."""
    empty: list[Gap]
    """Words of which nothing is known, not even a key."""


def read_overrides(words: Iterable[Word], name: str) -> Overrides:
    """The overrides on a command line; `name` is the script in messages.

    Raises:
        Refused: a word is no override.
    """
    found = Overrides({}, {}, {}, {}, [])
    mistakes = Mistakes()
    below: dict[str, set[str]] = {}
    rest = deque(words)
    while rest:
        word = rest.popleft()
        flag = _CONFIG_FLAG.fullmatch(word.text)
        if flag:
            value = Word(flag["value"], word.line) if flag["value"] is not None else rest.popleft() if rest else word
            kind = "name" if flag["name"] in ("config-name", "cn") else "path"
            found.config[kind] = value
        elif not word.text and word.gaps:
            found.empty.extend(word.gaps)
        elif not word.text.startswith("-"):  # hydra's own switches change nothing here
            _take(found, below, word, name, mistakes)
        if len(mistakes.found) > _MOST_MISTAKES:
            mistakes.add(f"{name}: there may be more", help="the words behind these were not read")
            break
    mistakes.done()
    return found


def _take(found: Overrides, below: dict[str, set[str]], word: Word, name: str, mistakes: Mistakes) -> None:
    """Add an override to `found`; `below` has the keys by the names that stand before their dots."""
    match = _OVERRIDE.fullmatch(word.text)
    origin = {"from": f"{name}:{word.line}" if word.line else name}
    if not match or (match["sign"] != "~" and not match["assigned"]):
        mistakes.add(f"{word.text[:_LONGEST_SAID]!r} is no override key=value", **origin)
        return
    key, text = match["key"], match["value"] or ""
    if key.count(".") > _DEEPEST:
        mistakes.add(f"{key[:_LONGEST_SAID]}... is nested too deeply", **origin)
        return
    for old in [key, *below.pop(key, ())]:
        for table in (found.values, found.lines, found.gaps):
            table.pop(old, None)
    if match["sign"] == "~":
        return
    gaps = word.gaps or (() if text.strip() else (Gap("the value", EMPTY, word.line),))
    if gaps:
        found.lines[key], found.gaps[key] = word.line, gaps
        _sort_in(key, below)
        return
    try:
        value = parse_value(text)
    except RecursionError:
        mistakes.add(f"{key}: {text[:_LONGEST_SAID]}... is nested too deeply", **origin)
        return
    for inner, plain in flat({key: value}):
        found.values[inner], found.lines[inner] = plain, word.line
        _sort_in(inner, below)


def _sort_in(key: str, below: dict[str, set[str]]) -> None:
    at = key.find(".")
    while at >= 0:
        below.setdefault(key[:at], set()).add(key)
        at = key.find(".", at + 1)


def flat(content: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Nested mappings as dotted keys; an empty mapping stays."""
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")  # pyright: ignore[reportUnknownArgumentType]
        else:
            yield f"{prefix}{key}", value


def parse_value(text: str, depth: int = 0) -> Any:
    """A value in hydra's notation: null, booleans in any case, numbers, quoted and plain text, lists, mappings.

    Raises:
        RecursionError: nested deeper than any configuration.
    """
    text = text.strip()
    if depth > _DEEPEST:
        raise RecursionError
    if text[:1] == "[" and text[-1:] == "]":
        return [parse_value(part, depth + 1) for part in _parts(text[1:-1])]
    if text[:1] == "{" and text[-1:] == "}":
        pairs = (part.partition(":") for part in _parts(text[1:-1]))
        return {str(parse_value(key, depth + 1)): parse_value(value, depth + 1) for key, _, value in pairs}
    if len(text) > 1 and text[0] in "'\"" and text[-1] == text[0]:
        return text[1:-1].replace(f"\\{text[0]}", text[0])
    return scalar(text)


def scalar(text: str) -> Any:
    """Plain text as the value it looks like."""
    lowered = text.lower()
    if lowered == "null":
        return None
    if lowered in ("true", "false"):
        return lowered == "true"
    if len(text) > _LONGEST_NUMBER:
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def _parts(text: str) -> list[str]:
    """The items between commas that stand outside quotes and brackets."""
    parts: list[str] = []
    start, depth, quote = 0, 0, ""
    for at, char in enumerate(text):
        if quote or char in "'\"":
            quote = "" if char == quote else quote or char
        depth += (char in _OPENING) - (char in _CLOSING) if not quote else 0
        if char == "," and not depth and not quote:
            parts.append(text[start:at])
            start = at + 1
    return [part for part in (*parts, text[start:]) if part.strip()]


def resolve(
    found: Overrides, defaults: Mapping[str, Any], skipped: tuple[str, ...], environment: Mapping[str, Word], name: str
) -> None:
    """Replace `${key}`, `${oc.select:key,default}` and `${oc.env:NAME,default}` by what they stand for.

    Keys that begin with one of `skipped` are left as they are. A variable counts if the script exports it; the
    environment of this process is not read.

    Raises:
        Refused: with every interpolation that names nothing.
    """
    pending = _pending(found, skipped)
    if sum(text.count("${") for text in pending.values()) > _MOST_PENDING:
        raise refuse(f"{name} has more than {_MOST_PENDING} interpolations ${{...}}")
    for key, text in pending.items():
        value = _with_environment(text, found.lines.get(key, 0), environment)
        if isinstance(value, Gap):
            del found.values[key]
            found.gaps[key] = (value,)
        else:
            found.values[key] = scalar(value)
    pending = _pending(found, skipped)
    if not pending:
        return
    from omegaconf import OmegaConf
    from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

    known = {key: value for key, value in found.values.items() if _parses(value)}
    config = OmegaConf.create(_nested({**defaults, **known, **dict.fromkeys(found.gaps, "???")}))
    mistakes = Mistakes()
    for key, text in pending.items():
        line = found.lines.get(key, 0)
        try:
            if key not in known:
                raise ValueError(text)
            value: Any = OmegaConf.select(config, key, throw_on_missing=True)
            found.values[key] = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
        except InterpolationToMissingValueError:
            found.gaps[key] = (Gap(text, "names a value that is not known", line),)
            del found.values[key]
        except (OmegaConfBaseException, ValueError, RecursionError):
            mistakes.add(
                f"{key}: {text[:_LONGEST_SAID]} names no value", **{"from": f"{name}:{line}" if line else name}
            )
    mistakes.done()


def _pending(found: Overrides, skipped: tuple[str, ...]) -> dict[str, str]:
    return {
        key: value
        for key, value in found.values.items()
        if isinstance(value, str) and "${" in value and not key.startswith(skipped)
    }


def _parses(value: Any) -> bool:
    """Whether OmegaConf takes the value: one bad interpolation would spoil the whole tree."""
    if "${" not in str(value):
        return True
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        OmegaConf.create([value])
    except OmegaConfBaseException:
        return False
    return True


def _with_environment(text: str, line: int, environment: Mapping[str, Word]) -> str | Gap:
    parts: list[str] = []
    at = 0
    for match in _ENVIRONMENT.finditer(text):
        variable, other = match["name"], match["other"]
        word = environment.get(variable)
        known = word.text if word is not None and not word.gaps else other
        if known is None:
            return Gap(f"${variable}", UNSET, line)
        parts += [text[at : match.start()], known.strip()]
        at = match.end()
    return "".join([*parts, text[at:]])


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as nested mappings."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *folders, last = key.split(".")
        at: Any = tree
        for folder in folders:
            at = at.setdefault(folder, {}) if isinstance(at, dict) else {}  # pyright: ignore
        if isinstance(at, dict):  # else a key inside a plain value: nothing can name it
            at[last] = value
    return tree
