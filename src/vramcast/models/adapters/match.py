"""Which modules a configuration targets: PEFT's own matching.

Source: peft 0.21 tuners/tuners_utils.py (check_target_module_exists, _maybe_include_all_linear_layers), utils/other.py
(get_pattern_key, match_target_against_key).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from vramcast.models import patterns
from vramcast.models.adapters.adapter import Adapter
from vramcast.models.adapters.modules import Tree
from vramcast.models.adapters.notes import Notes

ALL_LINEAR = "all-linear"
SAVED = r"(^|.*\.){}($|\..*)"
"""around a name of modules_to_save"""
_VALUE, _LAYER = r"(.*\.)?({})$", r"(?:^|.*?\.){}\.(?P<idx>\d+)\."


def ends_with(name: str, words: Iterable[str]) -> bool:
    """A name is one of `words`, or ends with one after a dot."""
    return any(name == word or name.endswith(f".{word}") for word in words)


def pattern_value(values: Mapping[str, Any], name: str, otherwise: Any) -> Any:
    """The value of the first pattern that a module's name ends with, as a regular expression (get_pattern_key)."""
    for pattern, value in values.items():
        if patterns.match(_VALUE.format(pattern), name):
            return value
    return values.get(name, otherwise)


def matched(tree: Tree, adapter: Adapter, targets: Any) -> list[str]:
    """Names of the modules that are targeted, in the model's order."""
    return [name for name in tree.modules if not _excluded(adapter, name) and _hit(adapter, targets, name)]


def _excluded(adapter: Adapter, name: str) -> bool:
    excluded = adapter["exclude_modules"]
    if isinstance(excluded, str) and excluded and patterns.fullmatch(excluded, name):
        return True
    if isinstance(excluded, list) and ends_with(name, adapter.names("exclude_modules")):
        return True
    return any(patterns.match(SAVED.format(saved), name) for saved in adapter.names("modules_to_save"))


def _hit(adapter: Adapter, targets: Any, name: str) -> bool:
    if isinstance(targets, str):
        return patterns.fullmatch(targets, name) is not None
    if name in targets:  # named in full: the layers do not matter then
        return True
    if not any(name.endswith(f".{target}") for target in targets):
        return False
    layers = adapter["layers_to_transform"]
    if layers is None or layers == []:
        return True
    index = _layer(adapter, name)
    return index is not None and (index == layers if isinstance(layers, int) else index in layers)


def _layer(adapter: Adapter, name: str) -> int | None:
    """The index of the layer in a name: the first number, or the one after a pattern's name."""
    expressions = [_LAYER.format(one) for one in _homes(adapter)] or [r".*?\.[^.]*\.(?P<idx>\d+)\."]
    for expression in expressions:
        found = patterns.match(expression, name)
        if found:
            return int(found["idx"])
    return None


def _homes(adapter: Adapter) -> list[str]:
    """layers_pattern: one name, or a list."""
    given = adapter["layers_pattern"]
    return [given] if isinstance(given, str) and given else adapter.names("layers_pattern")


def valid(adapter: Adapter, notes: Notes) -> bool:
    """Whether every regular expression of the configuration can be read; notes those that cannot."""
    bad = len(notes.mistakes.found)
    fields = ("target_modules", "exclude_modules")
    texts = [(name, adapter[name], "{}") for name in fields if isinstance(adapter[name], str)]
    for name in ("rank_pattern", "alpha_pattern"):
        texts += [(name, key, _VALUE) for key in adapter.table(name)]
    texts += [("layers_pattern", one, _LAYER) for one in _homes(adapter)]
    texts += [("modules_to_save", one, SAVED) for one in adapter.names("modules_to_save")]
    for name, text, around in texts:
        try:
            patterns.check(around.format(text))
        except re.error as error:
            notes.wrong(f"{adapter.path(name)} = {text!r} is not a regular expression: {error}")
    return len(notes.mistakes.found) == bad


def unmatched(
    tree: Tree, adapter: Adapter, targets: Any, found: list[str], notes: Notes, also: Iterable[str] = ()
) -> None:
    """Note every target that no module answers to, with the modules there are (and `also`), and layers out of range."""
    path, count = adapter.path("target_modules"), _layer_count(adapter, tree)
    for layer in _layers(adapter["layers_to_transform"]):
        if not 0 <= layer < count:
            notes.wrong(
                f"{adapter.path('layers_to_transform')}: the model has no layer {layer}", allowed=f"0 to {count - 1}"
            )
    linears = dict.fromkeys([*(tree.modules[name].last for name in tree.linears()), *also])
    fixes = "targets are the ends of module names, whole parts of them; or all-linear"
    if isinstance(targets, str):
        if not found:
            notes.unknown(f"{path} = {targets!r} matches no module", targets, linears, help=fixes)
        return
    names = [name for name in tree.modules if not _excluded(adapter, name)]
    for target in sorted(targets):
        if not any(ends_with(name, [target]) for name in names):
            left_out = any(ends_with(name, [target]) for name in tree.modules)
            why = "is excluded by exclude_modules or modules_to_save" if left_out else "matches no module"
            notes.unknown(f"{path}: {target} {why}", target, linears, help=fixes)
    if targets and not found and not notes.mistakes.found:
        notes.wrong(f"{path}: no module is left in the layers that layers_to_transform and layers_pattern say")


def _layers(value: Any) -> list[int]:
    return [value] if isinstance(value, int) else [one for one in value or () if isinstance(one, int)]


def _layer_count(adapter: Adapter, tree: Tree) -> int:
    found = [index for name in tree.modules if (index := _layer(adapter, f"{name}.")) is not None]
    return max(found, default=-1) + 1
