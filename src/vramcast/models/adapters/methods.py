"""What PEFT says: its methods, the fields of LoRA with their defaults, and its targets for a model type."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from os.path import dirname, join
from typing import Any, NamedTuple

import msgspec


class Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What PEFT says about a method: the second line of `methods.jsonl`."""

    method: str
    version: str
    config: str
    """PEFT's class, the source of the fields"""
    fields: dict[str, tuple[Any, str]]
    """field → (default, kinds of JSON value, by |)"""
    targets: dict[str, list[str] | str]
    """model type → targets where none are said (peft/utils/constants.py)"""


class Fusions(msgspec.Struct, frozen=True):
    """Experts that transformers 5 packs: what PEFT makes of the names of transformers 4; and the names of its methods
    (first line of the file)."""

    version: str
    source: str
    types: dict[str, str]
    """model type → the scheme of its names"""
    renamed: dict[str, dict[str, str]]
    """scheme → old module → parameter"""
    fused: dict[str, dict[str, list[str]]]
    """scheme → parameter → the old modules in it"""
    methods: frozenset[str]
    """all that PEFT has"""


REFUSED = {
    "ADAMSS": "its ranks come from clustering the values of the weights, which no configuration says",
    "XLORA": "it loads adapters from their files, and their shapes are not in its configuration",
    "SHADOW": "it builds a second, smaller model, or loads one: its parameters are not the adapter's configuration",
    "FROD": "it computes on the values of the weights, which no configuration has",
    "BONE": "PEFT 0.21 has no BONE: it was replaced by MISS",
}
"""methods that are not counted, and why"""


@cache
def _lines() -> list[bytes]:
    with open(join(dirname(__file__), "methods.jsonl"), "rb") as file:
        return file.read().splitlines()


@cache
def facts() -> Facts:
    """Of LoRA."""
    return msgspec.json.decode(_lines()[1], type=Facts)


class Moved(NamedTuple):
    """Targets of LoRA on a model of packed experts."""

    linears: tuple[str, ...]
    """those that stay linear layers, by their last names"""
    parameters: tuple[tuple[str, int], ...]
    """(the end of a parameter's name, how many ranks it gets: gate and up are one and get both)"""
    lacking: tuple[str, ...]
    """what must be targeted too, because it is packed with another target"""


def moved(model_type: str, targets: Sequence[str], linears: Sequence[str]) -> Moved:
    """What PEFT makes of targets by the names of transformers 4. Every target of such a name becomes a parameter, those
    of dense layers and shared experts too; `all-linear` has them all.

    Source: peft/utils/transformers_weight_conversion.py, _convert_peft_config_moe (0.21).
    """
    known = fusions()
    scheme = known.types.get(model_type, "")
    renamed, fused = known.renamed.get(scheme, {}), known.fused.get(scheme, {})
    names = list(dict.fromkeys([*linears, *renamed] if "all-linear" in targets else targets))
    ranks = {new: len(set(fused.get(new, [old])) & set(names)) for old, new in renamed.items() if old in names}
    lacking = [part for new in ranks for part in fused.get(new, ()) if part not in names]
    return Moved(tuple(name for name in names if name not in renamed), tuple(ranks.items()), tuple(lacking))


@cache
def fusions() -> Fusions:
    return msgspec.json.decode(_lines()[0], type=Fusions)
