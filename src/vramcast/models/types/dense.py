"""Dense decoders of today: grouped-query attention and a gated MLP, with other biases, norms and fused projections."""

from __future__ import annotations

from vramcast.models.cache.windows import window_of
from vramcast.models.fields import Fields
from vramcast.models.layout import Weight, axis
from vramcast.models.parts import (
    Part,
    Weights,
    also,
    either,
    gated,
    gqa,
    heads,
    hidden,
    none,
    norm,
    norms,
    plain,
    rotary_width,
    tensor,
)
from vramcast.models.types.decoder import PRE_NORM, Decoder, capped_logits, scaled_logits

SANDWICH = "input_layernorm post_attention_layernorm pre_feedforward_layernorm post_feedforward_layernorm"
POST_NORM = "post_attention_layernorm post_feedforward_layernorm"
_QK = "q_norm k_norm"
_BIASED = gqa("attention_bias", "attention_bias")
_HELIUM = gqa("attention_bias", interleaves=True)
_STABLELM = gqa("use_qkv_bias", rotary=rotary_width(0.25), joins=True)
_GLM = gqa("attention_bias", rotary=rotary_width(0.5), joins=True, interleaves=True)
LLAMA = Decoder(_BIASED, gated("mlp_bias"))


def _xielu(_: Fields, __: int) -> list[Weight]:
    """Apertus's activation learns two numbers."""
    return [tensor(f"mlp.act_fn.{name}", 1) for name in ("alpha_p", "alpha_n")]


