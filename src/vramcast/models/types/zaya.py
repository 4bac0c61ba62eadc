"""ZAYA: compressed convolutional attention, a router that is an MLP with a state, a residual stream in fp32."""

from __future__ import annotations

from msgspec import Struct, structs

from vramcast.models.fields import Fields
from vramcast.models.layout import Ends, Weight, axis
from vramcast.models.ops import Forward, Heads, Operators, Tensor
from vramcast.models.parts import heads, hidden, linear, norm, share_of, tensor
from vramcast.models.types.decoder import Decoder
from vramcast.models.types.experts import routed
from vramcast.num import Size

_QKV, _GATE = "self_attn.qkv_proj", "mlp.gate"


class Convolved(Struct, frozen=True):
    """The forward of `ZayaAttention`."""

    heads: Heads
    partial: Size
    """elements of a head that have positions"""
    steps: tuple[Size, Size]
    """positions by which each convolution shortens a sequence"""

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        heads = self.heads
        ops.scope(_QKV)
        query, key, value = self._project(ops, x)
        raw = query, key
        query, key = ops.unit(query, heads.count), ops.unit(key, heads.keys)
        ops.drop(*raw)
        plain, key = key, ops.learned("self_attn.qk_norm.temp", key, "times")
        ops.drop(plain)
        turned = [self._turned(ops, one, count) for one, count in ((query, heads.count), (key, heads.keys))]
        ops.drop(query, key)
        query, key = turned
        key, value = ops.cache(key, value)
        mixed = ops.attention(query, key, value, heads, joined=True)
        out = ops.linear("self_attn.o_proj", mixed)
        ops.drop(mixed, query, key, value)
        return out

    def _turned(self, ops: Operators, x: Tensor, count: Size) -> Tensor:
        parts = ops.slices(x, count * self.partial, count * (self.heads.width - self.partial))
        turned = ops.rope(parts[0])
        out = ops.join(turned, parts[1])
        ops.drop(turned, *parts)
        return out

    def _project(self, ops: Operators, given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        queries, keys = (count * self.heads.width for count in (self.heads.count, self.heads.keys))
        x = ops.times(given)
        query, key = (ops.linear(f"{_QKV}.{name}", x) for name in ("q_proj", "k_proj"))
        both, spread = ops.join(query, key), ops.spread(key, queries)
        total = ops.add(query, spread)
        residual = ops.times(total)
        ops.drop(total)
        key_residual = ops.group_mean(residual, keys)
        ops.drop(spread)
        padded = ops.pad(both, self.steps[0] + self.steps[1])
        ops.drop(both)
        first = ops.convolve_steps(f"{_QKV}.conv_qk_depthwise", padded, self.steps[0])
        ops.drop(padded)
        mixed = ops.convolve_steps(f"{_QKV}.conv_qk_grouped", first, self.steps[1])
        ops.drop(first)
        views = ops.slices(mixed, queries, keys)
        out = ops.add(views[0], residual), ops.add(views[1], key_residual)
        current, late = (ops.linear(f"{_QKV}.v_proj_{name}", x) for name in ("current", "delayed"))
        before = ops.delayed(late)
        value = ops.join(current, before)
        ops.drop(query, key, residual, key_residual, mixed, *views, current, late, before, x)
        return *out, value


class StatedRouter(Struct, frozen=True):
    """The forward of `ZayaSparseMoeBlock`: a router that adds the state of the layer before."""

    chosen: Size
    activation: str
    stated: bool

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        ops.scope(_GATE)
        state = ops.linear(f"{_GATE}.down_proj", x)
        if self.stated:
            earlier = ops.learned(f"{_GATE}.router_states_scale", state, "times")
            alone, state = state, ops.add(state, earlier)
            ops.drop(alone, earlier)
        given = ops.times(state)
        ops.hand_on(given)
        inner = ops.norm("rms", f"{_GATE}.router_mlp.norm", state)
        ops.scope(_GATE)
        ops.drop(state)
        for name in ("fc1", "fc2"):
            middle = ops.linear(f"{_GATE}.router_mlp.{name}", inner)
            ops.drop(inner)
            inner = ops.activate("gelu", middle)
            ops.drop(middle)
        logits = ops.linear(f"{_GATE}.router_mlp.out_proj", inner)
        ops.drop(inner)
        scores = ops.softmax(logits, own=True)
        places = ops.choice(scores, self.chosen, 0)
        weights = ops.gather(scores, places)
        ops.drop(scores)
        out = ops.experts("mlp.experts", x, places, weights, self.activation)
        ops.drop(logits, places, weights, given)
        return out


class ScaledLayer(Struct, frozen=True):
    """The forward of `ZayaDecoderLayer`: both what is added and the residual stream are shifted and scaled."""

    attention: Forward
    mlp: Forward

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        middle = self._branch(ops, x, "input_layernorm", self.attention, "post_attention")
        out = self._branch(ops, middle, "post_attention_layernorm", self.mlp, "post_mlp")
        ops.drop(middle)
        return out

    def _branch(self, ops: Operators, x: Tensor, before: str, part: Forward, behind: str) -> Tensor:
        low = ops.narrowed(x)
        given = ops.norm("rms", before, low)
        ops.drop(low)
        added = part(ops, given)
        ops.drop(given)
        at = f"{behind}_residual_scale"
        ops.scope(at)
        sides: list[Tensor] = []
        for one, name in ((added, "hidden_states"), (x, "residual")):
            shifted = ops.learned(f"{at}.{name}_bias", one, "plus")
            sides.append(ops.learned(f"{at}.{name}_scale", shifted, "times"))
            ops.drop(shifted)
        out = ops.add(*sides)
        ops.drop(*sides, added)
        return out


def _attention(c: Fields, _: int) -> list[Weight]:
    """Compressed convolutional attention: queries and keys go through two short convolutions."""
    query, key, width = heads(c)
    keys = key.size // width
    half = axis(keys, width // 2, "kv")
    bias = c.flag("attention_bias")
    mixed = query + key
    return [
        *linear(f"{_QKV}.q_proj", hidden(c), query, bias),
        *linear(f"{_QKV}.k_proj", hidden(c), key, bias),
        *linear(f"{_QKV}.v_proj_current", hidden(c), half, bias),
        *linear(f"{_QKV}.v_proj_delayed", hidden(c), half, bias),
        tensor(f"{_QKV}.conv_qk_depthwise.weight", mixed, 1, c.count("cca_time0")),
        tensor(f"{_QKV}.conv_qk_depthwise.bias", mixed),
        tensor(f"{_QKV}.conv_qk_grouped.weight", mixed, width, c.count("cca_time1")),
        tensor(f"{_QKV}.conv_qk_grouped.bias", mixed),
        tensor("self_attn.qk_norm.temp", axis(keys, 1, "kv")),
        *linear("self_attn.o_proj", query, hidden(c), bias),
    ]


def _experts(c: Fields, layer: int) -> list[Weight]:
    """A router that is an MLP with a state, one choice of which is to skip the experts."""
    inner, number = c.count("router_hidden_size"), c.count("num_experts")
    found = [
        *linear(f"{_GATE}.down_proj", hidden(c), inner, True),
        *norm(f"{_GATE}.router_mlp.norm", inner),
        *linear(f"{_GATE}.router_mlp.fc1", inner, inner, True),
        *linear(f"{_GATE}.router_mlp.fc2", inner, inner, True),
        *linear(f"{_GATE}.router_mlp.out_proj", inner, number + 1),
        *routed(c, "mlp.experts", number, c.count("num_experts_per_tok"), axis(c.count("moe_intermediate_size"))),
    ]
    return [*found, tensor(f"{_GATE}.router_states_scale", inner)] if layer else found


def _scales(c: Fields, _: int) -> list[Weight]:
    names = ("hidden_states_scale", "hidden_states_bias", "residual_scale", "residual_bias")
    return [tensor(f"{at}_residual_scale.{name}", hidden(c)) for at in ("post_attention", "post_mlp") for name in names]


def _input(c: Fields, _: int) -> list[Weight]:
    return [tensor(f"input_hidden_states_{name}", hidden(c)) for name in ("scale", "bias")]


def _turned(c: Fields) -> Size:
    """Elements of a head that have positions: the same part in both kinds of layers."""
    found = c.get("rope_parameters")
    kinds = found.values() if isinstance(found, dict) else ()  # pyright: ignore[reportUnknownVariableType,reportUnknownMemberType]
    said = [kind.get("partial_rotary_factor") for kind in kinds if isinstance(kind, dict)]  # pyright: ignore
    return share_of(c, heads(c)[2], next(filter(None, said), 1.0))  # pyright: ignore


class Zaya(Decoder, frozen=True):
    """A row whose layers have a forward of their own."""

    def layer(self, c: Fields, layer: int) -> Forward:
        query, key, width = heads(c)
        shape = Heads(query.pieces[0].count, key.pieces[0].count, width, width)
        steps = c.count("cca_time0") - 1, c.count("cca_time1") - 1
        router = StatedRouter(c.count("num_experts_per_tok"), c.word("hidden_act", "silu"), layer > 0)
        return ScaledLayer(Convolved(shape, _turned(c), steps), router)

    def ends(self, c: Fields) -> Ends:
        return structs.replace(super().ends(c), wide=True)


ZAYA = Zaya(_attention, _experts, more=_scales, first=_input, head_bias="lm_head_bias", rotary=_turned)
