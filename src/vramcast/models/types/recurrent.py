"""Linear attention and short convolutions beside full attention: Qwen 3.5, MiniMax, OLMo, Kimi Linear, LFM2."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from msgspec import Struct, structs

from vramcast.models.fields import Fields
from vramcast.models.layout import Axis, Weight, axis
from vramcast.models.ops import Delta, Forward, Heads, Operators, Tensor
from vramcast.models.parts import (
    Flag,
    Part,
    Weights,
    either,
    gated,
    gqa,
    head_width,
    heads,
    hidden,
    linear,
    none,
    norm,
    rotary_width,
    tensor,
)
from vramcast.models.types.decoder import PRE_NORM, Decoder
from vramcast.models.types.delta import GatedDelta, GatedQuery, OlmoDelta
from vramcast.models.types.experts import Rule, Scores, first_dense, listed, moe, shared, sparse_step, times
from vramcast.models.types.mla import mla
from vramcast.num import Size

_QK = "q_norm k_norm"
_FLA = "flash-linear-attention"


def attends(otherwise: Callable[[Fields, int], bool]) -> Rule:
    """Whether a layer has full attention: by the config's list, or by the rule transformers falls back to."""

    def rule(c: Fields, layer: int) -> bool:
        kinds, fallback = c.items("layer_types", c.count("num_hidden_layers")), otherwise(c, layer)
        if kinds and kinds[layer] not in ("full_attention", "linear_attention", "conv"):
            c.wrong(f"{c.path('layer_types')}[{layer}] = {kinds[layer]!r} is not known")
        return kinds[layer] == "full_attention" if kinds else fallback

    return rule


def _interval(c: Fields, layer: int) -> bool:
    """Qwen: every n-th layer attends."""
    return (layer + 1) % c.count("full_attention_interval", 4) == 0


def _delta_axes(c: Fields) -> tuple[Axis, Axis, Axis]:
    """(keys, values, one number a value head) of a gated delta rule."""
    keys, values = c.count("linear_num_key_heads"), c.count("linear_num_value_heads")
    c.divides("linear_num_key_heads", keys, "linear_num_value_heads", values)
    return axis(keys, c.count("linear_key_head_dim")), axis(values, c.count("linear_value_head_dim")), axis(values)


def _delta(fused: bool) -> Part:
    """Qwen's gated delta net; q, k, v, z and b, a in two projections or in four."""

    def part(c: Fields, _: int) -> list[Weight]:
        key, value, each = _delta_axes(c)
        at, conv = "linear_attn", key + key + value
        if fused:
            sides = {"in_proj_qkvz": conv + value, "in_proj_ba": each + each}
        else:
            sides = {"in_proj_qkv": conv, "in_proj_z": value, "in_proj_b": each, "in_proj_a": each}
        return [
            tensor(f"{at}.dt_bias", each),
            tensor(f"{at}.A_log", each),
            tensor(f"{at}.conv1d.weight", conv, 1, c.count("linear_conv_kernel_dim")),
            *(one for name, side in sides.items() for one in linear(f"{at}.{name}", hidden(c), side)),
            *norm(f"{at}.norm", c.count("linear_value_head_dim")),
            *linear(f"{at}.out_proj", value, hidden(c)),
        ]

    return Part(part, lambda c, _: _delta_forward(c, fused))


def _gated_attention(c: Fields, _: int) -> list[Weight]:
    """Qwen's full attention: the query projection also makes a gate."""
    query, key, width = heads(c)
    bias, at = c.flag("attention_bias"), "self_attn"
    return [
        *linear(f"{at}.q_proj", hidden(c), query + query, bias),
        *linear(f"{at}.k_proj", hidden(c), key, bias),
        *linear(f"{at}.v_proj", hidden(c), key, bias),
        *linear(f"{at}.o_proj", query, hidden(c), bias),
        *norm(f"{at}.q_norm", width),
        *norm(f"{at}.k_norm", width),
    ]


def _gated_forward(c: Fields, _: int) -> Forward:
    query, key, width = heads(c)
    shape = Heads(query.pieces[0].count, key.pieces[0].count, width, width)
    names = ("q_norm", "k_norm")
    return GatedQuery("self_attn", "o_proj", shape, norms=names, norm="rms_shifted", partial=rotary_width(0.25)(c))


def _delta_shape(c: Fields) -> tuple[Delta, Size]:
    """(shape, number of key heads)"""
    keys, values = c.count("linear_num_key_heads"), c.count("linear_num_value_heads")
    return Delta(values, c.count("linear_key_head_dim"), c.count("linear_value_head_dim"), keys != values), keys


def _delta_forward(c: Fields, fused: bool) -> Forward:
    how, keys = _delta_shape(c)
    return GatedDelta(how, keys, c.count("linear_conv_kernel_dim"), c.word("hidden_act", "silu"), fused)


