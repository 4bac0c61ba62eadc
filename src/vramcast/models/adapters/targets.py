"""What an adapter targets on a model: its own words, PEFT's defaults, `all-linear`, and the names of packed experts.

Source: peft 0.21 tuners/tuners_utils.py inject_adapter, in its order; utils/transformers_weight_conversion.py
(_convert_peft_config_moe); tuners/lora/model.py (_add_targets_to_tie, _add_modules_to_save_to_tie).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from vramcast.models import patterns
from vramcast.models.adapters.adapter import Adapter
from vramcast.models.adapters.match import ALL_LINEAR, SAVED, ends_with, matched, unmatched
from vramcast.models.adapters.methods import facts, fusions
from vramcast.models.adapters.modules import Tree
from vramcast.models.adapters.notes import Notes


class Targets(Struct, frozen=True):
    """What is adapted."""

    adapter: Adapter
    """with the changes that PEFT makes to it on this model"""
    modules: list[str]
    parameters: list[str]
    """names of bare parameters"""
    tied: bool = False
    """the head gets the embedding's adapter"""


def resolve(tree: Tree, adapter: Adapter, notes: Notes) -> Targets | None:
    """The modules and parameters of the model that the adapter targets; None after a mistake.

    Notes: targets that nothing answers to, with what exists and near names; layers that the model does not have.
    """
    adapter, tied = _packed(tree, adapter, notes), False
    if adapter.flag("ensure_weight_tying") and tree.tied:
        adapter, tied = _tie(tree, adapter)
    targets = adapter["target_modules"]
    if targets is None and not adapter["target_parameters"]:
        targets = _default(tree, adapter, notes)
        if targets is None:
            return None
    elif targets is None:
        targets = []
    if isinstance(targets, str) and targets.lower() == ALL_LINEAR:
        targets = tree.linears()
        found = matched(tree, adapter.with_values(target_modules=targets), targets)
    else:
        found = matched(tree, adapter, targets)
        unmatched(tree, adapter, targets, found, notes, _old_names(tree, adapter))
    if tied:
        found = [name for name in found if name != tree.head]
    parameters = _parameters(tree, adapter, notes)
    if not found and not parameters and not notes.mistakes.found:
        notes.wrong(f"{adapter.path('target_modules')}: nothing is targeted")
    return Targets(adapter.with_values(target_modules=targets), found, parameters, tied)


def _default(tree: Tree, adapter: Adapter, notes: Notes) -> Any:
    """PEFT's targets for the model type."""
    found = facts().targets.get(tree.model_type)
    if found is None:
        linears = ", ".join(dict.fromkeys(tree.modules[name].last for name in tree.linears()))
        path = adapter.path("target_modules")
        notes.wrong(
            f"PEFT has no targets of LORA for {tree.model_type}: {path} must say them",
            allowed=f"{linears}, or all-linear",
        )
    return found


def _parameters(tree: Tree, adapter: Adapter, notes: Notes) -> list[str]:
    """Bare parameters, by the ends of their names, in the order in which PEFT wraps them."""
    asked = adapter.names("target_parameters")
    bare = [name for name in tree.tensors if "." in name]
    for target in asked:
        if not any(ends_with(name, [target]) for name in bare):
            packed = [".".join(name.split(".")[-2:]) for name in bare if len(tree.tensors[name]) == 3]
            notes.unknown(f"target_parameters: {target} matches no parameter", target, packed or bare)
    return [name for name in bare if ends_with(name, asked)]


