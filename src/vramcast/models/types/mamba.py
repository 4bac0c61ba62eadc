"""State-space layers, alone and beside attention: Mamba 1 and 2, Jamba, Bamba, Granite 4, Falcon H1, Nemotron H."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from msgspec import Struct, structs

from vramcast.models.fields import Fields
from vramcast.models.grouped_query import GroupedQuery
from vramcast.models.layout import Ends, Weight, axis
from vramcast.models.ops import Forward, Operators, Tensor
from vramcast.models.parts import (
    Part,
    Plain,
    either,
    gated,
    gqa,
    head_width,
    hidden,
    linear,
    none,
    plain,
    rotary_width,
    tensor,
)
from vramcast.models.types.decoder import Decoder, scaled_logits, wide_logits
from vramcast.models.types.experts import GROUPED, Router, Rule, Scores, moe
from vramcast.models.types.state_space import Names, expanded, mamba1, mamba2


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
    "falcon_mamba": _Alone(mamba1(_MAMBA, "l2")),
    "mamba2": _Alone(mamba2(_MAMBA, expanded("expand"))),
    "jamba": _Feed(
        either(
            _period("attn_layer_period", "attn_layer_offset"),
            gqa(turns=lambda _c, _layer: False),
            mamba1(Names(), "rms"),
        ),
        moe(
            width="intermediate_size",
            at="feed_forward",
            gate="router",
            sparse=_period("expert_layer_period", "expert_layer_offset"),
            dense=gated(at="feed_forward"),
            scores=Scores(like="tokens"),
        ),
        rotary=None,
        without=_KERNELS,
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
