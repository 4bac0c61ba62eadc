"""Qwen's gated delta net and gated attention: what is done with their tensors."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from vramcast.models.grouped_query import GroupedQuery
from vramcast.models.ops import Delta, Operators, Tensor
from vramcast.models.types.convolution import short_convolution
from vramcast.num import Size


class OlmoDelta(Struct, frozen=True):
    """The forward of `OlmoHybridGatedDeltaNet`: three projections in one tensor; gates are made where they are used."""

    how: Delta
    taps: Size
    doubles: bool
    """beta is up to two"""

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        at, how = "linear_attn", self.how
        ops.scope(at)
        given = ops.times(x)
        parts = [ops.linear(f"{at}.{name}_proj", given) for name in ("q", "k", "v")]
        widths = [part.width for part in parts]
        mixed = ops.join(*parts)
        ops.drop(*parts)
        active = short_convolution(ops, f"{at}.conv1d", mixed, self.taps, "silu")
        ops.drop(mixed)
        sides = ops.split(active, *widths)
        logit = ops.linear(f"{at}.b_proj", given)
        beta = ops.sigmoid(logit)
        ops.drop(logit)
        if self.doubles:
            plain, beta = beta, ops.times(beta)
            ops.drop(plain)
        logit = ops.linear(f"{at}.a_proj", given)
        decay = ops.decay(at, logit)
        ops.drop(logit)
        query, key, value = sides
        read = ops.delta_rule(query, key, value, decay, beta, how)
        gate = ops.linear(f"{at}.g_proj", given)
        out = ops.gated_norm(f"{at}.o_norm", read, gate, how)
        ops.drop(read)
        projected = ops.linear(f"{at}.o_proj", out)
        ops.drop(out, given, gate, active, *sides, beta, decay)
        return projected


_Projected: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor], list[Tensor]]
"""what is mixed over tokens, gate, b, a; what the layer holds to its end; what it holds until it is mixed"""


class GatedDelta(Struct, frozen=True):
    """The forward of `Qwen3_5GatedDeltaNet`."""

    how: Delta
    key_heads: Size
    taps: Size
    activation: str
    fused: bool

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        at, how = "linear_attn", self.how
        ops.scope(at)
        given = ops.times(x)
        mixed, gate, b, a, projected, rows = self._fused(ops, given) if self.fused else self._apart(ops, given)
        ops.scope(at)
        active = short_convolution(ops, f"{at}.conv1d", mixed, self.taps, self.activation)
        ops.drop(mixed)
        keys = self.key_heads * how.keys
        sides = ops.split(active, keys, keys, how.heads * how.values)
        ops.drop(*rows)
        beta, decay = ops.sigmoid(b), ops.decay(at, a)
        query, key, value = sides
        read = ops.delta_rule(query, key, value, decay, beta, how)
        out = ops.gated_norm(f"{at}.norm", read, gate, how)
        ops.drop(read)
        given_back = ops.linear(f"{at}.out_proj", out)
        ops.drop(out, given, gate, b, a, active, *sides, beta, decay, *projected)
        return given_back

    def _apart(self, ops: Operators, x: Tensor) -> _Projected:
        mixed, gate, b, a = (ops.linear(f"linear_attn.in_proj_{name}", x) for name in ("qkv", "z", "b", "a"))
        return mixed, gate, b, a, [], []

    def _fused(self, ops: Operators, x: Tensor) -> _Projected:
        """Qwen3-Next: both projections lie by key head, so everything that is taken out of them is copied by row."""
        how = self.how
        both, two = (ops.linear(f"linear_attn.in_proj_{name}", x) for name in ("qkvz", "ba"))
        ops.scope("linear_attn")
        keys, values = self.key_heads * how.keys, how.heads * how.values
        *sides, gate = ops.split(both, keys, keys, values, values)
        b, a = ops.split(two, how.heads, how.heads)
        rows = [ops.copied(side) for side in sides]
        if how.shared:
            gate, b, a = (ops.copied(one) for one in (gate, b, a))
        return ops.join(*rows), gate, b, a, [both, two], rows


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
