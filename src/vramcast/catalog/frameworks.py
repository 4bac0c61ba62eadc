"""Frameworks: the defaults and behaviours of each, by version, as rows of `frameworks/<name>.json`.

A row holds from version `since` (included) to `until` (excluded). A row with `when` holds if each of its paths has the
given value (or one of the given values); it wins over the rows without, and a later row wins over an earlier one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from vramcast.errors import Refused, near, refuse
from vramcast.types.job import Fact, Origin
from vramcast.types.paths import PATHS, Value, find, read_value
from vramcast.types.recipe import Recipe

_FOLDER = os.path.join(os.path.dirname(__file__), "frameworks")
_Key: TypeAlias = tuple[int, ...]
_RELEASE = re.compile(r"\d+(?:\.\d+)*")


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What default and behaviour rows share: the value, when it holds, and where it was read."""

    value: Any
    source: str
    since: str = ""
    until: str = ""
    algorithms: tuple[str, ...] = ()
    when: dict[str, Any] = {}


class Default(Row, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The value that a path has when the user says nothing."""

    path: str


class Mode(Row, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A field of `Recipe` and its value."""

    mode: str


_AnyRow = TypeVar("_AnyRow", bound=Row)


class Framework(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One framework. `versions`, newest first: those at which a row begins or ends, and the newest that was read."""

    name: str
    versions: tuple[str, ...]
    defaults: tuple[Default, ...]
    modes: tuple[Mode, ...]


class Release(NamedTuple):
    """A framework and version that rows exist for; `warning` says what is uncertain about the version, or is empty."""

    name: str
    version: str
    warning: str = ""


def framework_names() -> tuple[str, ...]:
    """The frameworks that have rows."""
    return tuple(sorted(file.removesuffix(".json") for file in os.listdir(_FOLDER) if file.endswith(".json")))


def frameworks() -> tuple[Framework, ...]:
    """Every framework with its rows."""
    return tuple(map(framework, framework_names()))


@cache
def framework(name: str) -> Framework:
    """One framework with its rows.

    Raises:
        Refused: no rows for this name.
    """
    if name not in framework_names():
        raise _unknown(name)
    with open(os.path.join(_FOLDER, f"{name}.json"), "rb") as file:
        return msgspec.json.decode(file.read(), type=Framework)


def parse_framework(text: str) -> Release:
    """`trl==1.16` or `trl` (the newest) → the release whose rows hold.

    Raises:
        Refused: unknown framework, or not a version.
    """
    name, operator, version = (part.strip() for part in text.lower().partition("=="))
    known = framework(name).versions
    if not operator:
        return Release(name, known[0])
    try:
        key = _key(version)
    except ValueError:
        raise refuse(f"{text!r}: {version!r} is not a version", use=f"{name}=={known[0]}") from None
    if key > _key(known[0]):
        return Release(name, version, f"{name} {version} is newer than {known[0]}, whose rows are used")
    if key < _key(known[-1]):
        return Release(name, version, f"{name} {version} is older than {known[-1]}, the oldest that was read")
    return Release(name, next((same for same in known if _key(same) == key), version))


def usual_framework(asked: Mapping[str, Fact]) -> str:
    """Whose code runs where nobody says: Transformers' for inference and pre-training, else TRL's."""
    algorithm = asked["algorithm"].value if "algorithm" in asked else "sft"
    return "transformers" if algorithm in ("inference", "pretrain") else "trl"


def defaults(name: str, version: str, algorithm: str, values: Mapping[str, Value]) -> list[Fact]:
    """The defaults of a release for an algorithm, one fact a path.

    `values` are what the user set: they decide which rows with `when` hold; a path they set has its fact all the same.

    Raises:
        Refused: unknown framework.
    """
    key = _key(version)
    rows = [row for row in framework(name).defaults if not row.algorithms or algorithm in row.algorithms]
    chosen: dict[str, Default] = {}
    known: dict[str, Any] = dict(values)
    for row in _general_first(rows):
        if _holds(row, key, known):
            chosen[row.path] = row
            known[row.path] = values.get(row.path, row.value)
    return [_fact(name, version, row) for row in chosen.values()]


def recipe(name: str, version: str, values: Mapping[str, Value]) -> Recipe:
    """The behaviours of a release, given the complete values of a job.

    Raises:
        Refused: unknown framework.
    """
    key = _key(version)
    algorithm = values.get("algorithm")
    held = [
        row
        for row in _general_first(framework(name).modes)
        if _holds(row, key, values) and (not row.algorithms or algorithm in row.algorithms)
    ]
    return msgspec.structs.replace(Recipe(), **{row.mode: row.value for row in held})


def _general_first(rows: Iterable[_AnyRow]) -> list[_AnyRow]:
    return sorted(rows, key=lambda row: bool(row.when))


def _holds(row: Row, key: _Key, values: Mapping[str, Any]) -> bool:
    if (row.since and key < _key(row.since)) or (row.until and key >= _key(row.until)):
        return False
    for path, wanted in row.when.items():
        value = values.get(path, PATHS[path].default)
        if value not in (wanted if isinstance(wanted, list) else [wanted]):
            return False
    return True


def _fact(name: str, version: str, row: Default) -> Fact:
    value = read_value(find(row.path)[1], row.value)
    return Fact(row.path, value, Origin(f"{name} {version} default ({row.source})"))


@cache
def _key(version: str) -> _Key:
    """A version as something ordered: four numbers, the last one lower for a pre-release.

    Raises:
        ValueError: not a version.
    """
    if _RELEASE.fullmatch(version):
        return _four(map(int, version.split(".")))
    # Importing `packaging` costs a fifth of a whole forecast, and only pre-releases and the like need it.
    from packaging.version import Version

    parsed = Version(version)
    *numbers, last = _four(parsed.release)
    return (*numbers, last - parsed.is_prerelease)


def _four(numbers: Iterable[int]) -> _Key:
    return (*numbers, 0, 0, 0, 0)[:4]


def _unknown(name: str) -> Refused:
    names = framework_names()
    return refuse(
        f"unknown framework {name!r}", near=near(name, names), known=", ".join(names), help="write it as trl==1.16"
    )
