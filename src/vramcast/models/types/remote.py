"""Types that transformers does not have: their checkpoints bring their own code. Norms count as norms here.

Their forwards are read from that code and made of parts that are traced in other types; they are not traced themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from msgspec import structs

from vramcast.models.fields import Fields
from vramcast.models.grouped_query import GroupedQuery
from vramcast.models.layout import Weight, axis
from vramcast.models.ops import Forward, Heads
from vramcast.models.parts import Part, Weights, ffn, gated, gqa, heads, hidden, linear, norm
from vramcast.models.types.decoder import PRE_NORM, Decoder
from vramcast.models.types.experts import first_dense, moe, shared, times


def _plainly(part: Weights) -> Weights:
    """Norms that are classed as norms whatever their name says."""
    return lambda c, layer: [structs.replace(weight, module="norms") for weight in part(c, layer)]


def norms_of(names: str, bias: bool = False) -> Weights:
    return _plainly(lambda c, _: [one for name in names.split() for one in norm(name, hidden(c), bias)])


_LLAMA_NORMS = norms_of("input_layernorm post_attention_layernorm")


def _packed(c: Fields, _: int) -> list[Weight]:
    """Baichuan: q, k and v in one projection."""
    query, key, _width = heads(c)
    return [
        *linear("self_attn.W_pack", hidden(c), query + key + key),
        *linear("self_attn.o_proj", query, hidden(c)),
    ]


def _fused(at: str, names: str) -> Callable[[Fields, int], Forward]:
    """The forward of one projection for queries, keys and values."""

    def forward(c: Fields, _: int) -> Forward:
        query, key, width = heads(c)
        qkv, out = names.split()
        return GroupedQuery(at, out, Heads(query.pieces[0].count, key.pieces[0].count, width, width), qkv)

    return forward


def _qwen1(c: Fields, _: int) -> list[Weight]:
    """The first Qwen: a biased fused projection; `kv_channels` is the head's width."""
    count, width = c.count("num_attention_heads"), c.count("kv_channels")
    query = axis(count, width)
    return [
        *linear("attn.c_attn", hidden(c), query + query + query, True),
        *linear("attn.c_proj", query, hidden(c), not c.flag("no_bias")),
    ]


def _qwen1_forward(c: Fields) -> Forward:
    count, width = c.count("num_attention_heads"), c.count("kv_channels")
    return GroupedQuery("attn", "c_proj", Heads(count, count, width, width), "c_attn", splits=True)


