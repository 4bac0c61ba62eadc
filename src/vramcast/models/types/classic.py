"""Older decoders: biases everywhere, learned positions, fused projections, parallel residuals, plain MLPs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from msgspec import structs

from vramcast.catalog.dtypes import BYTES
from vramcast.models.fields import Fields
from vramcast.models.grouped_query import GroupedQuery
from vramcast.models.layout import Axis, Blocks, Weight, axis
from vramcast.models.ops import Forward, Heads
from vramcast.models.parts import (
    Flag,
    Part,
    ffn,
    gqa,
    heads,
    hidden,
    linear,
    norm,
    plain,
    rotary_width,
    tensor,
)
from vramcast.models.types.decoder import Decoder, Order
from vramcast.num import Size


def full_heads(c: Fields) -> tuple[Axis, int]:
    """(all heads, head_dim) of attention with as many key heads as query heads."""
    count = c.count("num_attention_heads")
    c.divides("num_attention_heads", count, "hidden_size", hidden(c))
    return axis(count, hidden(c) // count), hidden(c) // count


def _turned(weights: list[Weight]) -> list[Weight]:
    """GPT-2's Conv1D stores inputs × outputs."""
    return [Weight(weight.name, weight.axes[::-1]) for weight in weights]


_Scores = Literal["", "wide", "baddbmm", "biased"]


def _fused(
    at: str, names: str, bias: Flag = True, rotary: Callable[[Fields], Size] | None = None, *,
    scores: _Scores = "", splits: bool = True, without: str = "", **modes: Any,
) -> Part:  # fmt: skip
    """One projection of queries, keys and values, with equal heads, and the output. `without`: fields of what is not
    modelled."""

    def part(c: Fields, _: int) -> list[Weight]:
        query, _width = full_heads(c)
        qkv, out = names.split()
        shift = c.flag(bias)
        return [
            *linear(f"{at}.{qkv}", hidden(c), query + query + query, shift),
            *linear(f"{at}.{out}", query, hidden(c), shift),
        ]

    def forward(c: Fields, _: int) -> Forward | None:
        qkv, out = names.split()
        if any(c.get(name) for name in without.split()):
            return None
        partial = rotary(c) if rotary else 0
        shape = structs.replace(_heads(c), scores=scores)
        return GroupedQuery(at, out, shape, qkv, partial=partial, rotates=rotary is not None, splits=splits, **modes)

    return Part(part, forward)


def _heads(c: Fields) -> Heads:
    query, width = full_heads(c)
    return Heads(query.pieces[0].count, query.pieces[0].count, width, width)


def _apart(
    at: str, out: str, bias: Flag = False, out_bias: Flag = False,
    rotary: Callable[[Fields], Size] | None = None, *, scores: _Scores = "", without: str = "", **modes: Any,
) -> Part:  # fmt: skip
    """Separate projections, with equal heads."""

    def part(c: Fields, _: int) -> list[Weight]:
        query, _width = full_heads(c)
        names = ("q_proj", "k_proj", "v_proj")
        found = [weight for name in names for weight in linear(f"{at}.{name}", hidden(c), query, c.flag(bias))]
        return [*found, *linear(f"{at}.{out}", query, hidden(c), c.flag(out_bias))]

    def forward(c: Fields, _: int) -> Forward | None:
        if any(c.get(name) for name in without.split()):
            return None
        partial, shape = rotary(c) if rotary else 0, structs.replace(_heads(c), scores=scores)
        return GroupedQuery(at, out, shape, partial=partial, rotates=rotary is not None, **modes)

    return Part(part, forward)


def _phi_norms(c: Fields, _: int) -> list[Weight]:
    """Norms of queries and keys, with a bias."""
    _query, _key, width = heads(c)
    names = ("q_layernorm", "k_layernorm") if c.flag("qk_layernorm") else ()
    return [one for name in names for one in norm(f"self_attn.{name}", width, True)]


def _conv1d(part: Part) -> Part:
    """A part of GPT-2's Conv1D."""
    return Part(lambda c, layer: _turned(list(part(c, layer))), part.forward)


