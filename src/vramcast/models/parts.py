"""The parts that blocks of every family are made of: linear layers, norms, MLPs, grouped-query attention.

A part says its tensors for the fields and the index of a layer, and beside them the forward that uses them; a table row
is a few parts. The names are transformers'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, cast

from msgspec import Struct

from vramcast.models.cache.windows import window_of
from vramcast.models.fields import Fields
from vramcast.models.grouped_query import GroupedQuery
from vramcast.models.layout import Axis, Blocks, Piece, Weight, Width, axis
from vramcast.models.ops import Forward, Heads, Operators, Rotation, Tensor
from vramcast.num import Size

Weights: TypeAlias = Callable[[Fields, int], Iterable[Weight]]
"""The tensors that a part has in a layer."""


class Part(Struct, frozen=True):
    """Tensors, and what is done with them. `forward` gives the forward of a layer, or None where there is nothing to
    do; a part without one has not been written yet, and a model with it has no activations."""

    weights: Weights
    forward: Callable[[Fields, int], Forward | None]

    def __call__(self, c: Fields, layer: int) -> Iterable[Weight]:
        return self.weights(c, layer)


Flag: TypeAlias = "str | bool"
"""yes, no, or the field that says so"""
Shape: TypeAlias = "Callable[[Fields], Width]"


def tensor(name: str, *sizes: Width, module: str = "", used: Size = 0) -> Weight:
    """A parameter; a plain size is a dimension that nothing cuts."""
    axes = [one if isinstance(one, Axis) else Axis((Piece(one),)) for one in sizes]
    return Weight(name, tuple(axes), module, used)


def linear(name: str, inputs: Width, outputs: Width, bias: bool = False) -> list[Weight]:
    """`outputs × inputs`, as torch stores it, and its bias, which is cut with the outputs."""
    found = [tensor(f"{name}.weight", outputs, inputs)]
    return [*found, tensor(f"{name}.bias", outputs)] if bias else found


def norm(name: str, width: Width, bias: bool = False) -> list[Weight]:
    """A scale, and a shift if it is a layer norm with bias."""
    found = [tensor(f"{name}.weight", width)]
    return [*found, tensor(f"{name}.bias", width)] if bias else found


def hidden(c: Fields) -> Size:
    return c.count("hidden_size")


def norms(names: str, bias: Flag = False) -> Weights:
    """Norms of the hidden states, by their names."""

    def part(c: Fields, _: int) -> list[Weight]:
        width, shift = hidden(c), c.flag(bias)
        return [weight for name in names.split() for weight in norm(name, width, shift)]

    return part


def heads(c: Fields) -> tuple[Axis, Axis, Size]:
    """(query heads, key heads, head_dim): both axes are in elements; the config is checked."""
    queries = c.count("num_attention_heads")
    keys = c.count("num_key_value_heads", queries)
    width = c.count("head_dim", 0)
    if not width:
        c.divides("num_attention_heads", queries, "hidden_size", hidden(c))
        width = c.named("head_dim", max(hidden(c) // queries, 1))
    if keys > queries:
        c.wrong(f"{c.path('num_key_value_heads')} = {keys} is more than {c.path('num_attention_heads')} = {queries}")
    else:
        c.divides("num_key_value_heads", keys, "num_attention_heads", queries)
    return axis(queries, width), axis(keys, width, "kv"), width


def head_width(c: Fields) -> Size:
    """Elements of a head."""
    return heads(c)[2]


def rotary_width(otherwise: float = 1.0) -> Callable[[Fields], Size]:
    """Elements of a head that have positions: a part of it, by `partial_rotary_factor`."""

    def width(c: Fields) -> Size:
        nested = c.get("rope_parameters")
        said = cast("dict[str, Any]", nested).get("partial_rotary_factor") if isinstance(nested, dict) else None
        return share_of(c, head_width(c), said or c.get("partial_rotary_factor") or otherwise)

    return width


def share_of(c: Fields, width: Size, factor: object) -> Size:
    """The part of a head that has positions."""
    if not isinstance(factor, (int, float)) or isinstance(factor, bool) or not 0 < factor <= 1:
        c.wrong(f"{c.path('partial_rotary_factor')} = {factor!r} must be a share of a head, such as 0.5")
        factor = 1
    return c.named("rotary_dim", int(int(width) * factor))


def _always(_: Fields, __: int) -> bool:
    return True


def gqa(
    bias: Flag = False,
    out_bias: Flag = False,
    *,
    at: str = "self_attn",
    out: str = "o_proj",
    fused: str = "",
    qk_norm: str = "",
    norm_width: str = "head",
    norm_if: Flag = True,
    norm_kind: str = "rms",
    norm_last: bool = False,
    rotary: Callable[[Fields], Size] | None = None,
    joins: bool = False,
    turns: Callable[[Fields, int], bool] = _always,
    rotation: Rotation = "halves",
    interleaves: bool = False,
    cap: str = "",
    clips: str = "",
    sinks: bool = False,
    extra: Weights | None = None,
) -> Part:
    """Grouped-query attention: q, k, v (or `fused`), output, and the norms of queries and keys.

    `norm_width`: "head" (one scale for all heads) or "all" (over the whole projection). `norm_last`: behind the
    positions. `rotary`: elements of a head that have positions, where not all do; `joins`: they are joined to the
    rest even if there is none. `turns`: whether a layer has positions at all; `rotation`: what they turn: halves of a
    head, "stacked" pairs in fp32 (Cohere), by fp32 tables ("wide": OLMo 2), or each product in fp32 ("widened": ERNIE);
    `interleaves`: by tables of its own. `cap`: the field of a soft cap on eager scores; `clips`: that of a bound on
    what the projections give. `extra`: further tensors, or those of norms that are no plain scale.
    """

    def part(c: Fields, layer: int) -> list[Weight]:
        query, key, width = heads(c)
        shift = c.flag(bias)
        if fused:
            found = linear(f"{at}.{fused}", hidden(c), query + key + key, shift)
        else:
            sides = (("q_proj", query), ("k_proj", key), ("v_proj", key))
            found = [weight for name, side in sides for weight in linear(f"{at}.{name}", hidden(c), side, shift)]
        found += linear(f"{at}.{out}", query, hidden(c), c.flag(out_bias))
        if qk_norm and not extra and c.flag(norm_if):
            for name, side in zip(qk_norm.split(), (query, key), strict=True):
                found += norm(f"{at}.{name}", width if norm_width == "head" else side)
        return [*found, *(extra(c, layer) if extra else ())]

    def forward(c: Fields, layer: int) -> Forward:
        query, key, width = heads(c)
        names = tuple(qk_norm.split()) if qk_norm and c.flag(norm_if) else ()
        capped = bool(cap) and c.get(cap) is not None
        shape = Heads(
            query.pieces[0].count, key.pieces[0].count, width, width,
            window_of(c, layer), capped, sinks, "held" if sinks else "",
        )  # fmt: skip
        turned = rotary(c) if rotary else 0
        partial = 0 if int(turned) == int(width) and not joins else turned
        return GroupedQuery(
            at, out, shape, fused, names, norm_width == "head", norm_kind, norm_last, partial,
            rotation=rotation, rotates=turns(c, layer), interleaves=interleaves, clips=bool(clips and c.get(clips)),
        )  # fmt: skip

    return Part(part, forward)


def also(part: Weights, more: Weights) -> Weights:
    """A part with further tensors that its forward knows."""

    def weights(c: Fields, layer: int) -> Iterable[Weight]:
        return [*part(c, layer), *more(c, layer)]

    return Part(weights, part.forward) if isinstance(part, Part) else weights


def ffn(name: str = "intermediate_size", times: int = 0) -> Callable[[Fields], Axis]:
    """The intermediate width: a field, or `times` the hidden size where the config has none."""
    return lambda c: axis(c.count(name, times * hidden(c) if times else None))


def gated(
    bias: Flag = False,
    *,
    at: str = "mlp",
    names: str = "gate_proj up_proj down_proj",
    fused: str = "",
    width: Callable[[Fields], Axis] | None = None,
    activation: str = "hidden_act",
) -> Part:
    """A gated MLP: gate and up (or `fused` in one), down."""

    def part(c: Fields, _: int) -> list[Weight]:
        middle, shift = (width or ffn())(c), c.flag(bias)
        gate, up, down = names.split()
        if fused:
            found = linear(f"{at}.{fused}", hidden(c), middle + middle, shift)
        else:
            found = [*linear(f"{at}.{gate}", hidden(c), middle, shift), *linear(f"{at}.{up}", hidden(c), middle, shift)]
        return [*found, *linear(f"{at}.{down}", middle, hidden(c), shift)]

    def forward(c: Fields, _: int) -> Forward:
        return Gated(at, names, fused, c.word(activation, "silu"))

    return Part(part, forward)


class Gated(Struct, frozen=True):
    """The forward of `LlamaMLP`: down(activation(gate(x)) × up(x))."""

    at: str
    names: str
    fused: str
    activation: str

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        ops.scope(self.at)
        gate_name, up_name, down_name = (f"{self.at}.{name}" for name in self.names.split())
        if self.fused:
            return self._fused(ops, ops.linear(f"{self.at}.{self.fused}", x), down_name)
        gate = ops.linear(gate_name, x)
        active = ops.activate(self.activation, gate)
        ops.drop(gate)
        up = ops.linear(up_name, x)
        product = ops.multiply(active, up)
        ops.drop(active, up)
        out = ops.linear(down_name, product)
        ops.drop(product)
        return out


    def _fused(self, ops: Operators, both: Tensor, down: str) -> Tensor:
        """`Phi3MLP`: the gate is a variable until the end."""
        half = both.width // 2
        gate, up = ops.split(both, half, half)
        ops.drop(both)
        active = ops.activate(self.activation, gate)
        product = ops.multiply(up, active)
        ops.drop(active, up)
        out = ops.linear(down, product)
        ops.drop(product, gate)
        return out


def plain(
    names: str, bias: Flag = True, *, width: Callable[[Fields], Axis] | None = None, activation: str = "hidden_act",
    takes: bool = False, otherwise: str = "silu",
) -> Part:  # fmt: skip
    """A two-layer MLP, by the full names of its layers. `otherwise`: the activation where no field says one."""

    def part(c: Fields, _: int) -> list[Weight]:
        middle, shift = (width or ffn())(c), c.flag(bias)
        up, down = names.split()
        return [*linear(up, hidden(c), middle, shift), *linear(down, middle, hidden(c), shift)]

    def forward(c: Fields, _: int) -> Forward:
        return Plain(names, c.word(activation, otherwise), takes)

    return Part(part, forward)


class Plain(Struct, frozen=True):
    """The forward of a two-layer MLP: down(activation(up(x)))."""

    names: str
    activation: str
    takes: bool = False
    """it lets go of what it is given itself: its lines stand in the layer's own forward"""

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        up, down = self.names.split()
        ops.scope(up.rpartition(".")[0])
        middle = ops.linear(up, x)
        if self.takes:
            ops.drop(x)
        active = ops.activate(self.activation, middle)
        ops.drop(middle)
        out = ops.linear(down, active)
        ops.drop(active)
        return out


