"""The parts that blocks of every family are made of: linear layers, norms, MLPs, grouped-query attention.

A part is a function of the fields and the index of a layer; a table row is a few parts. The names are transformers'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from vramcast.models.fields import Fields
from vramcast.models.layout import Axis, Blocks, Piece, Weight, Width, axis
from vramcast.num import Size

Part: TypeAlias = Callable[[Fields, int], Iterable[Weight]]
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


def norms(names: str, bias: Flag = False) -> Part:
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
        width = max(hidden(c) // queries, 1)
    if keys > queries:
        c.wrong(f"{c.path('num_key_value_heads')} = {keys} is more than {c.path('num_attention_heads')} = {queries}")
    else:
        c.divides("num_key_value_heads", keys, "num_attention_heads", queries)
    return axis(queries, width), axis(keys, width, "kv"), width


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
    extra: Part | None = None,
) -> Part:
    """Grouped-query attention: q, k, v (or `fused`), output, and the norms of queries and keys.

    `norm_width`: "head" (one scale for all heads) or "all" (over the whole projection).
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
        if qk_norm and c.flag(norm_if):
            for name, side in zip(qk_norm.split(), (query, key), strict=True):
                found += norm(f"{at}.{name}", width if norm_width == "head" else side)
        return [*found, *(extra(c, layer) if extra else ())]

    return part


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

    return part


def plain(names: str, bias: Flag = True, *, width: Callable[[Fields], Axis] | None = None) -> Part:
    """A two-layer MLP, by the full names of its layers."""

    def part(c: Fields, _: int) -> list[Weight]:
        middle, shift = (width or ffn())(c), c.flag(bias)
        up, down = names.split()
        return [*linear(up, hidden(c), middle, shift), *linear(down, middle, hidden(c), shift)]

    return part


def stack(c: Fields, name: str, prefix: str, layers: int, *parts: Part) -> list[Blocks]:
    """Layers made of `parts`, equal ones put together."""
    kinds: dict[tuple[Weight, ...], list[int]] = {}
    for layer in range(layers):
        weights = tuple([weight for part in parts for weight in part(c, layer)])
        kinds.setdefault(weights, []).append(layer)
    return [Blocks(_kind(name, weights, prefix), prefix, tuple(where), weights) for weights, where in kinds.items()]


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


def single(name: str, prefix: str, weights: Iterable[Weight]) -> list[Blocks]:
    """A part of the model that is there once."""
    found = tuple(weights)
    return [Blocks(name, prefix, (), found)] if found else []


def either(test: Callable[[Fields, int], bool], yes: Part, no: Part) -> Part:
    """`yes` in the layers that pass the test, `no` in the others."""
    return lambda c, layer: yes(c, layer) if test(c, layer) else no(c, layer)


def none(_: Fields, __: int) -> list[Weight]:
    """A part that a layer does not have."""
    return []