def _cohere_norms(c: Fields, _: int) -> list[Weight]:
    """Query and key norms with a scale for each head."""
    if not c.flag("use_qk_norm"):
        return []
    query, key, width = heads(c)
    scales = {"q_norm": axis(query.size // width), "k_norm": axis(key.size // width, 1, "kv")}
    return [tensor(f"self_attn.{name}.weight", count, width) for name, count in scales.items()]


def _stablelm_norms(c: Fields, _: int) -> list[Weight]:
    """A layer norm without bias for each head."""
    if not c.flag("qk_layernorm"):
        return []
    query, key, width = heads(c)
    sides = (("q", query.size // width), ("k", key.size // width))
    return [
        weight
        for side, count in sides
        for head in range(count)
        for weight in norm(f"self_attn.{side}_layernorm.norms.{head}", width)
    ]


def _helium(c: Fields, layer: int) -> list[Weight]:
    """The output projection is square, so the heads must be as wide together as the model."""
    query, _key, _width = heads(c)
    if query.size != hidden(c):
        c.wrong(f"{c.path('num_attention_heads')} × head_dim = {query.size} must be hidden_size = {hidden(c)}")
    return list(_HELIUM(c, layer))


def _parallel(field: str, bias: bool) -> Weights:
    """The second norm, which a parallel residual does without."""
    return either(lambda c, _: c.flag(field), none, norms("post_attention_layernorm", bias))


def _slides(c: Fields, layer: int) -> bool:
    """Layers that see all tokens have no positions."""
    return int(window_of(c, layer)) > 0


TYPES = {
    "llama": LLAMA,
    "iquestcoder": LLAMA,
    "exaone": LLAMA,
    "internlm3": Decoder(gqa("qkv_bias", "bias"), gated("bias")),
    "mistral": Decoder(gqa(), gated()),
    "qwen2": Decoder(gqa(True), gated()),
    "qwen3": Decoder(gqa("attention_bias", "attention_bias", qk_norm=_QK), gated()),
    "granite": Decoder(_BIASED, gated("mlp_bias"), multiplies=True),
    "smollm3": LLAMA,
    "arcee": Decoder(_BIASED, plain("mlp.up_proj mlp.down_proj", "mlp_bias")),
    "seed_oss": Decoder(gqa("attention_bias", "attention_out_bias"), gated("mlp_bias"), dropout="residual_dropout"),
    "ernie4_5": Decoder(
        gqa("use_bias", "use_bias", rotation="widened", interleaves=True), gated("use_bias"), wide_tables=True
    ),
    "helium": Decoder(Part(_helium, _HELIUM.forward), gated("mlp_bias"), norm="rms_wide"),
    "hunyuan_v1_dense": Decoder(
        gqa("attention_bias", "attention_bias", qk_norm="query_layernorm key_layernorm", norm_last=True), gated()
    ),
    "phi3": Decoder(
        gqa(fused="qkv_proj", rotary=rotary_width(), joins=True),
        gated(fused="gate_up_proj"),
        rotary=rotary_width(),
        dropout="resid_pdrop",
    ),
    "glm": Decoder(_GLM, gated(fused="gate_up_proj"), rotary=rotary_width(0.5)),
    "glm4": Decoder(
        _GLM,
        gated(fused="gate_up_proj"),
        norms="input_layernorm post_attention_layernorm post_self_attn_layernorm post_mlp_layernorm",
        run="input_layernorm post_self_attn_layernorm post_attention_layernorm post_mlp_layernorm",
        order="sandwich",
        rotary=rotary_width(0.5),
    ),
    "cohere": Decoder(
        gqa(
            "attention_bias", "attention_bias", extra=_cohere_norms, rotation="stacked", qk_norm=_QK,
            norm_if="use_qk_norm", norm_kind="centred",
        ),
        gated(),
        norms="input_layernorm",
        order="parallel",
        norm="centred",
        logits=scaled_logits,
    ),
    "cohere2": Decoder(
        gqa("attention_bias", "attention_bias", rotation="stacked", turns=_slides),
        gated(),
        norms="input_layernorm",
        order="parallel",
        norm="centred",
        logits=scaled_logits,
    ),
    "exaone4": Decoder(gqa(qk_norm=_QK), gated(), norms=POST_NORM, order="post"),
    "olmo": Decoder(
        gqa("attention_bias", "attention_bias", rotation="wide", clips="clip_qkv"),
        gated(),
        norms="",
        final="",
        norm="layer_wide",
        run=PRE_NORM,
        wide_tables=True,
    ),
    "olmo2": Decoder(
        gqa("attention_bias", "attention_bias", qk_norm=_QK, norm_width="all", norm_kind="rms_wide", rotation="wide"),
        gated(),
        norms=POST_NORM,
        order="post",
        norm="rms_wide",
        wide_tables=True,
    ),
    "olmo3": Decoder(
        gqa("attention_bias", "attention_bias", qk_norm=_QK, norm_width="all", norm_kind="rms_wide", rotation="wide"),
        gated(),
        norms=POST_NORM,
        order="post",
        norm="rms_wide",
        wide_tables=True,
        tables_each=True,
    ),
    "gemma": Decoder(_BIASED, gated(), norm="rms_shifted", scales="module"),
    "gemma2": Decoder(
        gqa("attention_bias", "attention_bias", cap="attn_logit_softcapping"),
        gated(activation="hidden_activation"),
        norms=SANDWICH,
        order="sandwich",
        norm="rms_shifted",
        scales="module",
        logits=capped_logits,
        kernel="eager",
    ),
    "gemma3_text": Decoder(
        gqa("attention_bias", "attention_bias", qk_norm=_QK, norm_kind="rms_shifted"),
        gated(activation="hidden_activation"),
        norms=SANDWICH,
        order="sandwich",
        norm="rms_shifted",
        scales="module",
        logits=capped_logits,
        tables_each=True,
    ),
    "apertus": Decoder(
        gqa("attention_bias", "attention_bias", qk_norm=_QK),
        also(plain("mlp.up_proj mlp.down_proj", "mlp_bias"), _xielu),
        norms="attention_layernorm feedforward_layernorm",
    ),
    "jais2": Decoder(_BIASED, plain("mlp.up_proj mlp.down_proj", "mlp_bias"), norm_bias=True, norm="layer"),
    "starcoder2": Decoder(
        gqa("use_bias", "use_bias"), plain("mlp.c_fc mlp.c_proj", "use_bias"), norm_bias=True, norm="layer"
    ),
    "stablelm": Decoder(
        Part(
            gqa("use_qkv_bias", extra=_stablelm_norms).weights,
            lambda c, layer: None if c.flag("qk_layernorm") else _STABLELM.forward(c, layer),
        ),
        gated(),
        norms="input_layernorm",
        norm_bias=True,
        more=_parallel("use_parallel_residual", True),
        run=lambda c: "input_layernorm" if c.flag("use_parallel_residual") else PRE_NORM,
        order=lambda c: "parallel" if c.flag("use_parallel_residual") else "pre",
        norm="layer",
        holds="both",
        dropout="hidden_dropout",
        rotary=rotary_width(0.25),
    ),
}