def _lightning(c: Fields, _: int) -> list[Weight]:
    """MiniMax's linear attention."""
    count, width = c.count("num_attention_heads"), c.count("head_dim")
    every, at = axis(count, width), "self_attn"
    return [
        *norm(f"{at}.norm", every),
        *linear(f"{at}.qkv_proj", hidden(c), every + every + every),
        *linear(f"{at}.out_proj", every, hidden(c)),
        *linear(f"{at}.output_gate", hidden(c), every),
    ]


def _olmo_delta(c: Fields, _: int) -> list[Weight]:
    key, value, each = _delta_axes(c)
    at = "linear_attn"
    sides = {"q": key, "k": key, "v": value, "a": each, "b": each, "g": value}
    return [
        tensor(f"{at}.A_log", each),
        tensor(f"{at}.dt_bias", each),
        *(one for name, side in sides.items() for one in linear(f"{at}.{name}_proj", hidden(c), side)),
        *linear(f"{at}.o_proj", value, hidden(c)),
        tensor(f"{at}.conv1d.weight", key + key + value, 1, c.count("linear_conv_kernel_dim")),
        *norm(f"{at}.o_norm", c.count("linear_value_head_dim")),
    ]


def _olmo_norms(c: Fields, layer: int) -> list[Weight]:
    """Pre-norm around linear attention, post-norm around full attention."""
    own = "post_feedforward_layernorm" if _olmo_attends(c, layer) else "input_layernorm"
    return [*norm(own, hidden(c)), *norm("post_attention_layernorm", hidden(c))]


_OLMO = "rms_wide"


def _olmo_forward(c: Fields, _: int) -> Forward:
    how, _keys = _delta_shape(c)
    return OlmoDelta(how, c.count("linear_conv_kernel_dim"), c.flag("linear_allow_neg_eigval"))


def _olmo_turns(c: Fields, _: int = 0) -> bool:
    """Released checkpoints have no positions: their `rope_parameters` say no base."""
    found: Any = c.get("rope_parameters")
    return isinstance(found, dict) and cast("dict[str, Any]", found).get("rope_theta") is not None


class _OlmoHybrid(Decoder, frozen=True):
    """Norms stand before the parts of a layer of linear attention, and behind those of others."""

    def layer(self, c: Fields, layer: int) -> Forward | None:
        full = _olmo_attends(c, layer)
        names = "post_attention_layernorm post_feedforward_layernorm" if full else PRE_NORM
        return structs.replace(self, more=none, norms=names, order="post" if full else "pre").plain_layer(c, layer)

    def plain_layer(self, c: Fields, layer: int) -> Forward | None:
        return super().layer(c, layer)


_olmo_attends = attends(lambda _, layer: layer % 4 == 3)


def _kimi_delta(c: Fields, _: int) -> list[Weight]:
    """Kimi delta attention: a low-rank forget gate and output gate."""
    nested = c.sub("linear_attn_config")
    count = nested.count("num_heads", c.count("linear_num_heads"))
    width = nested.count("head_dim", c.count("linear_head_dim"))
    kernel = nested.count("short_conv_kernel_size", c.count("linear_conv_kernel_dim"))
    every, each, at = axis(count, width), axis(count), "self_attn"
    return [
        *(one for name in ("q", "k", "v") for one in linear(f"{at}.{name}_proj", hidden(c), every)),
        tensor(f"{at}.conv1d.weight", every + every + every, 1, kernel),
        tensor(f"{at}.forget_gate.dt_bias", every),
        tensor(f"{at}.forget_gate.A_log", 1, 1, each, 1),
        *linear(f"{at}.forget_gate.f_a_proj", hidden(c), width),
        *linear(f"{at}.forget_gate.f_b_proj", width, every),
        *linear(f"{at}.b_proj", hidden(c), each),
        *linear(f"{at}.g_a_proj", hidden(c), width),
        *linear(f"{at}.g_b_proj", width, every),
        *norm(f"{at}.o_norm", width),
        *linear(f"{at}.o_proj", every, hidden(c)),
    ]


def _kimi_full(c: Fields, layer: int) -> bool:
    """The checkpoint numbers its layers from 1."""
    nested = c.sub("linear_attn_config")
    return layer + 1 in nested.indices("full_attn_layers") if nested.config else layer > 0 and layer % 4 == 0


def _short_conv(c: Fields, _: int) -> list[Weight]:
    """LFM2: a gated convolution over a few tokens."""
    channels, bias = axis(hidden(c)), c.flag("conv_bias")
    found = [tensor("conv.conv.weight", channels, 1, c.count("conv_L_cache"))]
    if bias:
        found.append(tensor("conv.conv.bias", channels))
    return [
        *found,
        *linear("conv.in_proj", hidden(c), channels + channels + channels, bias),
        *linear("conv.out_proj", channels, hidden(c), bias),
    ]


