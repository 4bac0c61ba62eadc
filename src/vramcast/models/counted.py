"""A model type that no table has: its layout from a count of the real class, tensor by tensor."""

from __future__ import annotations

import os
import re
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct, structs

from vramcast.models.describe import checkpoint_dtype
from vramcast.models.layout import Axis, Blocks, Layout, Piece, Weight, module_of
from vramcast.models.parts import single

_IN_A_LIST = re.compile(r"(.+?)\.(\d+)\.(.+)")


class ClassCount(Struct, frozen=True, kw_only=True, tag=True):
    """The parameters of a class, as it has them: each tensor once."""

    class_name: str
    version: str
    """of Transformers"""
    tensors: list[tuple[str, tuple[int, ...]]]
    """(name, shape) in the order in which the class made them"""
    kinds: dict[str, str]
    """module with parameters of its own → what it is, in the words of `adapters/modules.py`"""
    layers: str
    """the name of the list of the language model's layers; empty if there is none"""
    embedding: str
    """the module that embeds tokens"""
    head: str
    tied: bool
    """the head is the embedding"""
    experts: int
    """of those that a token is routed to; 0 where the config names none"""

    @property
    def sound(self) -> bool:
        """Whether it can be what a class has."""
        return bool(self.tensors)


def reading(model_type: str) -> str:
    """What counts a type that Transformers has a class for; empty for any other."""
    has = model_type in class_types()
    return "vramcast explain --arch, which counts its class (pip install 'vramcast[trace]')" if has else ""


def class_types() -> list[str]:
    """Types of Transformers' causal-LM and image-text-to-text models."""
    return _types()["types"]


def own_code(model_type: str) -> bool:
    """Whether models of a type bring their own code, by a dated list of those that engines serve."""
    return model_type in _types()["own code"]["types"]


@cache
def _types() -> dict[str, Any]:
    with open(os.path.join(os.path.dirname(__file__), "classes.json"), "rb") as file:
        return msgspec.json.decode(file.read())


def counted_layout(name: str, config: dict[str, Any], count: ClassCount, why: str) -> Layout:
    """The layout that a count describes: equal layers of a list together, all else by the module it is in. Nothing is
    known of how frameworks cut it. `why` no table was read."""
    lists: dict[str, dict[int, list[Weight]]] = {}
    places: list[tuple[bool, str]] = []
    alone: dict[str, list[Weight]] = {}
    for tensor, shape in count.tensors:
        found = _IN_A_LIST.fullmatch(tensor)
        prefix = found[1] if found else _place(tensor, count)
        if (bool(found), prefix) not in places:
            places.append((bool(found), prefix))
        if found:
            lists.setdefault(prefix, {}).setdefault(int(found[2]), []).append(_weight(found[3], tensor, shape, count))
        else:
            alone.setdefault(prefix, []).append(_weight(tensor, tensor, shape, count))
    blocks = [
        block
        for is_list, prefix in places
        for block in (_equal(prefix, lists[prefix], count) if is_list else _alone(prefix, alone[prefix], count))
    ]
    return Layout(
        name=name,
        model_type=str(config["model_type"]),
        blocks=tuple(blocks),
        tied=count.tied,
        kinds=count.kinds,
        dtype=checkpoint_dtype(config),
        counted=f"the class {count.class_name} of transformers {count.version} on the meta device, as {why}",
    )


def _weight(name: str, tensor: str, shape: tuple[int, ...], count: ClassCount) -> Weight:
    routed = len(shape) == 3 and module_of(tensor) == "routed_experts"
    pieces = [Piece(size, kind="expert" if routed and not index else "") for index, size in enumerate(shape)]
    return Weight(name, tuple(Axis((piece,)) for piece in pieces), used=min(count.experts, shape[0]) if routed else 0)


def _alone(place: str, weights: list[Weight], count: ClassCount) -> list[Blocks]:
    """A part that is there once; the embedding below the module that holds it."""
    prefix = count.embedding.rpartition(".")[0] if place == "embedding" else ""
    names = [structs.replace(weight, name=weight.name.removeprefix(f"{prefix}.")) for weight in weights]
    return single(place, prefix, names if prefix else weights)


def _place(tensor: str, count: ClassCount) -> str:
    """What a tensor outside of lists belongs to."""
    for name, module in (("head", count.head), ("embedding", count.embedding)):
        if module and tensor.startswith(f"{module}."):
            return name
    return ".".join(tensor.split(".")[:2])


def _equal(prefix: str, layers: dict[int, list[Weight]], count: ClassCount) -> list[Blocks]:
    """The layers of a list, those with the same tensors together."""
    kinds: dict[tuple[Weight, ...], list[int]] = {}
    for index, weights in layers.items():
        kinds.setdefault(tuple(weights), []).append(index)
    return [Blocks(_name(prefix, weights, count), prefix, tuple(where), weights) for weights, where in kinds.items()]


def _name(prefix: str, weights: tuple[Weight, ...], count: ClassCount) -> str:
    if prefix != count.layers:
        return prefix
    modules = dict.fromkeys(module_of(f"{prefix}.{weight.name}") for weight in weights)
    return f"decoder: {' + '.join(name for name in modules if name != 'norms')}"
