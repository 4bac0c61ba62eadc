"""Gemma 3n and 4: layers that share keys, embeddings for every layer, experts beside a dense MLP, sound and sight."""

from __future__ import annotations

from typing import Any, cast

from vramcast.models.fields import Fields
from vramcast.models.layout import Weight, axis
from vramcast.models.parts import gated, hidden, linear, norm, tensor
from vramcast.models.types.decoder import Decoder
from vramcast.models.types.dense import SANDWICH
from vramcast.models.types.experts import routed
from vramcast.models.types.gemma_towers import gemma3n_towers, gemma4_towers
from vramcast.models.types.multimodal import Multimodal
from vramcast.num import Size


def _shares(c: Fields, layer: int) -> bool:
    """The last layers use the keys and values of earlier ones and have no projections for them."""
    layers, shared = c.count("num_hidden_layers"), c.count("num_kv_shared_layers", 0, 0)
    if shared > layers:
        c.wrong(f"{c.path('num_kv_shared_layers')} = {shared} is more than {c.path('num_hidden_layers')} = {layers}")
    return layer >= layers - shared


def _full(c: Fields, layer: int, interval: int) -> bool:
    """Full attention: by the list, else every n-th layer; the last one always."""
    layers = c.count("num_hidden_layers")
    kinds = c.items("layer_types", layers)
    return layer == layers - 1 or (kinds[layer] == "full_attention" if kinds else (layer + 1) % interval == 0)


def _projections(c: Fields, layer: int, keys: Size, width: Size, values: bool) -> list[Weight]:
    count, bias, at = c.count("num_attention_heads"), c.flag("attention_bias"), "self_attn"
    query, key = axis(count, width), axis(keys, width, "kv")
    c.divides("num_key_value_heads", keys, "num_attention_heads", count)
    found = [
        *linear(f"{at}.q_proj", hidden(c), query, bias),
        *norm(f"{at}.q_norm", width),
        *linear(f"{at}.o_proj", query, hidden(c), bias),
    ]
    if not _shares(c, layer):
        found += [*linear(f"{at}.k_proj", hidden(c), key, bias), *norm(f"{at}.k_norm", width)]
        found += linear(f"{at}.v_proj", hidden(c), key, bias) if values else []
    return found


def _gemma4_attention(c: Fields, layer: int) -> list[Weight]:
    """Full layers have wider heads, and keys that are the values too where `attention_k_eq_v` says so."""
    same, few = c.flag("attention_k_eq_v"), c.count("num_global_key_value_heads", 0, 0)
    wide = c.count("global_head_dim", 512)
    keys, width = c.count("num_key_value_heads"), c.count("head_dim")
    if not _full(c, layer, 6):
        return _projections(c, layer, keys, width, values=True)
    return _projections(c, layer, few if same and few else keys, wide, values=not same)


def _gemma3n_attention(c: Fields, layer: int) -> list[Weight]:
    return _projections(c, layer, c.count("num_key_value_heads"), c.count("head_dim"), values=True)


def _gemma4_mlp(c: Fields, layer: int) -> list[Weight]:
    double = c.flag("use_double_wide_mlp") and _shares(c, layer)
    width = c.count("intermediate_size") * (2 if double else 1)
    found = list(gated(width=lambda _: axis(width))(c, layer))
    return [*found, *_gemma4_experts(c)] if c.flag("enable_moe_block") else found


def _gemma4_experts(c: Fields) -> list[Weight]:
    number, used = c.count("num_experts"), c.count("top_k_experts")
    names = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")
    return [
        tensor("router.scale", hidden(c)),
        tensor("router.per_expert_scale", number),
        *linear("router.proj", hidden(c), number),
        *routed(c, "experts", number, used, axis(c.count("moe_intermediate_size"))),
        *(one for name in names for one in norm(name, hidden(c))),
    ]


def _gemma3n_mlp(c: Fields, layer: int) -> list[Weight]:
    """One intermediate size for all layers, or a list."""
    widths = c.get("intermediate_size")
    if not isinstance(widths, list):
        return list(gated()(c, layer))
    found = c.items("intermediate_size", c.count("num_hidden_layers"))
    width: Any = found[layer] if found else 1
    if not isinstance(width, int) or width < 1:
        c.wrong(f"{c.path('intermediate_size')}[{layer}] must be a whole number above 0, not {width!r}")
        width = 1
    return list(gated(width=lambda _: axis(cast(int, width)))(c, layer))


def _layer_input(c: Fields, _: int) -> list[Weight]:
    """A second, narrow embedding of the tokens enters every layer."""
    width = c.count("hidden_size_per_layer_input", 0, 0)
    if not width:
        return []
    return [
        *linear("per_layer_input_gate", hidden(c), width),
        *linear("per_layer_projection", width, hidden(c)),
        *norm("post_per_layer_input_norm", hidden(c)),
    ]


def _layer_embeddings(c: Fields) -> list[Weight]:
    width, layers = c.count("hidden_size_per_layer_input", 0, 0), c.count("num_hidden_layers")
    vocab = c.count("vocab_size_per_layer_input")
    if not width:
        return []
    return [
        tensor("embed_tokens_per_layer.weight", axis(vocab, kind="vocab"), layers * width),
        *linear("per_layer_model_projection", hidden(c), layers * width),
        *norm("per_layer_projection_norm", width),
    ]


def _altup(c: Fields, layer: int) -> list[Weight]:
    """Gemma 3n: several streams of hidden states, mixed by learned coefficients, and a low-rank residual."""
    streams, rank = c.count("altup_num_inputs"), c.count("laurel_rank")
    return [
        tensor("altup.correct_output_scale", hidden(c)),
        *linear("altup.correction_coefs", streams, streams),
        *linear("altup.prediction_coefs", streams, streams**2),
        *linear("altup.modality_router", hidden(c), streams),
        *norm("altup.router_norm", hidden(c)),
        *linear("laurel.linear_left", hidden(c), rank),
        *linear("laurel.linear_right", rank, hidden(c)),
        *norm("laurel.post_laurel_norm", hidden(c)),
        *_layer_input(c, layer),
    ]


class _Gemma(Decoder, frozen=True):
    """The embeddings of the layers stand beside that of the tokens."""

    def embedding(self, c: Fields) -> list[Weight]:
        return [*super().embedding(c), *_layer_embeddings(c)]


class _Gemma3n(_Gemma, frozen=True):
    def embedding(self, c: Fields) -> list[Weight]:
        streams = c.count("altup_num_inputs")
        names = ("altup_projections", "altup_unembed_projections")
        mixed = [linear(f"{name}.{i}", hidden(c), hidden(c)) for name in names for i in range(streams - 1)]
        return [*super().embedding(c), *(one for pair in mixed for one in pair)]


GEMMA4 = _Gemma(_gemma4_attention, _gemma4_mlp, norms=SANDWICH, more=_layer_input)
GEMMA3N = _Gemma3n(_gemma3n_attention, _gemma3n_mlp, norms=SANDWICH, more=_altup)

TYPES = {
    "gemma4": Multimodal(GEMMA4, gemma4_towers),
    "gemma3n": Multimodal(GEMMA3N, gemma3n_towers),
}
