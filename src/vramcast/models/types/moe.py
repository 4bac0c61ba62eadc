"""Mixtures of experts behind grouped-query attention."""

from __future__ import annotations

from typing import Any, cast

from msgspec import Struct

from vramcast.models.fields import Fields
from vramcast.models.grouped_query import GroupedQuery
from vramcast.models.layout import Weight, axis
from vramcast.models.ops import Forward, Heads, Operators, Tensor
from vramcast.models.parts import (
    Part,
    gated,
    gqa,
    head_width,
    hidden,
    linear,
    rotary_width,
    share_of,
    tensor,
)
from vramcast.models.types.decoder import Decoder
from vramcast.models.types.experts import GROUPED, Scores, first_dense, listed, moe, shared, sparse_step, times
from vramcast.models.types.zaya import ZAYA
from vramcast.num import Size, whole

_QK = "q_norm k_norm"
_SHARED = shared(times("n_shared_experts"))
_SHARES = Scores(shares="norm_topk_prob", like="logits")
_DEEPSEEK = moe("n_routed_experts", shared_part=_SHARED, sparse=first_dense(), scores=GROUPED)


def _rotary_dim(c: Fields) -> Size:
    """MiniMax says how many elements."""
    return c.count("rotary_dim", 0) or rotary_width()(c)


def _sinks(c: Fields, _: int) -> list[Weight]:
    """GPT-OSS: one learned logit a head."""
    return [tensor("self_attn.sinks", axis(c.count("num_attention_heads")))]


class PhiMixture(Struct, frozen=True):
    """The forward of `PhimoeSparseMoeBlock`: its router draws two experts one after the other; noise on the tokens."""

    activation: str
    noisy: bool

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        ops.scope("mlp")
        noisy = [x]
        for _ in range(2 * self.noisy):
            noisy.append(ops.jitter(noisy[-1]))
        logits = ops.linear("mlp.router", noisy[-1])
        weights, places = ops.sparse_mixer(logits)
        out = ops.experts("mlp.experts", noisy[-1], places, weights, self.activation)
        ops.drop(*noisy[1:], logits, weights, places)
        return out


_phi = Part(
    moe("num_local_experts", width="intermediate_size", gate="router", bare=False),
    lambda c, _: PhiMixture(c.word("hidden_act", "silu"), bool(c.get("input_jitter_noise"))),
)


def _ernie_rule(c: Fields, layer: int) -> bool:
    first, last = c.count("moe_layer_start_index", 0, 0), c.count("moe_layer_end_index", -1, -1)
    within = first <= layer <= (c.count("num_hidden_layers") - 1 if last == -1 else last)
    return within and (layer + 1) % c.count("moe_layer_interval", 1) == 0


def _ernie_statics(c: Fields, _: int) -> list[Weight]:
    return [tensor("mlp.gate.moe_statics.e_score_correction_bias", 1, c.count("moe_num_experts"))]


def _mimo_slides(c: Fields, layer: int) -> bool:
    """All layers but the first and every sixth slide, unless the config lists them."""
    layers = c.count("num_hidden_layers")
    kinds, pattern = c.items("layer_types", layers), c.items("hybrid_layer_pattern", layers)
    if kinds:
        return kinds[layer] == "sliding_attention"
    return bool(pattern[layer]) if pattern else layer > 0 and (layer + 1) % 6 != 0


def _mimo_attention(c: Fields, layer: int) -> list[Weight]:
    """Sliding layers have twice the key heads; values are narrower than keys."""
    count, keys, width = c.count("num_attention_heads"), c.count("num_key_value_heads"), c.count("head_dim")
    value, bias = c.count("v_head_dim", width), c.flag("attention_bias")
    sizes = {"num_attention_heads": count, "num_key_value_heads": 2 * keys, "head_dim": width, "v_head_dim": value}
    for name, size in sizes.items():
        if c.count(f"swa_{name}", size) != size:
            c.wrong(f"{c.path(f'swa_{name}')} = {c.count(f'swa_{name}')} must be {size}")
    sliding = _mimo_slides(c, layer)
    key_heads = 2 * keys if sliding else keys
    found = [
        *linear("self_attn.q_proj", hidden(c), axis(count, width), bias),
        *linear("self_attn.k_proj", hidden(c), axis(key_heads, width, "kv"), bias),
        *linear("self_attn.v_proj", hidden(c), axis(key_heads, value, "kv"), bias),
        *linear("self_attn.o_proj", axis(count, value), hidden(c)),
    ]
    swa, full = c.get("add_swa_attention_sink_bias"), c.flag("add_full_attention_sink_bias")
    sink = swa is None or bool(swa) if sliding else full
    return [*found, tensor("self_attn.sinks", axis(count))] if sink else found


def _mimo_turned(c: Fields) -> Size:
    """A third of a head, the same in both kinds of layers."""
    found = c.get("rope_parameters")
    kinds = cast("dict[str, Any]", found).values() if isinstance(found, dict) else ()
    said = [cast("dict[str, Any]", kind).get("partial_rotary_factor") for kind in kinds if isinstance(kind, dict)]
    return share_of(c, c.count("head_dim"), next(filter(None, said), _MIMO_PART))


_MIMO_PART = 0.334
"""transformers/models/mimo_v2_flash/configuration_mimo_v2_flash.py"""


