"""What PEFT says: its methods, the fields of LoRA with their defaults, and its targets for a model type."""

from __future__ import annotations

from functools import cache
from os.path import dirname, join
from typing import Any

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


@cache
def fusions() -> Fusions:
    return msgspec.json.decode(_lines()[0], type=Fusions)
