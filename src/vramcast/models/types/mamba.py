"""State-space layers, alone and beside attention: Mamba 1 and 2, Jamba, Bamba, Granite 4, Falcon H1, Nemotron H."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from msgspec import Struct, structs

from vramcast.models.fields import Fields
from vramcast.models.layout import Axis, Ends, Weight, axis
from vramcast.models.ops import Forward, Operators, Scan, Tensor
from vramcast.models.parts import (
    Flag,
    GroupedQuery,
    Part,
    Plain,
    Weights,
    either,
    gated,
    gqa,
    head_width,
    hidden,
    linear,
    none,
    norm,
    plain,
    rotary_width,
    tensor,
)
from vramcast.models.types.convolution import short_convolution
from vramcast.models.types.decoder import Decoder, scaled_logits, wide_logits
from vramcast.models.types.experts import GROUPED, Router, Rule, Scores, moe
from vramcast.num import Size, whole


class Names(Struct, frozen=True):
    """How a model type spells the sizes of its mixers."""

    at: str = "mamba"
    state: str = "mamba_d_state"
    conv: str = "mamba_d_conv"
    expand: str = "mamba_expand"
    inner: str = "mamba_intermediate_size"
    rank: str = "mamba_dt_rank"
    heads: str = "mamba_n_heads"
    width: str = "mamba_d_head"
    groups: str = "mamba_n_groups"
    conv_bias: Flag = "mamba_conv_bias"
    bias: Flag = "mamba_proj_bias"
    out_bias: Flag = ""
    """where it is another field than `bias`"""
    norm: Flag = True
    chunk: str = "mamba_chunk_size"
    activation: str = "hidden_act"
    multiplies: bool = False
    """constants multiply what the first projection is given, and all that it gives"""


class Mixer(Struct, frozen=True):
    """The forward of `BambaMixer` and `Mamba2Mixer` where mamba-ssm and causal-conv1d are not installed: the scan in
    PyTorch, whose scores of every two positions of a chunk are by far the largest tensors. Batches are counted with
    padding, which is masked before the projection and behind the convolution.
    """

    at: str
    scan: Scan
    taps: Size
    activation: str
    multiplies: bool = False

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        how, at = self.scan, self.at
        inner, shared = how.heads * how.width, how.groups * how.state
        ops.scope(at)
        given = ops.times(x)
        if self.multiplies:
            masked, given = given, ops.times(given)
            ops.drop(masked)
        projected = ops.linear(f"{at}.in_proj", given)
        ops.scope(at)
        if self.multiplies:
            plain, projected = projected, ops.by_buffer(projected)
            ops.drop(plain)
        gate, mixed, step = ops.split(projected, inner, inner + shared + shared, how.heads)
        active = short_convolution(ops, f"{at}.conv1d", mixed, self.taps, self.activation)
        ops.drop(mixed)
        masked = ops.times(active)
        ops.drop(active)
        values, b, c = ops.split(masked, inner, shared, shared)
        ops.drop(given)
        scanned = ops.chunk_scan(at, values, step, b, c, how)
        if ops.has(f"{at}.norm.weight"):
            normed = ops.norm_of_gated(f"{at}.norm", scanned, gate, whole(inner, how.groups))
        else:
            opened = ops.activate("silu", gate)
            normed = ops.multiply(scanned, opened)
            ops.drop(opened)
        ops.drop(scanned)
        low = ops.cast(normed, x.dtype)
        out = ops.linear(f"{at}.out_proj", low)
        ops.drop(low, normed, values, b, c, masked, gate, step, projected)
        return out


def mamba1(names: Names, inner_norms: bool = False) -> Weights:
    """Selective state space: in, convolution, x and dt projections, out."""

    def part(c: Fields, _: int) -> list[Weight]:
        inner = axis(c.count(names.inner, c.count(names.expand) * hidden(c)))
        state, at = c.count(names.state), names.at
        rank = -(-hidden(c) // 16) if c.get(names.rank) == "auto" else c.count(names.rank)
        conv_bias, bias = c.flag(names.conv_bias), c.flag(names.bias)
        found = [
            tensor(f"{at}.A_log", inner, state),
            tensor(f"{at}.D", inner),
            *_conv(f"{at}.conv1d", inner, c.count(names.conv), conv_bias),
            *linear(f"{at}.in_proj", hidden(c), inner + inner, bias),
            *linear(f"{at}.x_proj", inner, rank + 2 * state),
            *linear(f"{at}.dt_proj", rank, inner, True),
            *linear(f"{at}.out_proj", inner, hidden(c), bias),
        ]
        sizes = {"dt": rank, "b": state, "c": state} if inner_norms else {}
        return [*found, *(one for key, size in sizes.items() for one in norm(f"{at}.{key}_layernorm", size))]

    return part


def _conv(name: str, channels: Axis, kernel: Size, bias: bool) -> list[Weight]:
    """A depthwise convolution along the tokens."""
    found = [tensor(f"{name}.weight", channels, 1, kernel)]
    return [*found, tensor(f"{name}.bias", channels)] if bias else found


def mamba2(names: Names, inner: Callable[[Fields], Size | None] = lambda c: None) -> Part:
    """State space in heads: z, x, B, C and dt in one projection; B and C are shared by groups of heads."""

    def part(c: Fields, _: int) -> list[Weight]:
        count, at = c.count(names.heads), names.at
        expected = inner(c)
        width = c.get(names.width)
        width = (expected or 0) // count if width == "auto" else c.count(names.width)
        if expected is not None and expected != count * width:
            c.wrong(f"{c.path(names.heads)} × {c.path(names.width)} = {count * width} must be {expected}")
        x = axis(count, width)
        shares = axis(c.count(names.groups), c.count(names.state), "kv")
        mixed = x + shares + shares
        bias = c.flag(names.bias)
        found = [
            *(tensor(f"{at}.{name}", axis(count)) for name in ("dt_bias", "A_log", "D")),
            *_conv(f"{at}.conv1d", mixed, c.count(names.conv), c.flag(names.conv_bias)),
            *linear(f"{at}.in_proj", hidden(c), x + mixed + axis(count), bias),
            *linear(f"{at}.out_proj", x, hidden(c), c.flag(names.out_bias or names.bias)),
        ]
        return [*found, *norm(f"{at}.norm", x)] if c.flag(names.norm) else found

    def forward(c: Fields, _: int) -> Forward:
        count = c.count(names.heads)
        width = c.get(names.width)
        width = (inner(c) or 0) // count if width == "auto" else c.count(names.width)
        shape = Scan(count, width, c.count(names.groups), c.count(names.state), c.count(names.chunk, 256))
        return Mixer(names.at, shape, c.count(names.conv), c.word(names.activation, "silu"), names.multiplies)

    return Part(part, forward)


def expanded(field: str = "mamba_expand") -> Callable[[Fields], Size]:
    """The inner width as a multiple of the hidden size."""
    return lambda c: c.count(field) * hidden(c)


def _period(period: str, offset: str) -> Rule:
    """Every n-th layer, from an offset on."""
    return lambda c, layer: layer % c.count(period) == c.count(offset, 0, 0)


def _at_indices(c: Fields, layer: int) -> bool:
    return layer in c.indices("attn_layer_indices")


def _attends(c: Fields, layer: int) -> bool:
    kinds = c.items("layer_types", c.count("num_hidden_layers"))
    return bool(kinds) and kinds[layer] in ("attention", "full_attention")


def _routes(c: Fields, _: int) -> bool:
    """Granite: whether the model has routed experts beside its shared MLP."""
    for name in ("num_experts_per_tok", "intermediate_size"):  # read even where there are none
        c.given(name)
    return bool(c.count("num_local_experts", 0, 0))


def _turns(c: Fields, _: int = 0) -> bool:
    return c.get("position_embedding_type") == "rope"


_GRANITE_MLP = gated(
    at="shared_mlp",
    fused="input_linear",
    names="gate up output_linear",
    width=lambda c: axis(c.count("shared_intermediate_size")),
)
_GRANITE_MOE = moe(
    "num_local_experts",
    width="intermediate_size",
    at="block_sparse_moe",
    gate="router",
    shared_part=_GRANITE_MLP,
    scores=Scores("chosen", like="tokens"),
)
_NEMOTRON = {
    "M": "mamba", "E": "moe", "*": "attention", "-": "mlp", "linear_attention": "mamba", "full_attention": "attention"
}  # fmt: skip


def _pattern(c: Fields) -> list[str]:
    """Nemotron H: one letter or word a layer."""
    words: Any = c.get("layers_block_type") or c.get("hybrid_override_pattern")
    if not isinstance(words, (list, str)) or not words:
        c.wrong(f"{c.path('hybrid_override_pattern')} is missing")
        return []
    kinds = [_NEMOTRON.get(str(word), str(word)) for word in list(cast("list[Any] | str", words))]
    for kind in dict.fromkeys(kinds):
        if kind not in _NEMOTRON.values():
            c.wrong(f"{c.path('hybrid_override_pattern')} has an unknown layer {kind!r}")
    count = c.count("num_hidden_layers", len(kinds)) if c.given("num_hidden_layers") is not None else len(kinds)
    if count != len(kinds):
        c.wrong(f"{c.path('hybrid_override_pattern')} has {len(kinds)} entries for {count} layers")
    return kinds


def _nemotron_experts(c: Fields, _: int) -> list[Weight]:
    """Experts of two layers, in a latent width where the config has one, and a shared expert."""
    number, used = c.count("n_routed_experts"), c.count("num_experts_per_tok")
    middle, bias = axis(c.count("moe_intermediate_size")), c.flag("mlp_bias")
    latent = c.count("moe_latent_size", 0, 0)
    every, width = axis(number, 1, "expert"), latent or hidden(c)
    joint = axis(c.count("moe_shared_expert_intermediate_size"))
    found = [
        tensor("mixer.experts.up_proj", every, middle, width, used=used),
        tensor("mixer.experts.down_proj", every, width, middle, used=used),
        *(structs.replace(weight, bare=True) for weight in linear("mixer.gate", hidden(c), number)),
        *linear("mixer.shared_experts.up_proj", hidden(c), joint, bias),
        *linear("mixer.shared_experts.down_proj", joint, hidden(c), bias),
    ]
    if latent:
        found += linear("mixer.fc1_latent_proj", hidden(c), latent, bias)
        found += linear("mixer.fc2_latent_proj", latent, hidden(c), bias)
    return found


class _LatentExperts(Struct, frozen=True):
    """The forward of `NemotronHMoE`: routed experts in a width of their own, a shared one in the layer's."""

    router: Router
    shared: Forward
    activation: str
    latent: bool

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        routed = self.router(ops, x)
        if self.latent:
            given = ops.linear("mixer.fc1_latent_proj", x)
            narrow = ops.experts("mixer.experts", given, routed[2], routed[1], self.activation)
            ops.drop(given)
            mixed = ops.linear("mixer.fc2_latent_proj", narrow)
            ops.drop(narrow)
        else:
            mixed = ops.experts("mixer.experts", x, routed[2], routed[1], self.activation)
        beside = self.shared(ops, x)
        out = ops.add(mixed, beside)
        ops.drop(mixed, beside, *routed)
        return out


