"""Dense decoders of today: grouped-query attention and a gated MLP, with other biases, norms and fused projections."""

from __future__ import annotations

from msgspec import structs

from vramcast.models.fields import Fields
from vramcast.models.layout import Ends, Weight, axis
from vramcast.models.parts import Weights, either, gated, gqa, heads, hidden, none, norm, norms, plain, tensor
from vramcast.models.types.decoder import Decoder

SANDWICH = "input_layernorm post_attention_layernorm pre_feedforward_layernorm post_feedforward_layernorm"
POST_NORM = "post_attention_layernorm post_feedforward_layernorm"
_QK = "q_norm k_norm"
_BIASED = gqa("attention_bias", "attention_bias")
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
    return list(gqa("attention_bias")(c, layer))


def _parallel(field: str, bias: bool) -> Weights:
    """The second norm, which a parallel residual does without."""
    return either(lambda c, _: c.flag(field), none, norms("post_attention_layernorm", bias))


class _Gemma3(Decoder, frozen=True):
    """Layers that slide have rotary positions of their own."""

    def ends(self, c: Fields) -> Ends:
        found = super().ends(c)
        return structs.replace(found, tables=len(found.windows))


_GEMMA_MLP = gated(activation="hidden_activation")
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
    "seed_oss": Decoder(gqa("attention_bias", "attention_out_bias"), gated("mlp_bias")),
    "ernie4_5": Decoder(gqa("use_bias", "use_bias"), gated("use_bias")),
    "helium": Decoder(_helium, gated("mlp_bias")),
    "hunyuan_v1_dense": Decoder(
        gqa("attention_bias", "attention_bias", qk_norm="query_layernorm key_layernorm"), gated()
    ),
    "phi3": Decoder(gqa(fused="qkv_proj"), gated(fused="gate_up_proj")),
    "glm": Decoder(gqa("attention_bias"), gated(fused="gate_up_proj")),
    "glm4": Decoder(
        gqa("attention_bias"),
        gated(fused="gate_up_proj"),
        norms="input_layernorm post_attention_layernorm post_self_attn_layernorm post_mlp_layernorm",
    ),
    "cohere": Decoder(gqa("attention_bias", "attention_bias", extra=_cohere_norms), gated(), norms="input_layernorm"),
    "cohere2": Decoder(_BIASED, gated(), norms="input_layernorm"),
    "exaone4": Decoder(gqa(qk_norm=_QK), gated(), norms=POST_NORM),
    "olmo": Decoder(_BIASED, gated(), norms="", final=""),
    "olmo2": Decoder(gqa("attention_bias", "attention_bias", qk_norm=_QK, norm_width="all"), gated(), norms=POST_NORM),
    "olmo3": Decoder(gqa("attention_bias", "attention_bias", qk_norm=_QK, norm_width="all"), gated(), norms=POST_NORM),
    "gemma": Decoder(_BIASED, _GEMMA_MLP, norm="gemma", scales=True),
    "gemma2": Decoder(_BIASED, gated(), norms=SANDWICH),
    "gemma3_text": _Gemma3(
        gqa("attention_bias", "attention_bias", qk_norm=_QK, norm_kind="gemma"),
        _GEMMA_MLP,
        norms=SANDWICH,
        order="sandwich",
        norm="gemma",
        scales=True,
    ),
    "apertus": Decoder(
        gqa("attention_bias", "attention_bias", qk_norm=_QK),
        plain("mlp.up_proj mlp.down_proj", "mlp_bias"),
        norms="attention_layernorm feedforward_layernorm",
        more=_xielu,
    ),
    "jais2": Decoder(_BIASED, plain("mlp.up_proj mlp.down_proj", "mlp_bias"), norm_bias=True),
    "starcoder2": Decoder(gqa("use_bias", "use_bias"), plain("mlp.c_fc mlp.c_proj", "use_bias"), norm_bias=True),
    "stablelm": Decoder(
        gqa("use_qkv_bias", extra=_stablelm_norms),
        gated(),
        norms="input_layernorm",
        norm_bias=True,
        more=_parallel("use_parallel_residual", True),
    ),
}