def _half_ffn(c: Fields) -> Any:
    """The first Qwen states the width of gate and up together."""
    return axis(c.count("intermediate_size") // 2)


def _phi3small(c: Fields, _: int) -> list[Weight]:
    query, key, _width = heads(c)
    return [
        *linear("self_attn.query_key_value", hidden(c), query + key + key, True),
        *linear("self_attn.dense", query, hidden(c), True),
    ]


def _gegelu(c: Fields, _: int) -> list[Weight]:
    """Phi-3 small: gate and up in one projection, with biases."""
    middle = ffn("ff_intermediate_size")(c)
    return [*linear("mlp.up_proj", hidden(c), middle + middle, True), *linear("mlp.down_proj", middle, hidden(c), True)]


def _internlm2(c: Fields, _: int) -> list[Weight]:
    query, key, _width = heads(c)
    bias = c.flag("bias")
    return [
        *linear("attention.wqkv", hidden(c), query + key + key, bias),
        *linear("attention.wo", query, hidden(c), bias),
    ]


def _nas(c: Fields, what: str, layer: int) -> dict[str, Any]:
    """What Nemotron NAS chose for a layer."""
    blocks = c.items("block_configs", c.count("num_hidden_layers"))
    chosen = cast("dict[str, Any]", blocks[layer] if blocks and isinstance(blocks[layer], dict) else {})
    part = chosen.get(what)
    if not isinstance(part, dict):
        c.wrong(f"{c.path('block_configs')}[{layer}].{what} is missing")
        return {}
    found = cast("dict[str, Any]", part)
    if found.get("replace_with_linear"):
        c.wrong(f"{c.path('block_configs')}[{layer}].{what}.replace_with_linear is not modelled")
    return found


def _nas_attention(c: Fields, layer: int) -> list[Weight]:
    """Grouped-query attention with its own group, or none."""
    chosen = _nas(c, "attention", layer)
    count, group = c.count("num_attention_heads"), chosen.get("n_heads_in_group")
    if chosen.get("no_op") or not chosen:
        return []
    if not isinstance(group, int) or group < 1 or count % group:
        c.wrong(f"{c.path('block_configs')}[{layer}].attention.n_heads_in_group = {group!r} does not divide {count}")
        return []
    width = hidden(c) // count
    query, key, bias = axis(count, width), axis(count // group, width, "kv"), c.flag("attention_bias")
    return [
        *linear("self_attn.q_proj", hidden(c), query, bias),
        *linear("self_attn.k_proj", hidden(c), key, bias),
        *linear("self_attn.v_proj", hidden(c), key, bias),
        *linear("self_attn.o_proj", query, hidden(c), bias),
        *_plainly(lambda c, _: norm("input_layernorm", hidden(c)))(c, layer),
    ]


def _nas_attends(c: Fields, layer: int) -> Forward | None:
    if not any(True for _ in _nas_attention(c, layer)):
        return None
    count = c.count("num_attention_heads")
    keys, width = count // int(_nas(c, "attention", layer)["n_heads_in_group"]), hidden(c) // count
    return GroupedQuery("self_attn", "o_proj", Heads(count, keys, width, width))


def _nas_mixes(c: Fields, layer: int) -> Forward | None:
    return gated("mlp_bias").forward(c, layer) if _nas_mlp(c, layer) else None


def _nas_mlp(c: Fields, layer: int) -> list[Weight]:
    """A gated MLP of its own width: two thirds of a multiple of the hidden size, rounded up to 256; or none."""
    chosen = _nas(c, "ffn", layer)
    factor = chosen.get("ffn_mult")
    if chosen.get("no_op") or not chosen:
        return []
    if not isinstance(factor, (int, float)) or not 0 < factor < 1000:
        c.wrong(f"{c.path('block_configs')}[{layer}].ffn.ffn_mult = {factor!r} must be a number above 0")
        return []
    width = -(-int(2 * factor * hidden(c) / 3) // 256) * 256
    found = gated("mlp_bias", width=lambda _: axis(width))(c, layer)
    return [*found, *_plainly(lambda c, _: norm("post_attention_layernorm", hidden(c)))(c, layer)]


TYPES = {
    "baichuan": Decoder(
        Part(_packed, _fused("self_attn", "W_pack o_proj")), gated(), norms="", more=_LLAMA_NORMS, run=PRE_NORM
    ),
    "xverse": Decoder(gqa(), gated(), norms="", more=_LLAMA_NORMS, run=PRE_NORM),
    "internlm": Decoder(gqa("bias", "bias"), gated(), norms="", more=_LLAMA_NORMS, run=PRE_NORM),
    "internlm2": Decoder(
        Part(_internlm2, _fused("attention", "wqkv wo")),
        gated(at="feed_forward", names="w1 w3 w2"),
        norms="",
        more=norms_of("attention_norm ffn_norm"),
        run="attention_norm ffn_norm",
        embed="tok_embeddings",
        head="output",
        head_module="lm_head",
    ),
    "qwen": Decoder(
        Part(_qwen1, lambda c, _: _qwen1_forward(c)),
        gated(names="w1 w2 c_proj", width=_half_ffn),
        prefix="transformer",
        layers="h",
        embed="wte",
        final="ln_f",
        norms="ln_1 ln_2",
    ),
    "phi3small": Decoder(
        _phi3small, _gegelu, norms="", more=norms_of("input_layernorm post_attention_layernorm", True),
        final="final_layernorm", norm_bias=True, tied=True,
    ),
    "deepseek": Decoder(
        gqa("attention_bias", "attention_bias"),
        moe("n_routed_experts", shared_part=shared(times("n_shared_experts")), sparse=first_dense()),
        norms="",
        more=_LLAMA_NORMS,
    ),
    "nemotron-nas": Decoder(
        Part(_nas_attention, _nas_attends), Part(_nas_mlp, _nas_mixes), norms="", run=PRE_NORM
    ),
}  # fmt: skip