def stack(
    c: Fields,
    name: str,
    prefix: str,
    layers: int,
    *parts: Weights,
    forward: Callable[[Fields, int], Forward | None] | None = None,
) -> list[Blocks]:
    """Layers made of `parts`, equal ones put together."""
    kinds: dict[tuple[tuple[Weight, ...], Forward | None], list[int]] = {}
    for layer in range(layers):
        weights = tuple([weight for part in parts for weight in part(c, layer)])
        kinds.setdefault((weights, forward(c, layer) if forward else None), []).append(layer)
    return [
        Blocks(_kind(name, weights, prefix), prefix, tuple(where), weights, runs)
        for (weights, runs), where in kinds.items()
    ]


_LABELS = {"attention": "attention", "mixer_ssm_conv": "mixer", "mlp": "mlp", "routed_experts": "experts",
           "shared_experts": "shared"}  # fmt: skip
_ALONE = {"mixer.experts.up_proj": "experts", "mixer.q_proj.weight": "attention", "mixer.up_proj.weight": "mlp"}
"""tensor → what a layer is whose one part is called a mixer whatever it does"""


def _kind(name: str, weights: Iterable[Weight], prefix: str) -> str:
    """A block's name: what it is, and what tells it from others: the modules it has."""
    if name != "decoder":
        return name
    block = Blocks("", prefix, (), tuple(weights))
    has = {block.module(weight) for weight in block.weights}
    shown = [label for module, label in _LABELS.items() if module in has]
    alone = [label for weight in block.weights for tensor, label in _ALONE.items() if weight.name == tensor]
    return f"{name}: {' + '.join(alone or shown)}"


def single(name: str, prefix: str, weights: Iterable[Weight], forward: Forward | None = None) -> list[Blocks]:
    """A part of the model that is there once."""
    found = tuple(weights)
    return [Blocks(name, prefix, (), found, forward)] if found else []


def either(test: Callable[[Fields, int], bool], yes: Weights, no: Weights) -> Weights:
    """`yes` in the layers that pass the test, `no` in the others."""

    def weights(c: Fields, layer: int) -> Iterable[Weight]:
        return yes(c, layer) if test(c, layer) else no(c, layer)

    if isinstance(yes, Part) and isinstance(no, Part):
        forwards = yes.forward, no.forward
        return Part(weights, lambda c, layer: forwards[0 if test(c, layer) else 1](c, layer))
    return weights


none = Part(lambda _c, _layer: (), lambda _c, _layer: None)
"""A part that a layer does not have."""