def _gptj_width(c: Fields) -> Size:
    """Elements of a head that have positions."""
    return c.count("rotary_dim", 64)


def _pairs(c: Fields) -> Size:
    """A mask of every pair of positions: true or false."""
    return c.count("max_position_embeddings") ** 2


def _neox_order(c: Fields) -> Order:
    return "branches" if c.flag("use_parallel_residual") else "pre"


_PLAIN = plain("mlp.c_fc mlp.c_proj", width=ffn("n_inner", 4), activation="activation_function")


def _bigcode(c: Fields, layer: int) -> list[Weight]:
    """Multi-query attention: one key and one value head behind all query heads."""
    if not c.flag("multi_query"):
        return list(_fused("attn", "c_attn c_proj")(c, layer))
    query, width = full_heads(c)
    key = axis(1, width, "kv")
    return [
        *linear("attn.c_attn", hidden(c), query + key + key, True),
        *linear("attn.c_proj", query, hidden(c), True),
    ]


def _bigcode_forward(c: Fields, _: int) -> Forward:
    count = _heads(c)
    shared = Heads(count.count, 1, count.width, count.width) if c.flag("multi_query") else count
    return GroupedQuery("attn", "c_proj", shared, "c_attn", rotates=False, splits=True)


def _without_norms(block: Blocks) -> Blocks:
    return structs.replace(block, weights=tuple(one for one in block.weights if "layer_norm" not in one.name))


def _mpt(c: Fields, layer: int) -> list[Weight]:
    """MPT nests its attention's settings; those that we know change no shape, others are refused."""
    c.sub("attn_config").read.update(_MPT_NEUTRAL)
    return list(_MPT(c, layer))


def _mpt_forward(c: Fields, layer: int) -> Forward | None:
    """Unless its attention clips or drops what it is given."""
    nested = c.sub("attn_config")
    return None if nested.get("clip_qkv") or nested.get("attn_pdrop") else _MPT.forward(c, layer)


_MPT = _fused("attn", "Wqkv out_proj", False, scores="biased")
_BLOOM_UNMODELLED = "attention_dropout apply_residual_connection_post_layernorm slow_but_exact"


_MPT_NEUTRAL = (
    "alibi alibi_bias_max attn_impl attn_pdrop attn_uses_sequence_id clip_qkv prefix_lm softmax_scale".split()
)


class _Opt(Decoder, frozen=True):
    """OPT embeds in another width where `word_embed_proj_dim` says so, and may end without a norm."""

    def layer(self, c: Fields, layer: int) -> Forward | None:
        """Unless norms stand behind the residual, or the embedding is of another width."""
        plain = c.flag("do_layer_norm_before") and c.count("word_embed_proj_dim", hidden(c)) == hidden(c)
        return super().layer(c, layer) if plain else None

    def embedding(self, c: Fields) -> list[Weight]:
        width = c.count("word_embed_proj_dim", hidden(c))
        found = [
            tensor("embed_tokens.weight", axis(c.count("vocab_size"), kind="vocab"), width),
            tensor("embed_positions.weight", c.count("max_position_embeddings") + 2, hidden(c)),
        ]
        if width != hidden(c):
            found += [*linear("project_out", hidden(c), width), *linear("project_in", width, hidden(c))]
        return found

    def blocks(self, c: Fields, prefix: str = "", head: str = "", tied: bool | None = None) -> list[Blocks]:
        found = super().blocks(c, prefix, head, tied)
        return found if c.flag("layer_norm_elementwise_affine") else [_without_norms(block) for block in found]

    def last(self, c: Fields) -> list[Weight]:
        if not c.flag("do_layer_norm_before") or c.flag("_remove_final_layer_norm"):
            return []
        return norm(self.final, hidden(c), True)


_Gpt = partial(
    Decoder,
    holds="output",
    norm="layer",
    rotary=None,
    prefix="transformer",
    layers="h",
    embed="wte",
    final="ln_f",
    norms="ln_1 ln_2",
    norm_bias=True,
)