class ShortConvolution(Struct, frozen=True):
    """The forward of `Lfm2ShortConv` without causal-conv1d: the convolution pads both sides of a sequence, and what
    it gives past the last token is cut off, but stays in memory: `taps - 1` rows a sequence. The kernel of
    causal-conv1d gives no such rows; all else is the same."""

    channels: Size
    taps: Size

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        ops.scope("conv")
        given = ops.times(x)  # times the mask of padding; a batch without padding has none
        both = ops.linear("conv.in_proj", given)
        before, behind, values = ops.split(both, *[self.channels] * 3, by_head=True)
        gated = ops.multiply(before, values)
        ops.drop(given)
        longer = ops.convolve_steps("conv.conv", gated, 1 - self.taps)
        mixed = ops.cut(longer, self.taps - 1)
        ops.drop(gated, longer)
        product = ops.multiply(behind, mixed)
        out = ops.linear("conv.out_proj", product)
        ops.drop(both, before, behind, values, mixed, product)
        return out


def _lfm2_width(c: Fields) -> Axis:
    """Two thirds of the configured width, times a factor, rounded up; or the width itself."""
    width = c.count("block_ff_dim", c.count("intermediate_size"))
    factor, multiple = c.get("block_ffn_dim_multiplier"), c.count("block_multiple_of", 1)
    if c.flag("block_auto_adjust_ff_dim"):
        width = 2 * width // 3
        width = int(factor * width) if isinstance(factor, (int, float)) else width
        width = -(-width // multiple) * multiple
    return axis(width)


_Lfm2 = partial(Decoder, norms="operator_norm ffn_norm", final="embedding_norm")
_SHORT_CONV = Part(_short_conv, lambda c, _: ShortConvolution(hidden(c), c.count("conv_L_cache")))
_LFM2_ATTENTION = gqa(out="out_proj", qk_norm="q_layernorm k_layernorm")
_W = "w1 w3 w2"


def _qwen_moe(shares: Flag) -> Weights:
    return moe(
        shared_part=shared(lambda c: c.count("shared_expert_intermediate_size"), "mlp.shared_expert", gate=True),
        shared_first=True,
        sparse=sparse_step,
        scores=Scores(shares=shares, like="logits"),
    )


def _qwen(mlp: Weights, *, fused: bool = False) -> Decoder:
    """Qwen's gated delta nets, with gated attention at every fourth layer."""
    mixer = either(attends(_interval), Part(_gated_attention, _gated_forward), _delta(fused))
    return Decoder(mixer, mlp, norm="rms_shifted", rotary=rotary_width(0.25), without=_FLA)


QWEN3_5, QWEN3_5_MOE = _qwen(gated()), _qwen(_qwen_moe(shares=True))

TYPES = {
    "qwen3_next": _qwen(_qwen_moe("norm_topk_prob"), fused=True),
    "minimax": Decoder(
        either(attends(lambda _, layer: layer % 2 == 0), gqa(), _lightning),
        moe("num_local_experts", width="intermediate_size"),
    ),
    "olmo_hybrid": _OlmoHybrid(
        either(
            _olmo_attends,
            gqa(
                "attention_bias",
                "attention_bias",
                qk_norm=_QK,
                norm_width="all",
                norm_kind=_OLMO,
                turns=_olmo_turns,
                rotation="wide",
            ),
            Part(_olmo_delta, _olmo_forward),
        ),
        gated(),
        norms="",
        more=_olmo_norms,
        norm=_OLMO,
        rotary=lambda c: head_width(c) if _olmo_turns(c) else 0,
        wide_tables=True,
        without=_FLA,
    ),
    "kimi_linear": Decoder(
        either(attends(_kimi_full), mla, _kimi_delta),
        moe(
            shared_part=shared(times("n_shared_experts")),
            sparse=listed(otherwise=lambda c, layer: layer >= c.count("first_k_dense_replace", 1, 0)),
        ),
        tied=False,
    ),
    "lfm2": _Lfm2(
        either(attends(lambda c, layer: layer in c.indices("full_attn_idxs")), _LFM2_ATTENTION, _SHORT_CONV),
        gated(at="feed_forward", names=_W, width=_lfm2_width),
        without="causal-conv1d",
    ),
    "lfm2_moe": _Lfm2(
        either(attends(lambda _, __: False), _LFM2_ATTENTION, _SHORT_CONV),
        moe(
            at="feed_forward",
            sparse=first_dense("num_dense_layers"),
            dense=gated(at="feed_forward", names=_W),
            scores=Scores(
                "sigmoid", low=True, biased="use_expert_bias", shares="norm_topk_prob", in_place=False, scaled=True
            ),
        ),
        without="causal-conv1d",
    ),
}
