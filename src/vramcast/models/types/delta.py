"""Qwen's gated delta net and gated attention: what is done with their tensors."""

from __future__ import annotations

from msgspec import Struct

from vramcast.models.ops import Delta, Operators, Tensor
from vramcast.models.parts import GroupedQuery
from vramcast.models.types.convolution import short_convolution
from vramcast.num import Size


class GatedDelta(Struct, frozen=True):
    """The forward of `Qwen3_5GatedDeltaNet`."""

    how: Delta
    key_heads: Size
    taps: Size
    activation: str

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        at, how = "linear_attn", self.how
        ops.scope(at)
        given = ops.times(x)
        mixed, gate, b, a = (ops.linear(f"{at}.in_proj_{name}", given) for name in ("qkv", "z", "b", "a"))
        ops.scope(at)
        active = short_convolution(ops, f"{at}.conv1d", mixed, self.taps, self.activation)
        ops.drop(mixed)
        keys = self.key_heads * how.keys
        sides = ops.split(active, keys, keys, how.heads * how.values)
        beta, decay = ops.sigmoid(b), ops.decay(at, a)
        query, key, value = sides
        read = ops.delta_rule(query, key, value, decay, beta, how)
        out = ops.gated_norm(f"{at}.norm", read, gate, how)
        ops.drop(read)
        projected = ops.linear(f"{at}.out_proj", out)
        ops.drop(out, given, gate, b, a, active, *sides, beta, decay)
        return projected


class GatedQuery(GroupedQuery, frozen=True):
    """The forward of `Qwen3_5Attention`: the query projection also makes a gate of the output."""

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        heads, at = self.heads, self.at
        ops.scope(at)
        fused = ops.linear(f"{at}.q_proj", x)
        seen, other = ops.split(fused, heads.count * heads.width, heads.count * heads.width)
        gate = ops.copied(other)
        ops.drop(fused)
        query = self._normed(ops, ops.by_head(seen, joined=True), 0)
        key = self._normed(ops, ops.by_head(ops.linear(f"{at}.k_proj", x), joined=True), 1)
        value = ops.by_head(ops.linear(f"{at}.v_proj", x))
        turned = self._turned(ops, query, key)
        ops.drop(query, key)
        query, key = turned
        key, value = ops.cache(key, value)
        mixed = ops.attention(query, key, value, heads, joined=True)
        opened = ops.sigmoid(gate)
        product = ops.multiply(mixed, opened)
        ops.drop(mixed, opened)
        out = ops.linear(f"{at}.o_proj", product)
        ops.drop(product, query, key, value, gate)
        return out