TYPES = {
    "gpt2": _Gpt(
        _conv1d(_fused("attn", "c_attn c_proj")),
        _conv1d(_PLAIN),
        positions="wpe max_position_embeddings 0",
        dropout="resid_pdrop",
        embeds="embd_pdrop",
    ),
    "gpt_bigcode": _Gpt(
        Part(_bigcode, _bigcode_forward),
        _PLAIN,
        buffers=_pairs,
        positions="wpe max_position_embeddings 0",
        dropout="resid_pdrop",
        embeds="embd_pdrop",
    ),
    "gpt_neo": _Gpt(
        _apart("attn.attention", "out_proj", out_bias=True, scores="wide", without="attention_dropout"),
        plain("mlp.c_fc mlp.c_proj", width=ffn(times=4), activation="activation_function", otherwise="gelu_new"),
        buffers=lambda c: c.count("num_hidden_layers") * _pairs(c),
        kernel="eager",
        dropout="resid_dropout",
        embeds="embed_dropout",
        positions="wpe max_position_embeddings 0",
    ),
    "gptj": _Gpt(
        _apart("attn", "out_proj", rotary=_gptj_width, interleaves=True, by_row=True),
        plain("mlp.fc_in mlp.fc_out", width=ffn("n_inner", 4), activation="activation_function"),
        norms="ln_1",
        order="branches",
        dropout="resid_pdrop",
        rotary=_gptj_width,
        buffers=lambda c: c.count("max_position_embeddings") * _gptj_width(c) * BYTES["fp32"],
        head_bias=True,
    ),
    "gpt_neox": Decoder(
        _fused("attention", "query_key_value dense", "attention_bias", rotary=rotary_width(0.25)),
        plain("mlp.dense_h_to_4h mlp.dense_4h_to_h"),
        order=_neox_order,
        norm="layer",
        dropout="hidden_dropout",
        embeds="hidden_dropout",
        rotary=rotary_width(0.25),
        prefix="gpt_neox",
        embed="embed_in",
        final="final_layer_norm",
        norm_bias=True,
    ),
    "bloom": Decoder(
        _fused("self_attention", "query_key_value dense", scores="baddbmm", splits=False, without=_BLOOM_UNMODELLED),
        plain("mlp.dense_h_to_4h mlp.dense_4h_to_h", width=lambda c: axis(4 * hidden(c)), otherwise="bloom_gelu"),
        kernel="eager",
        alone=True,
        norm="layer",
        rotary=None,
        dropout="hidden_dropout",
        prefix="transformer",
        layers="h",
        embed="word_embeddings",
        final="ln_f",
        norm_bias=True,
        embed_norm="word_embeddings_layernorm",
    ),
    "opt": _Opt(
        _apart("self_attn", "out_proj", "enable_bias", "enable_bias", scales="q_proj"),
        plain("fc1 fc2", "enable_bias", width=ffn("ffn_dim"), activation="activation_function", takes=True),
        norm="layer",
        dropout="dropout",
        rotary=None,
        own_positions=True,
        prefix="model.decoder",
        final="final_layer_norm",
        norms="self_attn_layer_norm final_layer_norm",
        norm_bias=True,
    ),
    "mpt": Decoder(
        Part(_mpt, _mpt_forward),
        plain("ffn.up_proj ffn.down_proj", False, width=lambda c: axis(4 * hidden(c)), otherwise="gelu"),
        kernel="eager",
        alone=True,
        fills=True,
        norm="layer",
        rotary=None,
        holds="output",
        prefix="transformer",
        layers="blocks",
        embed="wte",
        final="norm_f",
        norms="norm_1 norm_2",
    ),
    "phi": Decoder(
        gqa(
            True, True, out="dense", extra=_phi_norms, rotary=rotary_width(0.5), joins=True,
            qk_norm="q_layernorm k_layernorm", norm_if="qk_layernorm", norm_kind="layer",
        ),
        plain("mlp.fc1 mlp.fc2"),
        order="branches",
        norm="layer",
        dropout="resid_pdrop",
        rotary=rotary_width(0.5),
        final="final_layernorm",
        norms="input_layernorm",
        norm_bias=True,
        head_bias=True,
    ),
}
