"""The four numbers that the rules know of a model: L layers, width h, a heads, P parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from vramcast.catalog.models import model_config
from vramcast.errors import near, refuse
from vramcast.models.arch import build_arch

_PREFIX = "article/"
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
"""Spellings in config.json. The rules need no more of a model, so they also cover types the forecast refuses."""


class Shape(Struct, frozen=True):
    """A model as the rules see it."""

    name: str
    layers: int
    hidden: int
    heads: int
    params: int


ROUND = {
    shape.name: shape
    for shape in (
        Shape(_PREFIX + "1.5b", 48, 1600, 25, 1_500_000_000),
        Shape(_PREFIX + "7b", 32, 4096, 32, 7_000_000_000),
        Shape(_PREFIX + "14b", 48, 5120, 40, 14_000_000_000),
        Shape(_PREFIX + "32b", 64, 5120, 40, 32_000_000_000),
        Shape(_PREFIX + "70b", 80, 8192, 64, 70_000_000_000),
        Shape(_PREFIX + "72b", 80, 8192, 64, 72_000_000_000),
    )
}
"""The articles' own round models. 1.5b is the GPT-2 of A, 70b the large model of A; 7b and 72b are those of B, whose
14B and 32B rows get the layers and widths of the Qwen2.5 models."""


def is_round(name: object) -> bool:
    """Whether a model's name is one of the articles' own: no checkpoint, no vocabulary, no MLP width."""
    return isinstance(name, str) and name.lower().startswith(_PREFIX)


def find_shape(name: str) -> Shape:
    """The shape of a round model, of a catalogue model or of a config.json.

    Raises:
        Refused: unknown, or a model type whose parameters cannot be counted.
    """
    if is_round(name):
        if name.lower() not in ROUND:
            raise refuse(f"unknown model {name!r}", near=near(name, ROUND), allowed=", ".join(ROUND))
        return ROUND[name.lower()]
    row = model_config(name)
    numbers = [_field(row.config, names) for names in (_LAYERS, _HIDDEN, _HEADS)]
    layers, hidden, heads = numbers
    if row.params and layers and hidden and heads:
        return Shape(row.id, layers, hidden, heads, row.params)
    counted = build_arch(row.id, row.config, row.where).layout.params
    return Shape(row.id, layers or 0, hidden or 0, heads or 0, counted)


def _field(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """A number of a config.json, or of its text model's part."""
    parts: list[Any] = [part for part in (config.get("text_config"), config) if isinstance(part, dict)]
    found = (part[name] for part in parts for name in names if isinstance(part.get(name), int))
    return next(found, None)
