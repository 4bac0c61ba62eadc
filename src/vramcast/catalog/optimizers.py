"""Optimizers: the states they keep, where, and what a step allocates on the way."""

from __future__ import annotations

import os
from functools import cache
from typing import Literal

import msgspec

from vramcast.errors import near, refuse


class Temporary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a step allocates and frees: `copies` of all trainable parameters or of the largest one."""

    impl: Literal["any", "fused", "foreach", "loop"]
    of: Literal["all", "largest"]
    copies: int
    dtype: str
    only_below_fp32: bool = False
    """made only where parameters have 16 bits"""


class Optimizer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One optimizer. `form`: dense states are as large as the parameter; blocks are 8-bit with a scale for 256;
    factored ones hold a row and a column. `dtype` is "parameter" or a dtype's name."""

    id: str
    states: int
    form: Literal["dense", "blocks", "factored"]
    dtype: str
    home: Literal["gpu", "managed"]
    temporaries: tuple[Temporary, ...]
    source: str


class _Catalog(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rows: tuple[Optimizer, ...]
    refused: dict[str, str]


@cache
def _catalog() -> _Catalog:
    with open(os.path.join(os.path.dirname(__file__), "optimizers.json"), "rb") as file:
        return msgspec.json.decode(file.read(), type=_Catalog)


def optimizers() -> tuple[Optimizer, ...]:
    """Every optimizer that is modelled."""
    return _catalog().rows


def refused() -> dict[str, str]:
    """Optimizers that are refused by name, with the reason."""
    return _catalog().refused


def find_optimizer(name: str) -> Optimizer:
    """The optimizer of a name.

    Raises:
        Refused: not in the catalogue, or refused there with its reason.
    """
    for row in optimizers():
        if row.id == name:
            return row
    known = [row.id for row in optimizers()]
    why = refused().get(name, "it is not in the catalogue")
    raise refuse(f"optimizer {name!r} is not modelled yet: {why}", near=near(name, known), modelled=", ".join(known))
