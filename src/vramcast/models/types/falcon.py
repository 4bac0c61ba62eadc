"""Falcon: fused projections of grouped, few or all key heads, with rotary positions or ALiBi."""

from __future__ import annotations

from msgspec import structs

from vramcast.models.fields import Fields
from vramcast.models.grouped_query import GroupedQuery
from vramcast.models.layout import Weight, axis
from vramcast.models.ops import Forward, Heads, Operators, Tensor
from vramcast.models.parts import Part, ffn, hidden, linear, norm, plain
from vramcast.models.types.classic import full_heads
from vramcast.models.types.decoder import PRE_NORM, Decoder, Order
from vramcast.num import Size


def _falcon_keys(c: Fields) -> int:
    """Grouped (new), multi-query or full heads."""
    heads = c.count("num_attention_heads")
    if c.flag("new_decoder_architecture"):
        return c.count("num_kv_heads", heads)
    return 1 if c.flag("multi_query") else heads


def _falcon(c: Fields, _: int) -> list[Weight]:
    """All heads in one projection."""
    query, width = full_heads(c)
    key = axis(_falcon_keys(c), width, "kv")
    shift = c.flag("bias")
    return [
        *linear("self_attention.query_key_value", hidden(c), query + key + key, shift),
        *linear("self_attention.dense", query, hidden(c), shift),
    ]


class FalconQuery(GroupedQuery, frozen=True):
    """The forward of `FalconAttention`: keys and values are picked out of the projection, which copies them; the new
    decoder makes them for all heads before it turns them, and its cache has those."""

    keys: Size = 1
    """heads of keys in the projection"""
    grouped: bool = False

    def _cut(self, ops: Operators, fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads, width = structs.replace(self.heads, keys=self.keys), self.heads.width
        query, key, value = ops.slices(fused, heads.count * width, heads.keys * width, heads.keys * width)
        ops.lend(fused)
        if not self.grouped:
            return query, key, value
        key, value = (ops.expanded(ops.copied(x), query, heads) for x in (key, value))
        return ops.copied(query), key, value


def _falcon_forward(c: Fields, _: int) -> Forward | None:
    """Unless attention drops, or all queries share one key head: torch has no fused kernel for that (sdp_utils_cpp.h,
    check_batch_size_and_num_heads_dense), and what it does instead has not been traced."""
    count, width, grouped = c.count("num_attention_heads"), full_heads(c)[1], c.flag("new_decoder_architecture")
    keys, turned = _falcon_keys(c), not c.flag("alibi")
    if c.get("attention_dropout") or (keys != int(count) and not grouped):
        return None
    shape = Heads(count, count, width, width)
    return FalconQuery("self_attention", "dense", shape, "query_key_value", rotates=turned, keys=keys, grouped=grouped)


def _falcon_order(c: Fields) -> Order:
    return "joined" if c.flag("new_decoder_architecture") or c.flag("parallel_attn") else "pre"


def _falcon_norms(c: Fields, _: int) -> list[Weight]:
    """One norm for both branches, or one each."""
    return [weight for name in _falcon_names(c).split() for weight in norm(name, hidden(c), True)]


def _falcon_names(c: Fields) -> str:
    """The norms in their order."""
    grouped, parallel = c.flag("new_decoder_architecture"), c.flag("parallel_attn")
    two = c.count("num_ln_in_parallel_attn", 2 if grouped else 1) == 2
    if not parallel:
        return PRE_NORM
    return "ln_attn ln_mlp" if two else "input_layernorm"


TYPES = {
    "falcon": Decoder(
        Part(_falcon, _falcon_forward),
        plain(
            "mlp.dense_h_to_4h mlp.dense_4h_to_h", "bias", width=ffn("ffn_hidden_size", 4), activation="activation",
            otherwise="gelu",
        ),
        order=_falcon_order,
        run=_falcon_names,
        norm="layer",
        dropout="hidden_dropout",
        holds="both",
        bias_apart=True,
        masks=lambda c: "biased" if c.flag("alibi") else "plain",
        rotary=lambda c: full_heads(c)[1],
        prefix="transformer",
        layers="h",
        embed="word_embeddings",
        final="ln_f",
        norms="",
        norm_bias=True,
        more=_falcon_norms,
    ),
}