def _nemotron_mixture(c: Fields, _: int) -> Forward:
    how = structs.replace(GROUPED, shares=c.flag("norm_topk_prob"))
    router = Router("mixer.gate", c.count("num_experts_per_tok"), how, c.count("n_group", 1))
    activation = c.word("mlp_hidden_act", "relu2")
    shared = Plain("mixer.shared_experts.up_proj mixer.shared_experts.down_proj", activation)
    return _LatentExperts(router, shared, activation, bool(c.count("moe_latent_size", 0, 0)))


def _mixer(c: Fields, layer: int) -> Part:
    """One mixer a layer: state space, attention, MLP or experts."""
    kinds = _pattern(c)
    return _MIXERS[kinds[layer]] if layer < len(kinds) and kinds[layer] in _MIXERS else none


class Beside(Struct, frozen=True):
    """The mixers of `FalconH1DecoderLayer`: a state space and attention are given the same, and constants multiply what
    both give."""

    states: Forward
    attention: GroupedQuery

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        plain = self.states(ops, x)
        first = ops.times(plain)
        ops.drop(plain)
        given = ops.times(x)
        plain = self.attention(ops, given)
        ops.drop(given)
        second = ops.times(plain)
        ops.drop(plain)
        ops.keep(first, second)
        return ops.add(first, second)


