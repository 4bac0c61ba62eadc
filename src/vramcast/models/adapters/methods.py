"""The table of PEFT's methods: what each adapts, and the functions that make its tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from os.path import dirname, join
from typing import Any, NamedTuple, TypeAlias

import msgspec

from vramcast.models.adapters import lora, lowrank, rotations, sharing
from vramcast.models.adapters.adapter import Adapter, Tensor
from vramcast.models.adapters.modules import Kind, Module

Each: TypeAlias = Callable[[Module, Adapter], list[Tensor]]
Whole: TypeAlias = Callable[[list[Module], Adapter], list[Tensor]]


class Method(msgspec.Struct, frozen=True):
    """How a method adapts modules."""

    kinds: frozenset[Kind]
    each: Each | None = None
    """a module's tensors"""
    whole: Whole | None = None
    """tensors of all modules together"""
    dims: tuple[int, ...] = (3, 4, 5)
    """dimensions of the convolutions it adapts"""


class Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What PEFT says about a method: a line of `methods.jsonl`."""

    method: str
    version: str
    config: str
    """PEFT's class, the source of the fields"""
    fields: dict[str, tuple[Any, str]]
    """field → (default, kinds of JSON value, by |)"""
    targets: dict[str, list[str] | str]
    """model type → targets where none are said (peft/utils/constants.py)"""
    feedforward: dict[str, list[str]] = {}


class Fusions(msgspec.Struct, frozen=True):
    """Experts that transformers 5 packs: what PEFT makes of the names of transformers 4 (first line of the file)."""

    version: str
    source: str
    types: dict[str, str]
    """model type → the scheme of its names"""
    renamed: dict[str, dict[str, str]]
    """scheme → old module → parameter"""
    fused: dict[str, dict[str, list[str]]]
    """scheme → parameter → the old modules in it"""


def _kinds(*names: Kind) -> frozenset[Kind]:
    return frozenset(names)


_LINEAR = _kinds("linear")
_BOTH = _kinds("linear", "conv1d")
_ALL = _kinds("linear", "conv1d", "embedding", "convolution")

METHODS: dict[str, Method] = {
    "LORA": Method(_ALL, lora.lora),
    "ADALORA": Method(_BOTH, lowrank.adalora),
    "BEFT": Method(_LINEAR, rotations.beft),
    "BOFT": Method(_LINEAR, rotations.boft),
    "C3A": Method(_LINEAR, rotations.c3a),
    "DEFT": Method(_BOTH, lowrank.deft),
    "DELORA": Method(_LINEAR, lowrank.delora),
    "FOURIERFT": Method(_BOTH, rotations.fourierft),
    "FROD": Method(_BOTH, sharing.frod, sharing.frod_shared),
    "GLORA": Method(_LINEAR, lowrank.glora),
    "GRALORA": Method(_BOTH, lowrank.gralora),
    "HIRA": Method(_ALL, lowrank.hira),
    "HRA": Method(_kinds("linear", "convolution"), rotations.hra, dims=(4,)),
    "IA3": Method(_kinds("linear", "conv1d", "convolution"), rotations.ia3, dims=(4, 5)),
    "LILY": Method(_LINEAR, whole=sharing.lily),
    "LOHA": Method(_kinds("linear", "convolution"), lowrank.loha, dims=(3, 4)),
    "LOKR": Method(_kinds("linear", "convolution"), lowrank.lokr, dims=(3, 4)),
    "MISS": Method(_LINEAR, rotations.miss),
    "OFT": Method(_kinds("linear", "embedding", "convolution"), rotations.oft, dims=(4,)),
    "OSF": Method(_LINEAR, rotations.osf),
    "PEANUT": Method(_LINEAR, lowrank.peanut),
    "POLY": Method(_LINEAR, lowrank.poly),
    "PSOFT": Method(_LINEAR, rotations.psoft),
    "PVERA": Method(_BOTH, sharing.pvera, sharing.pvera_shared),
    "RANDLORA": Method(_BOTH, sharing.randlora, sharing.randlora_shared),
    "ROAD": Method(_LINEAR, rotations.road),
    "SHIRA": Method(_LINEAR, rotations.shira),
    "SUPERTUNING": Method(_LINEAR, rotations.supertuning),
    "TINYLORA": Method(_kinds("linear", "conv1d", "embedding"), sharing.tinylora, sharing.tinylora_shared),
    "UNILORA": Method(_BOTH, sharing.unilora, sharing.unilora_shared),
    "VBLORA": Method(_BOTH, sharing.vblora, sharing.vblora_shared),
    "VERA": Method(_BOTH, sharing.vera, sharing.vera_shared),
    "WAVEFT": Method(_BOTH, whole=rotations.waveft),
}

REFUSED = {
    "ADAMSS": "its ranks come from clustering the values of the weights, which no configuration says",
    "XLORA": "it loads adapters from their files, and their shapes are not in its configuration",
    "SHADOW": "it builds a second, smaller model, or loads one: its parameters are not the adapter's configuration",
    "BONE": "PEFT 0.21 has no BONE: it was replaced by MISS",
}
"""Methods that are not counted, and why."""


@cache
def _lines() -> list[bytes]:
    with open(join(dirname(__file__), "methods.jsonl"), "rb") as file:
        return file.read().splitlines()


@cache
def facts() -> dict[str, Facts]:
    """Method → what PEFT says about it."""
    found = (msgspec.json.decode(line, type=Facts) for line in _lines()[1:])
    return {one.method: one for one in found}


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
