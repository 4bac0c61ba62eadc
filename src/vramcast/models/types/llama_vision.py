"""The language models of Llama 4 and Llama 3.2 Vision: experts that see every token, layers that see images."""

from __future__ import annotations

from msgspec import Struct, structs

from vramcast.models.fields import Fields
from vramcast.models.layout import Blocks, Ends, Weight, axis
from vramcast.models.ops import Forward, Heads, Operators, Tensor
from vramcast.models.parts import Gated, Part, either, gated, gqa, heads, hidden, linear, tensor
from vramcast.models.types.decoder import Decoder
from vramcast.models.types.experts import routed
from vramcast.num import Size


class Llama4Attention(Struct, frozen=True):
    """The forward of `Llama4TextAttention`: positions as complex numbers and a norm without a weight behind them, or
    neither, and queries that a constant of their position multiplies."""

    heads: Heads
    rotates: bool
    norms: bool
    tempers: bool

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        ops.scope("self_attn")
        sides = [ops.by_head(ops.linear(f"self_attn.{name}_proj", x)) for name in "qkv"]
        query, key = (self._turned(ops, side) for side in sides[:2])
        if self.tempers:
            plain, query = query, ops.temper(query)
            ops.drop(plain)
        key, value = ops.cache(key, sides[2])
        mixed = ops.attention(query, key, value, self.heads)
        out = ops.linear("self_attn.o_proj", mixed)
        ops.keep(ops.cast(out, out.dtype))  # the layer has a variable of its own for it
        ops.drop(mixed, query, key, value)
        return out

    def _turned(self, ops: Operators, x: Tensor) -> Tensor:
        if not self.rotates:
            return x
        turned = ops.turn(x, "complex")
        ops.drop(x)
        if not self.norms:
            return turned
        rows = ops.split_heads(turned, self.heads.width)
        normed = ops.norm("l2", "self_attn.qk_norm", rows)
        merged = ops.merge_heads(normed, turned.width)
        ops.drop(turned, rows, normed)
        return merged


def _llama4_attention(c: Fields, layer: int) -> Forward:
    query, key, width = heads(c)
    layers, step = c.count("num_hidden_layers"), c.count("no_rope_layer_interval", 4)
    flags = c.items("no_rope_layers", layers) if c.get("no_rope_layers") else None
    rotates = bool(flags[layer]) if flags else (layer + 1) % step != 0
    window = c.count("attention_chunk_size", 0, 0) if rotates else 0
    shape = Heads(query.pieces[0].count, key.pieces[0].count, width, width, window)
    norms, tempers = c.flag("use_qk_norm"), c.flag("attn_temperature_tuning")
    return Llama4Attention(shape, rotates, norms and rotates, tempers and not rotates)


class Llama4Mixture(Struct, frozen=True):
    """The forward of `Llama4TextMoe`: every expert is given every token, times its score, which is 0 for most."""

    experts: Size
    chosen: Size
    activation: str
    shared: Forward

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        at = "feed_forward"
        ops.scope(at)
        logits = ops.linear(f"{at}.router", x)
        ops.keep(logits)
        scores = self._scores(ops, logits)
        rows, column = ops.repeat(x, self.experts), ops.column(scores)
        given = ops.scale(rows, column, "scored rows")
        ops.drop(rows, column)
        routed_rows = self._experts(ops, given)
        ops.drop(given)
        out = self.shared(ops, x)
        ops.scope(at)
        total = ops.add_groups(out, routed_rows)
        ops.drop(routed_rows, scores)
        return total

    def _scores(self, ops: Operators, logits: Tensor) -> Tensor:
        values, places = ops.largest(logits, self.chosen)
        spread = ops.scatter(values, places, logits)
        wide = ops.cast(spread, "fp32")
        every = ops.sigmoid(wide)
        scores = ops.cast(every, logits.dtype)
        ops.drop(wide, every, spread, values, places)
        return scores

    def _experts(self, ops: Operators, x: Tensor) -> Tensor:
        both = ops.batched("feed_forward.experts.gate_up_proj", x)
        gate, up = ops.halves(both)
        active = ops.activate(self.activation, gate)
        product = ops.multiply(up, active)
        ops.drop(active)
        out = ops.batched("feed_forward.experts.down_proj", product)
        ops.drop(product, gate, up, both)
        return out


def _llama4_sparse(c: Fields, layer: int) -> bool:
    chosen, step = c.get("moe_layers"), c.count("interleave_moe_layer_step", 1)
    if isinstance(chosen, list):
        return layer in chosen
    return layer % step == step - 1


def _llama4_experts(c: Fields, layer: int) -> list[Weight]:
    middle = axis(c.count("intermediate_size"))
    number, used, at = c.count("num_local_experts"), c.count("num_experts_per_tok"), "feed_forward"
    return [
        *routed(c, f"{at}.experts", number, used, middle, transposed=True),
        *linear(f"{at}.router", hidden(c), number),
        *gated(at=f"{at}.shared_expert")(c, layer),
    ]


def _llama4_mixture(c: Fields, _: int) -> Forward:
    function = c.word("hidden_act", "silu")
    beside = Gated("feed_forward.shared_expert", "gate_proj up_proj down_proj", "", function)
    return Llama4Mixture(c.count("num_local_experts"), c.count("num_experts_per_tok"), function, beside)


class _Llama4(Decoder, frozen=True):
    """Tables of positions are complex numbers."""

    def ends(self, c: Fields) -> Ends:
        return structs.replace(super().ends(c), complex_tables=True)


LLAMA4 = _Llama4(
    Part(gqa("attention_bias", "attention_bias"), _llama4_attention),
    either(
        _llama4_sparse,
        Part(_llama4_experts, _llama4_mixture),
        gated(at="feed_forward", width=lambda c: axis(c.count("intermediate_size_mlp"))),
    ),
)


def _crosses(c: Fields, layer: int) -> bool:
    return layer in c.indices("cross_attention_layers")


def _gates(c: Fields, layer: int) -> list[Weight]:
    return [tensor(f"cross_attn_{name}_gate", 1) for name in ("attn", "mlp")] if _crosses(c, layer) else []


class Cross(Struct, frozen=True):
    """A layer that reads images: a batch without them goes around it, and with them nobody has written it yet."""

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        raise NotImplementedError


class _Mllama(Decoder, frozen=True):
    """Llama 3.2 Vision has eight more embeddings than logits, and layers that only read images."""

    def embedding(self, c: Fields) -> list[Weight]:
        return [tensor("embed_tokens.weight", axis(c.count("vocab_size") + 8, kind="vocab"), hidden(c))]

    def blocks(self, c: Fields, prefix: str = "", head: str = "", tied: bool | None = None) -> list[Blocks]:
        found = super().blocks(c, prefix, head, tied)
        return [structs.replace(one, needs="images") if isinstance(one.forward, Cross) else one for one in found]

    def layer(self, c: Fields, layer: int) -> Forward | None:
        return Cross() if _crosses(c, layer) else _TEXT.layer(c, layer)


_TEXT = Decoder(gqa(), gated())
MLLAMA = _Mllama(either(_crosses, gqa(at="cross_attn", qk_norm="q_norm k_norm"), gqa()), gated(), more=_gates)