def _mimo_forward(c: Fields, layer: int) -> Forward:
    count, width, sliding = c.count("num_attention_heads"), c.count("head_dim"), _mimo_slides(c, layer)
    keys = c.count("num_key_value_heads") * (2 if sliding else 1)
    shape = Heads(count, keys, width, c.count("v_head_dim", width), sinks=sliding, shifts="freed")
    return GroupedQuery("self_attn", "o_proj", shape, partial=_mimo_turned(c), scales_values=True)


TYPES = {
    "mixtral": Decoder(gqa(), moe("num_local_experts", width="intermediate_size", scores=Scores(shares=True))),
    "qwen2_moe": Decoder(
        gqa("qkv_bias"),
        moe(
            shared_part=shared(lambda c: c.count("shared_expert_intermediate_size"), "mlp.shared_expert", gate=True),
            shared_first=True,
            sparse=sparse_step,
            scores=_SHARES,
        ),
        slides_if="use_sliding_window",
    ),
    "qwen3_moe": Decoder(gqa("attention_bias", "attention_bias", qk_norm=_QK), moe(sparse=sparse_step, scores=_SHARES)),
    "olmoe": Decoder(
        gqa("attention_bias", "attention_bias", qk_norm=_QK, norm_width="all"),
        moe(width="intermediate_size", scores=_SHARES),
    ),
    "flex_olmo": Decoder(
        gqa("attention_bias", "attention_bias", qk_norm=_QK, norm_width="all", norm_kind="rms_wide"),
        moe(width="intermediate_size", scores=_SHARES),
        norms="post_attention_layernorm post_feedforward_layernorm",
        norm="rms_wide",
        order="post",
    ),
    "granitemoe": Decoder(
        gqa("attention_bias", "attention_bias"),
        moe(
            "num_local_experts",
            width="intermediate_size",
            at="block_sparse_moe",
            gate="router",
            scores=Scores("chosen", like="tokens"),
        ),
        multiplies=True,
    ),
    "phimoe": Decoder(
        gqa("attention_bias", "attention_bias"),
        _phi,
        norm="layer",
        norm_bias=True,
        head_bias="lm_head_bias",
    ),
    "gpt_oss": Decoder(
        gqa("attention_bias", "attention_bias", rotation="chunks", sinks=True, extra=_sinks),
        moe(
            "num_local_experts",
            width="intermediate_size",
            gate="router",
            gate_bias=True,
            transposed=True,
            biased=True,
            scores=Scores("chosen"),
        ),
        norm="rms_wide",
        rotary=lambda c: whole(head_width(c), 2),
        kernel="eager",
    ),
    "minimax_m2": Decoder(
        gqa(qk_norm=_QK, norm_width="all", rotary=_rotary_dim),
        moe("num_local_experts", width="intermediate_size", scores=Scores("sigmoid", biased=True, shares=True)),
        rotary=_rotary_dim,
    ),
    "ernie4_5_moe": Decoder(
        gqa("use_bias", "use_bias", rotation="widened", interleaves=True),
        moe(
            "moe_num_experts",
            "moe_k",
            shared_part=shared(times("moe_num_shared_experts"), bias="use_bias"),
            sparse=_ernie_rule,
            dense=gated("use_bias"),
            extra=_ernie_statics,
            shared_first=True,
            scores=Scores(wide=True, apart=True, biased=True, shares=True, in_place=False, like="tokens"),
        ),
        head_bias="use_bias",
        wide_tables=True,
    ),
    "hunyuan_v1_moe": Decoder(
        gqa("attention_bias", "attention_bias", qk_norm="query_layernorm key_layernorm", norm_last=True),
        moe(
            top="moe_topk",
            width="intermediate_size",
            gate="gate.wg",
            bare=False,
            shared_part=shared(lambda c: c.count("intermediate_size"), "mlp.shared_mlp"),
            shared_first=True,
            scores=Scores(shares=True, like="logits"),
        ),
    ),
    "dots1": Decoder(gqa("attention_bias", "attention_bias", qk_norm=_QK), _DEEPSEEK),
    "glm4_moe": Decoder(
        gqa("attention_bias", qk_norm=_QK, norm_if="use_qk_norm", rotary=rotary_width(0.5)),
        _DEEPSEEK,
        rotary=rotary_width(0.5),
    ),
    "sarvam_moe": Decoder(
        gqa("attention_bias", qk_norm=_QK, norm_if="use_qk_norm"),
        moe("n_routed_experts", shared_part=_SHARED, sparse=first_dense()),
    ),
    "hy_v3": Decoder(
        gqa("attention_bias", "attention_bias", qk_norm=_QK),
        moe(
            shared_part=shared(times("num_shared_experts"), bias="mlp_bias"),
            sparse=listed(),
            dense=gated("mlp_bias"),
            wide_sum="enable_moe_fp32_combine",
            scores=Scores("sigmoid", wide=True, biased=True, shares=True, in_place=False, scaled=True),
        ),
    ),
    "mimo_v2_flash": Decoder(
        Part(_mimo_attention, _mimo_forward),
        moe("n_routed_experts", sparse=listed(otherwise=listed("moe_layer_freq")), scores=GROUPED),
        rotary=_mimo_turned,
        kernel="eager",
    ),
    "zaya": ZAYA,
}
