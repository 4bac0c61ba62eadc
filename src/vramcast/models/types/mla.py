"""Multi-head latent attention: queries and keys through low-rank projections. DeepSeek, Kimi, GLM, MiniCPM."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from vramcast.models.fields import Fields
from vramcast.models.layout import Weight, axis
from vramcast.models.ops import Forward, Heads, Index, Operators, Rotation, Tensor
from vramcast.models.parts import Part, Weights, either, gated, hidden, linear, norm, tensor
from vramcast.models.types.decoder import Decoder
from vramcast.models.types.experts import GROUPED, Scores, first_dense, listed, moe, shared, times
from vramcast.num import Size


class Latent(Struct, frozen=True):
    """The forward of `DeepseekV3Attention`: keys and values of every head are made of a latent that all share, which is
    what the cache keeps; a part of every head has positions."""

    heads: Heads
    rope: Size
    """width of the part with positions"""
    low: Size
    """width of the latent"""
    compressed: bool
    """queries go through a latent of their own"""
    rotation: Rotation
    index: Index | None = None
    """the scorer that chooses the keys of every token"""

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        at, heads, count = "self_attn", self.heads, self.heads.count
        own = heads.width - self.rope
        ops.scope(at)
        queries, narrow_queries = self._queries(ops, x, at)
        passed, turning = ops.split(queries, count * own, count * self.rope, by_head=True)
        both = ops.linear(f"{at}.kv_a_proj_with_mqa", x)
        narrow, position = ops.split(both, self.low, self.rope)
        latent = ops.norm("rms", f"{at}.kv_a_layernorm", narrow)
        ops.scope(at)
        turned, turned_key = ops.turn(turning, self.rotation), ops.turn(position, self.rotation)
        ops.drop(narrow, turning, position)
        latent, turned_key = ops.remember(latent, turned_key)
        query = ops.join(passed, turned)
        expanded = ops.linear(f"{at}.kv_b_proj", latent)
        unturned, value = ops.split(expanded, count * own, count * heads.values, by_head=True)
        key = ops.fill(unturned, turned_key, count)
        ops.drop(expanded, unturned)
        mixed = self._attend(ops, x, narrow_queries, query, key, value)
        out = ops.linear(f"{at}.o_proj", mixed)
        ops.drop(queries, passed, both, latent, turned, turned_key, query, key, value, mixed, *narrow_queries)
        return out

    def _attend(
        self, ops: Operators, x: Tensor, narrow: list[Tensor], query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        if self.index is None:
            return ops.attention(query, key, value, self.heads, joined=True)
        chosen = ops.chosen_keys(x, narrow[0], self.index)
        ops.keep(chosen, *ops.hide(chosen))
        return ops.attention(query, key, value, self.heads, joined=True)

    def _queries(self, ops: Operators, x: Tensor, at: str) -> tuple[Tensor, list[Tensor]]:
        """(queries; the latent they are made of, where that is held: a scorer is given it too)."""
        if not self.compressed:
            return ops.linear(f"{at}.q_proj", x), []
        narrow = ops.linear(f"{at}.q_a_proj", x)
        latent = ops.norm("rms", f"{at}.q_a_layernorm", narrow)
        ops.scope(at)
        ops.drop(narrow)
        out = ops.linear(f"{at}.q_b_proj", latent)
        if self.index is not None:
            return out, [latent]
        ops.drop(latent)
        return out, []


def latent(
    rotation: Rotation = "halves",
    if_interleaved: Rotation | None = None,
    indexed: Rotation | None = None,
    scored: bool = True,
    shared: bool = False,
) -> Part:
    """Latent attention with one way to turn, or with another where the config says `rope_interleave`. `indexed`: a
    scorer chooses keys, which turns like this; `scored`: it is the layer's own; `shared`: some layers have none."""

    def forward(c: Fields, _: int) -> Forward:
        count, rope = c.count("num_attention_heads"), c.count("qk_rope_head_dim")
        width = c.named("head_dim", c.count("qk_nope_head_dim") + rope)
        heads = Heads(count, count, width, c.count("v_head_dim", hidden(c) // count))
        how = if_interleaved if if_interleaved and c.flag("rope_interleave") else rotation
        index = None
        if indexed is not None:
            sizes = c.count("index_n_heads"), c.count("index_head_dim"), rope, c.count("index_topk")
            index = Index(*sizes, indexed, handed_on=shared and scored, own=scored)
        return Latent(heads, rope, c.count("kv_lora_rank"), bool(c.count("q_lora_rank", 0, 0)), how, index)

    return Part(_indexed if indexed is not None and scored else mla, forward)


def turned_width(c: Fields) -> Size:
    """Width of the tables of positions: of the part of a head that has some."""
    return c.count("qk_rope_head_dim")


def mla(c: Fields, _: int) -> list[Weight]:
    """Down-projections are whole on every rank, up-projections are cut by heads."""
    count, bias = c.count("num_attention_heads"), c.flag("attention_bias")
    nope, rope = c.count("qk_nope_head_dim"), c.count("qk_rope_head_dim")
    value = c.count("v_head_dim", hidden(c) // count)
    queries, low, keys = axis(count, nope + rope), c.count("q_lora_rank", 0, 0), c.count("kv_lora_rank")
    at = "self_attn"
    if low:
        found = [
            *linear(f"{at}.q_a_proj", hidden(c), low, bias),
            *norm(f"{at}.q_a_layernorm", low),
            *linear(f"{at}.q_b_proj", low, queries),
        ]
    else:
        found = linear(f"{at}.q_proj", hidden(c), queries)
    return [
        *found,
        *linear(f"{at}.kv_a_proj_with_mqa", hidden(c), keys + rope, bias),
        *norm(f"{at}.kv_a_layernorm", keys),
        *linear(f"{at}.kv_b_proj", keys, axis(count, nope + value)),
        *linear(f"{at}.o_proj", axis(count, value), hidden(c), bias),
    ]


def _scores(c: Fields, layer: int) -> bool:
    """GLM lets most layers reuse the choice of an earlier one."""
    layers = c.count("num_hidden_layers")
    kinds = c.items("indexer_types", layers) or c.items("index_topk_pattern", layers)
    frequency, offset = c.count("index_topk_freq", 1), c.count("index_skip_topk_offset", 2, 0)
    if kinds:
        return kinds[layer] in ("full", "F")
    return max(layer - offset + 1, 0) % frequency == 0


def _indexed(c: Fields, layer: int) -> list[Weight]:
    """DeepSeek's sparse attention: a small scorer chooses the keys. Whole on every rank."""
    count, width, at = c.count("index_n_heads"), c.count("index_head_dim"), "self_attn.indexer"
    return [
        *mla(c, layer),
        *linear(f"{at}.wq_b", c.count("q_lora_rank"), count * width),
        *linear(f"{at}.wk", hidden(c), width),
        *norm(f"{at}.k_norm", width, True),
        *linear(f"{at}.weights_proj", hidden(c), count),
    ]


_RATES = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
_KINDS = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}


def _v4_attention(c: Fields, layer: int) -> list[Weight]:
    """One key head, grouped low-rank output, sinks; a compressor of the keys in most layers."""
    count, width = c.count("num_attention_heads"), c.count("head_dim")
    low, groups, rank = c.count("q_lora_rank"), c.count("o_groups"), c.count("o_lora_rank")
    at = "self_attn"
    c.divides("o_groups", groups, "num_attention_heads", count)
    return [
        tensor(f"{at}.sinks", axis(count)),
        *linear(f"{at}.q_a_proj", hidden(c), low),
        *norm(f"{at}.q_a_norm", low),
        *linear(f"{at}.q_b_proj", low, axis(count, width)),
        *linear(f"{at}.kv_proj", hidden(c), width),
        *norm(f"{at}.kv_norm", width),
        *linear(f"{at}.o_a_proj", count * width // groups, axis(groups, rank)),
        *linear(f"{at}.o_b_proj", axis(groups, rank), hidden(c)),
        *_compressor(c, layer, low, width),
    ]


def _compressor(c: Fields, layer: int, low: int, width: int) -> list[Weight]:
    layers = c.count("num_hidden_layers")
    kinds, ratios = c.items("layer_types", layers), c.items("compress_ratios", layers)
    if kinds is None:
        if ratios is None:
            c.wrong(f"{c.path('compress_ratios')} is missing")
        kinds = [_KINDS.get(ratio, "") if isinstance(ratio, int) else "" for ratio in ratios or [0] * layers]
    kind, at = kinds[layer], "self_attn.compressor"
    if kind not in (*_RATES, "sliding_attention"):
        c.wrong(f"{c.path('layer_types')}[{layer}] = {kind!r} is not known")
    if kind not in _RATES:
        return []
    sparse = kind == "compressed_sparse_attention"
    found = _squeeze(c, at, _RATES[kind], width, 2 if sparse else 1)
    if sparse:
        count, inner = c.count("index_n_heads"), c.count("index_head_dim")
        found += [
            *_squeeze(c, f"{at}.indexer", _RATES[kind], inner, 2),
            *linear(f"{at}.indexer.q_b_proj", low, count * inner),
            *linear(f"{at}.indexer.scorer.weights_proj", hidden(c), count),
        ]
    return found


def _squeeze(c: Fields, at: str, rate: int, width: int, lanes: int) -> list[Weight]:
    return [
        tensor(f"{at}.position_bias", rate, lanes * width),
        *linear(f"{at}.kv_proj", hidden(c), lanes * width),
        *linear(f"{at}.gate_proj", hidden(c), lanes * width),
        *norm(f"{at}.kv_norm", width),
    ]


def _connections(at: str, streams: int, width: int) -> list[Weight]:
    """Hyper-connections: mixing weights of the parallel residual streams."""
    mixes = streams * (streams + 2)
    return [tensor(f"{at}.fn", mixes, streams * width), tensor(f"{at}.base", mixes), tensor(f"{at}.scale", 3)]


def _v4_connections(c: Fields, _: int) -> list[Weight]:
    streams = c.count("hc_mult")
    return [*_connections("attn_hc", streams, hidden(c)), *_connections("ffn_hc", streams, hidden(c))]


class _V4(Decoder, frozen=True):
    """DeepSeek V4 joins its residual streams before the last norm."""

    def last(self, c: Fields) -> list[Weight]:
        streams = c.count("hc_mult")
        sizes = {"fn": (streams, streams * hidden(c)), "base": (streams,), "scale": (1,)}
        return [*super().last(c), *(tensor(f"hc_head.hc_{name}", *size) for name, size in sizes.items())]


_SHARED = shared(times("n_shared_experts"))
_BIASED = shared(times("n_shared_experts"), bias="mlp_bias")
_V4_SHARED = shared(lambda c: c.count("moe_intermediate_size"), bias="mlp_bias")
_V2 = moe(
    "n_routed_experts",
    shared_part=_BIASED,
    sparse=first_dense(),
    dense=gated("mlp_bias"),
    scores=Scores(wide=True, scaled=True),
)
_V3 = moe("n_routed_experts", shared_part=_SHARED, sparse=first_dense(), scores=GROUPED)
_LISTED = moe("n_routed_experts", shared_part=_SHARED, sparse=listed(otherwise=first_dense()), scores=GROUPED)
_PAIRS = latent(if_interleaved="pairs")
_GLM_OWN, _GLM_SHARED = (latent("pairs", indexed="pairs", shared=True, scored=own) for own in (True, False))


def _decoder(attention: Weights, mlp: Weights, **more: Any) -> Decoder:
    return Decoder(attention, mlp, rotary=turned_width, **more)


DEEPSEEK = _decoder(mla, moe("n_routed_experts", shared_part=_SHARED, sparse=first_dense()))
"""its parameters only: code of their own runs models that bring some"""

TYPES = {
    "deepseek_v2": _decoder(latent("complex"), _V2),
    "deepseek_v3": _decoder(_PAIRS, _V3),
    "kimi_k2": DEEPSEEK,
    "deepseek_v32": _decoder(latent("pairs", indexed="halves"), _LISTED, masked=True),
    "glm_moe_dsa": _decoder(either(_scores, _GLM_OWN, _GLM_SHARED), _LISTED, masked=True),
    "glm4_moe_lite": _decoder(_PAIRS, moe("n_routed_experts", shared_part=_SHARED, sparse=listed(), scores=GROUPED)),
    "minicpm3": _decoder(latent(), gated("mlp_bias"), multiplies=True, scales_hidden=True),
    "deepseek_v4": _V4(_v4_attention, moe("n_routed_experts", shared_part=_V4_SHARED), more=_v4_connections),
}
