"""Mixtures of experts as parts of a layer: router, routed experts (one tensor for all), shared experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from vramcast.models.fields import Fields
from vramcast.models.layout import Axis, Weight, axis
from vramcast.models.parts import Flag, Weights, either, gated, hidden, linear, none, tensor
from vramcast.num import Size

Rule: TypeAlias = Callable[[Fields, int], bool]
"""Whether a layer has experts."""


def first_dense(field: str = "first_k_dense_replace") -> Rule:
    """The first layers are dense."""
    return lambda c, layer: layer >= c.count(field, 0, 0)


def listed(field: str = "mlp_layer_types", otherwise: Rule | None = None) -> Rule:
    """A list with one entry a layer ("sparse" or "dense", 1 or 0), or a rule where the config has none."""

    def rule(c: Fields, layer: int) -> bool:
        entries = c.items(field, c.count("num_hidden_layers"))
        fallback = otherwise(c, layer) if otherwise else layer > 0
        return entries[layer] not in ("dense", 0) if entries else fallback

    return rule


def sparse_step(c: Fields, layer: int) -> bool:
    """Qwen: every n-th layer, without those that are named dense."""
    step = c.count("decoder_sparse_step", 1)
    return layer not in c.indices("mlp_only_layers") and (layer + 1) % step == 0


def shared(
    width: Callable[[Fields], Size],
    name: str = "mlp.shared_experts",
    gate: bool = False,
    fused: str = "",
    bias: Flag = False,
) -> Weights:
    """Experts that every token uses: one MLP of their joint width."""

    def part(c: Fields, layer: int) -> list[Weight]:
        middle = width(c)
        if not middle:
            return []
        found = list(gated(bias, at=name, fused=fused, width=lambda _: axis(middle))(c, layer))
        return [*found, *linear(f"{name}_gate", hidden(c), 1)] if gate else found

    return part


def times(count: str, width: str = "moe_intermediate_size") -> Callable[[Fields], Size]:
    """The joint width of `count` shared experts."""
    return lambda c: c.count(count, 0, 0) * c.count(width)


def moe(
    count: str = "num_experts",
    top: str = "num_experts_per_tok",
    width: str = "moe_intermediate_size",
    *,
    at: str = "mlp",
    gate: str = "gate",
    gate_bias: Flag = False,
    experts: str = "",
    shared_part: Weights = none,
    sparse: Rule | None = None,
    dense: Weights | None = None,
    transposed: bool = False,
    biased: bool = False,
    extra: Weights = none,
) -> Weights:
    """A layer of experts where `sparse` says so (everywhere if not given), else `dense`."""

    def part(c: Fields, layer: int) -> list[Weight]:
        number, used, middle = c.count(count), c.count(top), axis(c.count(width))
        if used > number:
            c.wrong(f"{c.path(top)} = {used} is more than {c.path(count)} = {number}")
        found = linear(f"{at}.{gate}", hidden(c), number, c.flag(gate_bias))
        found += routed(c, experts or f"{at}.experts", number, used, middle, transposed, biased)
        return [*found, *shared_part(c, layer), *extra(c, layer)]

    return either(sparse, part, dense or gated()) if sparse else part


def routed(
    c: Fields, at: str, number: Size, used: Size, middle: Axis, transposed: bool = False, biased: bool = False
) -> list[Weight]:
    """Two tensors for all experts: gate and up, and down. GPT-OSS and Llama 4 store them inputs first."""
    every = axis(number, 1, "expert")
    up, down = (middle + middle, hidden(c)), (hidden(c), middle)
    if transposed:
        up, down = up[::-1], down[::-1]
    found = [tensor(f"{at}.gate_up_proj", every, *up, used=used), tensor(f"{at}.down_proj", every, *down, used=used)]
    if biased:
        found.append(tensor(f"{at}.gate_up_proj_bias", every, middle + middle, used=used))
        found.append(tensor(f"{at}.down_proj_bias", every, hidden(c), used=used))
    return found