def _beside(attention: Part, states: Part) -> Part:
    def forward(c: Fields, layer: int) -> Forward | None:
        beside, attends = states.forward(c, layer), attention.forward(c, layer)
        assert isinstance(attends, GroupedQuery)
        return Beside(beside, structs.replace(attends, scales="k_proj")) if beside else None

    return Part(lambda c, layer: [*attention(c, layer), *states(c, layer)], forward)


class MultipliedGated(Struct, frozen=True):
    """The forward of `FalconH1MLP`: constants multiply the gate and the output; up comes first."""

    at: str
    activation: str

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        ops.scope(self.at)
        up = ops.linear(f"{self.at}.up_proj", x)
        plain = ops.linear(f"{self.at}.gate_proj", x)
        gate = ops.times(plain)
        ops.drop(plain)
        active = ops.activate(self.activation, gate)
        ops.drop(gate)
        product = ops.multiply(up, active)
        ops.drop(up, active)
        down = ops.linear(f"{self.at}.down_proj", product)
        out = ops.times(down)
        ops.drop(down, product)
        return out


class WideBlock(Struct, frozen=True):
    """The forward of `Mamba2Block`: what it is given is made fp32 before it is added to, and the sum stays so."""

    mixer: Forward

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        low = ops.narrowed(x)
        given = ops.norm("rms", "norm", low)
        ops.drop(low)
        wide = ops.cast(x, "fp32")
        added = self.mixer(ops, given)
        ops.drop(given)
        ops.scope("residual")
        out = ops.add(wide, added)
        ops.drop(wide, added)
        return out


