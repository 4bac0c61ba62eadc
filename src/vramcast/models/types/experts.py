"""Mixtures of experts as parts of a layer: router, routed experts (one tensor for all), shared experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from msgspec import Struct, structs

from vramcast.models.fields import Fields
from vramcast.models.layout import Axis, Weight, axis
from vramcast.models.ops import Forward, Operators, Tensor
from vramcast.models.parts import Flag, Part, Weights, either, gated, hidden, linear, none, tensor
from vramcast.num import Size

Rule: TypeAlias = Callable[[Fields, int], bool]
"""Whether a layer has experts."""


def first_dense(field: str = "first_k_dense_replace") -> Rule:
    """The first layers are dense."""
    return lambda c, layer: layer >= c.count(field, 0, 0)


def listed(field: str = "mlp_layer_types", otherwise: Rule | None = None) -> Rule:
    """A list with one entry a layer ("sparse" or "dense", 1 or 0), or a rule where the config has none."""

    def rule(c: Fields, layer: int) -> bool:
        entries = c.items(field, c.count("num_hidden_layers"))
        fallback = otherwise(c, layer) if otherwise else layer > 0
        return entries[layer] not in ("dense", 0) if entries else fallback

    return rule


def sparse_step(c: Fields, layer: int) -> bool:
    """Qwen: every n-th layer, without those that are named dense."""
    step = c.count("decoder_sparse_step", 1)
    return layer not in c.indices("mlp_only_layers") and (layer + 1) % step == 0


class Scores(Struct, frozen=True):
    """How a router of a type makes weights of its logits; fields may name what of the config says so."""

    by: Literal["softmax", "sigmoid", "chosen"] = "softmax"
    """of all logits, or a softmax of the chosen ones"""
    wide: bool = False
    """the product is in fp32"""
    apart: bool = False
    """autocast is off for it"""
    low: bool = False
    """scores have the dtype of the logits, not fp32"""
    biased: Flag = False
    """scores that a learned bias moves choose; the weights are the scores themselves"""
    groups: str = ""
    """the field that says how many groups of experts there are, of which some are chosen first"""
    shares: Flag = False
    """the weights of a token are made to add up to one"""
    in_place: bool = True
    scaled: bool = False
    """a constant multiplies the weights"""
    like: Literal["", "logits", "tokens"] = ""
    """whose dtype the weights have in the end; else that of the softmax: fp32, but for GPT-OSS"""


GROUPED = Scores("sigmoid", wide=True, biased=True, groups="n_group", shares="norm_topk_prob", scaled=True)
"""DeepSeek V3 and those that follow it."""


class Router(Struct, frozen=True):
    """The forward of a router: (logits, weights, places of the chosen experts) of every token."""

    name: str
    chosen: Size
    scores: Scores
    groups: Size

    def __call__(self, ops: Operators, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ops.scope(self.name.rpartition(".")[0])
        scores = self.scores
        logits = ops.route(self.name, x, wide=scores.wide, apart=scores.apart)
        weights, places = self._chosen_last(ops, logits) if scores.by == "chosen" else self._chosen_first(ops, logits)
        if scores.like:
            wide, weights = weights, ops.cast(weights, (logits if scores.like == "logits" else x).dtype)
            ops.drop(wide)
        return logits, weights, places

    def _chosen_last(self, ops: Operators, logits: Tensor) -> tuple[Tensor, Tensor]:
        given = ops.cast(logits, "fp32") if self.scores.like == "tokens" else logits
        values, places = ops.largest(given, self.chosen)
        weights = ops.softmax(values, own=not self.scores.like)
        ops.drop(values, *([given] if given is not logits else []))
        return weights, places

    def _chosen_first(self, ops: Operators, logits: Tensor) -> tuple[Tensor, Tensor]:
        how = self.scores
        given = ops.cast(logits, logits.dtype if how.wide or how.low else "fp32")
        every = ops.softmax(given) if how.by == "softmax" else ops.sigmoid(given)
        ops.drop(given)
        if how.biased:
            places = ops.choice(every, self.chosen, self.groups)
            weights = ops.gather(every, places)
        else:
            weights, places = ops.largest(every, self.chosen)
        ops.drop(every)
        if how.shares:
            whole, weights = weights, ops.shares(weights, in_place=how.in_place)
            ops.drop(whole)
        if how.scaled:
            whole, weights = weights, ops.times(weights)
            ops.drop(whole)
        return weights, places


class Mixture(Struct, frozen=True):
    """The forward of a layer of experts: a router, the experts it chooses, and those that every token uses."""

    router: Router
    experts: str
    activation: str
    shared: Forward | None = None
    shared_gate: str = ""
    shared_first: bool = False
    """the shared experts run before the router"""
    wide_sum: bool = False
    """both are added in fp32"""

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        beside = self.shared(ops, x) if self.shared and self.shared_first else None
        routed = self.router(ops, x)
        out = ops.experts(self.experts, x, routed[2], routed[1], self.activation)
        if self.shared and self.wide_sum:
            out = self._wide_sum(ops, x, out, self.shared)
        elif self.shared:
            beside = self._gated(ops, x, beside or self.shared(ops, x))
            alone, out = out, ops.add(out, beside)
            ops.drop(alone, beside)
        ops.drop(*routed)
        return out

    def _wide_sum(self, ops: Operators, x: Tensor, routed: Tensor, shared: Forward) -> Tensor:
        wide = ops.cast(routed, "fp32")
        beside = shared(ops, x)
        other = ops.cast(beside, "fp32")
        ops.drop(beside)
        both = ops.add(wide, other)
        ops.drop(wide, other)
        out = ops.cast(both, x.dtype)
        ops.drop(both, routed)
        return out

    def _gated(self, ops: Operators, x: Tensor, beside: Tensor) -> Tensor:
        """Qwen weighs the shared expert with a number a token."""
        if not self.shared_gate:
            return beside
        logit = ops.linear(self.shared_gate, x)
        gate = ops.sigmoid(logit)
        ops.drop(logit)
        out = ops.scale(beside, gate, "gated shared expert")
        ops.drop(gate, beside)
        return out


def shared(
    width: Callable[[Fields], Size],
    name: str = "mlp.shared_experts",
    gate: bool = False,
    fused: str = "",
    bias: Flag = False,
) -> Part:
    """Experts that every token uses: one MLP of their joint width."""

    def part(c: Fields, layer: int) -> list[Weight]:
        middle = width(c)
        if not middle:
            return []
        found = list(gated(bias, at=name, fused=fused, width=lambda _: axis(middle))(c, layer))
        return [*found, *linear(f"{name}_gate", hidden(c), 1)] if gate else found

    def forward(c: Fields, layer: int) -> Forward | None:
        return gated(bias, at=name, fused=fused).forward(c, layer) if width(c) else None

    return Part(part, forward)


def times(count: str, width: str = "moe_intermediate_size") -> Callable[[Fields], Size]:
    """The joint width of `count` shared experts."""
    return lambda c: c.count(count, 0, 0) * c.count(width)


def moe(
    count: str = "num_experts",
    top: str = "num_experts_per_tok",
    width: str = "moe_intermediate_size",
    *,
    at: str = "mlp",
    gate: str = "gate",
    gate_bias: Flag = False,
    experts: str = "",
    shared_part: Part = none,
    shared_first: bool = False,
    sparse: Rule | None = None,
    dense: Weights | None = None,
    transposed: bool = False,
    biased: bool = False,
    extra: Weights = none,
    scores: Scores | None = None,
    bare: bool = True,
    wide_sum: Flag = False,
    activation: str = "hidden_act",
) -> Weights:
    """A layer of experts where `sparse` says so (everywhere if not given), else `dense`.

    `scores`: None while nobody has written what the router does. `bare`: its weight is a parameter, no linear layer.
    """
    below = experts or f"{at}.experts"

    def weights(c: Fields, layer: int) -> list[Weight]:
        number, used, middle = c.count(count), c.count(top), axis(c.count(width))
        if used > number:
            c.wrong(f"{c.path(top)} = {used} is more than {c.path(count)} = {number}")
        router = linear(f"{at}.{gate}", hidden(c), number, c.flag(gate_bias))
        found = [structs.replace(weight, bare=bare) for weight in router]
        found += routed(c, below, number, used, middle, transposed, biased)
        return [*found, *shared_part(c, layer), *extra(c, layer)]

    def forward(c: Fields, layer: int) -> Forward:
        assert scores is not None
        how = structs.replace(scores, shares=c.flag(scores.shares), biased=c.flag(scores.biased))
        router = Router(f"{at}.{gate}", c.count(top), how, c.count(scores.groups, 0) if scores.groups else 0)
        beside = shared_part.forward(c, layer)
        one = next((weight.name for weight in shared_part(c, layer) if weight.name.endswith("_gate.weight")), "")
        function = "clamped" if biased else c.word(activation, "silu")
        gate_name = one.removesuffix(".weight")
        return Mixture(router, below, function, beside, gate_name, shared_first, c.flag(wide_sum))

    part = Part(weights, forward) if scores else weights
    return either(sparse, part, dense or gated()) if sparse else part


def routed(
    c: Fields, at: str, number: Size, used: Size, middle: Axis, transposed: bool = False, biased: bool = False
) -> list[Weight]:
    """Two tensors for all experts: gate and up, and down. GPT-OSS and Llama 4 store them inputs first."""
    every = axis(number, 1, "expert")
    up, down = (middle + middle, hidden(c)), (hidden(c), middle)
    if transposed:
        up, down = up[::-1], down[::-1]
    found = [tensor(f"{at}.gate_up_proj", every, *up, used=used), tensor(f"{at}.down_proj", every, *down, used=used)]
    if biased:
        found.append(tensor(f"{at}.gate_up_proj_bias", every, middle + middle, used=used))
        found.append(tensor(f"{at}.down_proj_bias", every, hidden(c), used=used))
    return found