def _packed(tree: Tree, adapter: Adapter, notes: Notes) -> Adapter:
    """Targets by the names of transformers 4 on a model whose experts transformers 5 packs: they become parameters.

    Every target of such a name moves, those of dense layers and shared experts too. Gate and up are one parameter then,
    so both must be named, and it gets their ranks together. A name that the model does not have is passed over, if
    others match.
    """
    scheme = fusions().types.get(tree.model_type, "")
    if not scheme:
        return adapter
    renamed, fused = fusions().renamed[scheme], fusions().fused[scheme]
    names = _leaves(tree, adapter, renamed)
    if names is None:
        return adapter
    parameters, kept = set(adapter.names("target_parameters")), list[str]()
    present: dict[str, set[str]] = {}
    for target in names:
        old = next((one for one in renamed if ends_with(target, [one])), "")
        if not old:
            kept.append(target)
        elif any(ends_with(name, [renamed[old]]) for name in tree.tensors):
            parameters.add(renamed[old])
            present.setdefault(renamed[old], set()).add(old)
    ranks, path = dict(adapter.table("rank_pattern")), adapter.path("target_modules")
    for name, parts in fused.items():
        found = present.get(name, set())
        if 0 < len(found) < len(parts):
            lacking = ", ".join(sorted(set(parts) - found))
            notes.wrong(f"{path}: {', '.join(sorted(found))} is packed into {name}, so {lacking} must be targeted too")
        elif found:
            ranks[rf".*\.{re.escape(name)}"] = adapter.whole("r") * len(parts)
    return adapter.with_values(target_modules=sorted(kept), target_parameters=sorted(parameters), rank_pattern=ranks)


def _old_names(tree: Tree, adapter: Adapter) -> Iterable[str]:
    """Names of transformers 4 that are understood on a model of packed experts."""
    scheme = fusions().types.get(tree.model_type, "")
    return fusions().renamed[scheme] if scheme else ()


def _leaves(tree: Tree, adapter: Adapter, renamed: dict[str, str]) -> list[str] | None:
    """Targets as a list; an expression becomes the last names of what it matches, old names included."""
    targets = adapter["target_modules"]
    if not isinstance(targets, str):
        return adapter.names("target_modules")
    if targets.lower() == ALL_LINEAR:
        return sorted({tree.modules[name].last for name in tree.linears()} | renamed.keys())
    names = [*matched(tree, adapter, targets)]
    found = {name.rpartition(".")[2] for name in [*names, *_matching(adapter, targets, tree.tensors)]}
    for old, new in renamed.items():
        homes = {name.rpartition(".")[0] for name in tree.tensors if name.rpartition(".")[2] == new}
        if old not in found and _matching(adapter, targets, (f"{home}.{old}" for home in homes)):
            found.add(old)
    return sorted(found) if found else None


def _matching(adapter: Adapter, expression: str, names: Any) -> list[str]:
    excluded, saved = adapter["exclude_modules"], adapter.names("modules_to_save")
    return [
        name
        for name in names
        if patterns.fullmatch(expression, name)
        and not (isinstance(excluded, str) and excluded and patterns.fullmatch(excluded, name))
        and not (isinstance(excluded, list) and ends_with(name, adapter.names("exclude_modules")))
        and not any(patterns.match(SAVED.format(one), name) for one in saved)
    ]


def _tie(tree: Tree, adapter: Adapter) -> tuple[Adapter, bool]:
    """Move what is asked of a tied head to the embedding; true if the adapter itself is to be tied."""
    names = {"embed_tokens", "lm_head"}
    saved, targets = adapter.names("modules_to_save"), adapter["target_modules"]
    if any(name.rpartition(".")[2] in names for name in saved):
        saved = [*saved, *([] if tree.embedding in saved else [tree.embedding])]
        return adapter.with_values(modules_to_save=_without_head(tree, saved)), False
    if isinstance(targets, str):
        if not any(patterns.fullmatch(targets, name) for name in names):
            return adapter, False
        return adapter.with_values(target_modules=rf"(?:{targets}|^{re.escape(tree.embedding)}$)"), True
    found = adapter.names("target_modules")
    if not any(name.rpartition(".")[2] in names for name in found):
        return adapter, False
    return adapter.with_values(target_modules=_without_head(tree, [*dict.fromkeys([*found, tree.embedding])])), True


def _without_head(tree: Tree, names: list[str]) -> list[str]:
    """Without the first name that means the head."""
    hit = next((name for name in names if patterns.match(SAVED.format(name), tree.head)), None)
    return [name for name in names if name != hit]