class _Pure(Decoder, frozen=True, kw_only=True):
    """A model of state spaces alone."""

    def layer(self, c: Fields, layer: int) -> Forward | None:
        if not self._wide(c):
            return super().layer(c, layer)
        mixer = self.attention.forward(c, layer) if isinstance(self.attention, Part) else None
        return WideBlock(mixer) if mixer else None

    def ends(self, c: Fields) -> Ends:
        return structs.replace(super().ends(c), adds_wide=self._wide(c))

    def _wide(self, c: Fields) -> bool:
        return c.flag("residual_in_fp32")


class _NemotronH(Decoder, frozen=True):
    def layer_count(self, c: Fields) -> int:
        return len(_pattern(c))


_MIXERS: dict[str, Part] = {
    "mamba": mamba2(
        Names(
            at="mixer",
            state="ssm_state_size",
            conv="conv_kernel",
            heads="mamba_num_heads",
            width="mamba_head_dim",
            groups="n_groups",
            conv_bias="use_conv_bias",
            bias="use_bias",
            chunk="chunk_size",
            activation="mamba_hidden_act",
        )
    ),
    "attention": gqa("attention_bias", "attention_bias", at="mixer", turns=lambda _c, _layer: False),
    "mlp": plain("mixer.up_proj mixer.down_proj", "mlp_bias", activation="mlp_hidden_act", otherwise="relu2"),
    "moe": Part(_nemotron_experts, _nemotron_mixture),
}
_MAMBA = Names(
    at="mixer",
    state="state_size",
    conv="conv_kernel",
    expand="expand",
    inner="intermediate_size",
    rank="time_step_rank",
    heads="num_heads",
    width="head_dim",
    groups="n_groups",
    conv_bias="use_conv_bias",
    bias="use_bias",
    chunk="chunk_size",
)
_FALCON_MLP = gated("mlp_bias", at="feed_forward")
_KERNELS = "mamba-ssm and causal-conv1d"
_Alone = partial(
    _Pure,
    prefix="backbone",
    embed="embeddings",
    final="norm_f",
    norms="norm",
    rotary=None,
    logits=wide_logits,
    without=_KERNELS,
)
_Feed = partial(Decoder, final="final_layernorm", norms="input_layernorm pre_ff_layernorm")

TYPES = {
    "mamba": _Alone(mamba1(_MAMBA)),
    "falcon_mamba": _Alone(mamba1(_MAMBA)),
    "mamba2": _Alone(mamba2(_MAMBA, expanded("expand"))),
    "jamba": _Feed(
        either(
            _period("attn_layer_period", "attn_layer_offset"),
            gqa(),
            mamba1(Names(), inner_norms=True),
        ),
        moe(
            width="intermediate_size",
            at="feed_forward",
            gate="router",
            sparse=_period("expert_layer_period", "expert_layer_offset"),
            dense=gated(at="feed_forward"),
        ),
    ),
    "bamba": _Feed(
        either(
            _at_indices,
            gqa("attention_bias", "attention_bias", rotary=rotary_width(0.5), joins=True),
            mamba2(Names(), expanded()),
        ),
        gated("mlp_bias", at="feed_forward"),
        rotary=rotary_width(0.5),
        without=_KERNELS,
    ),
    "granitemoehybrid": Decoder(
        either(_attends, gqa("attention_bias", "attention_bias", turns=_turns), mamba2(Names(), expanded())),
        either(_routes, _GRANITE_MOE, _GRANITE_MLP),
        rotary=lambda c: head_width(c) if _turns(c) else 0,
        multiplies=True,
        without=_KERNELS,
    ),
    "falcon_h1": _Feed(
        _beside(
            gqa("attention_bias", "attention_bias"),
            mamba2(
                Names(norm="mamba_rms_norm", out_bias="projectors_bias", multiplies=True),
                lambda c: c.count("mamba_d_ssm", c.count("mamba_expand") * hidden(c)),
            ),
        ),
        Part(_FALCON_MLP, lambda c, _: MultipliedGated("feed_forward", c.word("hidden_act", "silu"))),
        scales="model",
        logits=scaled_logits,
        without=_KERNELS,
    ),
    "nemotron_h": _NemotronH(
        Part(lambda c, layer: _mixer(c, layer)(c, layer), lambda c, layer: _mixer(c, layer).forward(c, layer)),
        embed="embeddings",
        final="norm_f",
        norms="norm",
        norm="rms_wide",
        rotary=None,
        logits=wide_logits,
        tied=False,
        without=_KERNELS,
    ),
}
