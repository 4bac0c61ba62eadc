"""verl's own defaults by version (`defaults.json`): which key a release has, and with which value.

The table is made from the configuration tree of each release: verl/trainer/config/_generated_ppo_trainer.yaml, and
ppo_trainer.yaml before 0.5. Blocks that only watch the run (profilers, traces) are left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import msgspec

FILE = os.path.join(os.path.dirname(__file__), "defaults.json")
RELEASES = ("0.9.1", "0.9.0", "0.8.0", "0.7.1", "0.7.0", "0.6.1", "0.6.0", "0.5.0", "0.4.1", "0.4.0", "0.3.0", "0.2.0")
"""The releases whose trees were read, newest first."""
NEWEST = RELEASES[0]
_SELECT = re.compile(r"\$\{(?:oc\.select:\s*)?(?P<key>\.*[\w.]+)\s*(?:,\s*(?P<other>[^{}]*))?\}")


@cache
def _steps() -> dict[str, list[list[Any]]]:
    with open(FILE, "rb") as file:
        return msgspec.json.decode(file.read(), type=dict[str, list[list[Any]]])


def has_key(key: str, version: str = "") -> bool:
    """Whether a release has the key; without a version: whether any has, or had."""
    return key in _steps() and (not version or len(_at(key, version)) > 1)


def default(key: str, version: str) -> Any:
    """The value a key has in a release when nobody sets it; in one without the key, the value of the nearest that has
    it; None for a key that no release has."""
    if key not in _steps():
        return None
    step = _at(key, version)
    if len(step) > 1:
        return step[1]
    known = [step for step in _steps()[key] if len(step) > 1]
    return known[-1][1] if step else known[0][1]


def _at(key: str, version: str) -> list[Any]:
    """The step of a key's history that holds in a release; empty before the first."""
    place = RELEASES.index(version)
    held = [step for step in _steps()[key] if RELEASES.index(step[0]) >= place]
    return held[-1] if held else []


def is_default(key: str, value: Any, values: Mapping[str, Any], version: str) -> bool:
    """Whether a value is the one that the key would have without it; `values` are all that are given."""
    if key not in _steps():
        return False
    return _same(value, default(key, version)) or _same(value, follow(key, values, version))


def follow(key: str, values: Mapping[str, Any], version: str) -> Any:
    """The default of a key, followed through the keys that it stands for (`${oc.select:other,5}`)."""
    found = default(key, version)
    for _ in range(_DEEPEST):
        match = _SELECT.fullmatch(found) if isinstance(found, str) else None
        if match is None:
            return found
        key = f"{key.rpartition('.')[0]}{match['key']}" if match["key"].startswith(".") else match["key"]
        if key in values:
            return values[key]
        fallback = match["other"]
        found = default(key, version) if has_key(key, version) or fallback is None else _plain(fallback)
    return found


_DEEPEST = 4
"""defaults that stand for defaults"""


def _plain(text: str) -> Any:
    from vramcast.readers.hydra import parse_value

    return parse_value(text)


def _same(value: Any, other: Any) -> bool:
    """Equal, and not true for 1; 0 and 0.0 are the same number. For a switch, what Python makes of the value counts."""
    if isinstance(other, bool):
        return bool(value) == other
    return value == other and not isinstance(value, bool)


def keys_of(version: str) -> list[str]:
    """The keys that a release has."""
    return [key for key in _steps() if has_key(key, version)]


def plain_defaults(version: str) -> dict[str, Any]:
    """The defaults of a release that stand for no other key."""
    found = {key: default(key, version) for key in keys_of(version)}
    return {key: value for key, value in found.items() if not (isinstance(value, str) and "${" in value)}


def release_of(keys: Iterable[str]) -> str:
    """The newest release that has most of the keys; those that no release has do not count."""
    known = [key for key in keys if key in _steps()]
    return max(RELEASES, key=lambda version: (sum(has_key(key, version) for key in known), -RELEASES.index(version)))


def last_release(key: str) -> str:
    """The newest release that has the key."""
    return next(version for version in RELEASES if has_key(key, version))
