"""Gemma 3n and 4: layers that share keys, embeddings for every layer, experts beside a dense MLP, sound and sight."""

from __future__ import annotations

from typing import Any, cast

from msgspec import Struct, structs

from vramcast.models.cache.windows import window_of
from vramcast.models.fields import Fields
from vramcast.models.layout import Ends, Weight, axis
from vramcast.models.ops import Forward, Heads, Operators, Tensor
from vramcast.models.parts import Gated, gated, hidden, linear, norm, tensor
from vramcast.models.types.decoder import Decoder, capped_logits
from vramcast.models.types.dense import SANDWICH
from vramcast.models.types.experts import routed
from vramcast.models.types.gemma_towers import gemma3n_towers, gemma4_towers
from vramcast.models.types.multimodal import Multimodal
from vramcast.num import Size


def _shares(c: Fields, layer: int) -> bool:
    """The last layers use the keys and values of earlier ones and have no projections for them."""
    layers, shared = c.count("num_hidden_layers"), c.count("num_kv_shared_layers", 0, 0)
    if shared > layers:
        c.wrong(f"{c.path('num_kv_shared_layers')} = {shared} is more than {c.path('num_hidden_layers')} = {layers}")
    return layer >= layers - shared


def _full(c: Fields, layer: int, interval: int) -> bool:
    """Full attention: by the list, else every n-th layer; the last one always."""
    layers = c.count("num_hidden_layers")
    kinds = c.items("layer_types", layers)
    return layer == layers - 1 or (kinds[layer] == "full_attention" if kinds else (layer + 1) % interval == 0)


def _projections(c: Fields, layer: int, keys: Size, width: Size, values: bool) -> list[Weight]:
    count, bias, at = c.count("num_attention_heads"), c.flag("attention_bias"), "self_attn"
    query, key = axis(count, width), axis(keys, width, "kv")
    c.divides("num_key_value_heads", keys, "num_attention_heads", count)
    found = [
        *linear(f"{at}.q_proj", hidden(c), query, bias),
        *norm(f"{at}.q_norm", width),
        *linear(f"{at}.o_proj", query, hidden(c), bias),
    ]
    if not _shares(c, layer):
        found += [*linear(f"{at}.k_proj", hidden(c), key, bias), *norm(f"{at}.k_norm", width)]
        found += linear(f"{at}.v_proj", hidden(c), key, bias) if values else []
    return found


def _gemma4_attention(c: Fields, layer: int) -> list[Weight]:
    """Full layers have wider heads, and keys that are the values too where `attention_k_eq_v` says so."""
    same, few = c.flag("attention_k_eq_v"), c.count("num_global_key_value_heads", 0, 0)
    wide = c.count("global_head_dim", 512)
    keys, width = c.count("num_key_value_heads"), c.count("head_dim")
    if not _full(c, layer, 6):
        return _projections(c, layer, keys, width, values=True)
    return _projections(c, layer, few if same and few else keys, wide, values=not same)


class Gemma4Attention(Struct, frozen=True):
    """The forward of `Gemma4TextAttention`: queries, keys and values are normed; values may be the keys before that."""

    heads: Heads
    same: bool
    """no projection of values"""
    stores: bool
    """later layers may use its keys and values"""
    reuses: bool = False
    """it uses those of the last layer of its kind that has some"""

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        at = "self_attn"
        ops.scope(at)
        query = self._turned(ops, ops.by_head(ops.linear(f"{at}.q_proj", x)), f"{at}.q_norm")
        key, value = self._sides(ops, x, at)
        mixed = ops.attention(query, key, value, self.heads)
        out = ops.linear(f"{at}.o_proj", mixed)
        ops.drop(mixed, query, key, value)
        return out

    def _sides(self, ops: Operators, x: Tensor, at: str) -> tuple[Tensor, Tensor]:
        """Keys and values, a layer's own or an earlier one's."""
        if self.reuses:
            width = self.heads.keys * self.heads.width
            return ops.reuse(x, width), ops.reuse(x, width)
        raw = ops.by_head(ops.linear(f"{at}.k_proj", x))
        given = ops.cast(raw, raw.dtype) if self.same else ops.by_head(ops.linear(f"{at}.v_proj", x))
        key = self._turned(ops, raw, f"{at}.k_norm")
        value = self._normed(ops, "l2", f"{at}.v_norm", given)
        key, value = ops.cache(key, value)
        if self.stores:
            ops.store(key, value)
        return key, value

    def _turned(self, ops: Operators, x: Tensor, name: str) -> Tensor:
        normed = self._normed(ops, "rms_shifted", name, x)
        turned = ops.rope(normed)
        ops.drop(normed)
        return turned

    def _normed(self, ops: Operators, kind: str, name: str, x: Tensor) -> Tensor:
        rows = ops.split_heads(x, self.heads.width)
        normed = ops.norm(kind, name, rows)
        ops.scope("self_attn")
        ops.drop(x)
        merged = ops.merge_heads(normed, x.width)
        ops.drop(rows, normed)
        return merged


def _gemma4_attends(c: Fields, layer: int) -> Forward:
    same, few = c.flag("attention_k_eq_v"), c.count("num_global_key_value_heads", 0, 0)
    full, keys = _full(c, layer, 6), c.count("num_key_value_heads")
    width = c.count("global_head_dim", 512) if full else c.count("head_dim")
    keys = few if full and same and few else keys
    heads = Heads(c.count("num_attention_heads"), keys, width, width, window_of(c, layer))
    layers = c.count("num_hidden_layers") - c.count("num_kv_shared_layers", 0, 0)
    later = (other for other in range(layer + 1, layers) if _full(c, other, 6) == full)
    reuses = _shares(c, layer)
    return Gemma4Attention(heads, full and same, next(later, None) is None and not reuses, reuses)


class LayerInput(Struct, frozen=True):
    """What a layer makes of its own embedding of the tokens: gate(x) × that, projected back."""

    width: Size
    layers: Size
    activation: str

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        gate = ops.linear("per_layer_input_gate", x)
        active = ops.activate(self.activation, gate)
        ops.drop(gate)
        given = ops.layer_input(x, self.width, self.layers)
        product = ops.multiply(active, given)
        ops.drop(active, given)
        out = ops.linear("per_layer_projection", product)
        ops.drop(product)
        return out


class Gemma4Layer(Struct, frozen=True):
    """The forward of `Gemma4TextDecoderLayer`: norms on both sides, experts beside the MLP, a number that multiplies
    all of it in place."""

    attention: Forward
    mlp: Forward
    router: Forward | None
    inputs: LayerInput | None = None
    last_only: bool = False
    """behind the layers that have keys of their own, `generate` goes on with the last token of the prompt"""

    def __call__(self, ops: Operators, hidden: Tensor) -> Tensor:
        middle = self._added(ops, hidden, self._through(ops, hidden, "input_layernorm", self.attention), _ATTENDED)
        mixed = self._through(ops, middle, "pre_feedforward_layernorm", self.mlp)
        if self.router is not None:
            dense, mixed = mixed, self._beside(ops, middle, mixed)
            ops.drop(dense)
        out = self._added(ops, middle, mixed, "post_feedforward_layernorm")
        ops.drop(middle)
        if self.inputs is not None:
            mixed, plain = self.inputs(ops, out), out
            out = self._added(ops, plain, mixed, "post_per_layer_input_norm")
            ops.drop(plain)
        return ops.times_in_place(out)

    def _through(self, ops: Operators, x: Tensor, name: str, part: Forward) -> Tensor:
        given = ops.norm("rms_shifted", name, x)
        out = part(ops, given)
        ops.drop(given)
        return out

    def _added(self, ops: Operators, x: Tensor, added: Tensor, name: str) -> Tensor:
        normed = ops.norm("rms_shifted", name, added)
        ops.drop(added)
        ops.scope("residual")
        out = ops.add(x, normed)
        ops.drop(normed)
        return out

    def _beside(self, ops: Operators, x: Tensor, dense: Tensor) -> Tensor:
        """The MLP's and the experts' results, each normed, added up."""
        assert self.router is not None
        first = ops.norm("rms_shifted", "post_feedforward_layernorm_1", dense)
        probabilities, weights, places = self.router(ops, x)
        ops.keep(probabilities, weights, places)
        given = ops.norm("rms_shifted", "pre_feedforward_layernorm_2", x)
        routed = ops.experts("experts", given, places, weights, "gelu")
        ops.drop(given)
        second = ops.norm("rms_shifted", "post_feedforward_layernorm_2", routed)
        ops.drop(routed)
        ops.keep(first, second)
        return ops.add(first, second)


class Gemma4Router(Struct, frozen=True):
    """The forward of `Gemma4TextRouter`: (probabilities, weights, places of the chosen experts)."""

    chosen: Size

    def __call__(self, ops: Operators, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        normed = ops.norm("l2", "router.norm", x)
        ops.scope("router")
        weighted = ops.weighted("router.scale", normed)
        ops.drop(normed)
        given = ops.times(weighted)
        ops.drop(weighted)
        logits = ops.linear("router.proj", given)
        probabilities = ops.softmax(logits)
        ops.drop(given)
        ops.keep(logits)
        largest, places = ops.largest(probabilities, self.chosen)
        shares = ops.shares(largest, in_place=True)
        ops.drop(largest)
        scales = ops.elements_of("router.per_expert_scale", places)
        weights = ops.multiply(shares, scales)
        ops.drop(shares, scales)
        return probabilities, weights, places


_ATTENDED = "post_attention_layernorm"


def _gemma3n_attention(c: Fields, layer: int) -> list[Weight]:
    return _projections(c, layer, c.count("num_key_value_heads"), c.count("head_dim"), values=True)


def _gemma4_mlp(c: Fields, layer: int) -> list[Weight]:
    double = c.flag("use_double_wide_mlp") and _shares(c, layer)
    width = c.count("intermediate_size") * (2 if double else 1)
    found = list(gated(width=lambda _: axis(width))(c, layer))
    return [*found, *_gemma4_experts(c)] if c.flag("enable_moe_block") else found


def _gemma4_experts(c: Fields) -> list[Weight]:
    number, used = c.count("num_experts"), c.count("top_k_experts")
    names = ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")
    return [
        tensor("router.scale", hidden(c)),
        tensor("router.per_expert_scale", number),
        *linear("router.proj", hidden(c), number),
        *routed(c, "experts", number, used, axis(c.count("moe_intermediate_size"))),
        *(one for name in names for one in norm(name, hidden(c))),
    ]


def _gemma3n_mlp(c: Fields, layer: int) -> list[Weight]:
    """One intermediate size for all layers, or a list."""
    widths = c.get("intermediate_size")
    if not isinstance(widths, list):
        return list(gated()(c, layer))
    found = c.items("intermediate_size", c.count("num_hidden_layers"))
    width: Any = found[layer] if found else 1
    if not isinstance(width, int) or width < 1:
        c.wrong(f"{c.path('intermediate_size')}[{layer}] must be a whole number above 0, not {width!r}")
        width = 1
    return list(gated(width=lambda _: axis(cast(int, width)))(c, layer))


def _layer_input(c: Fields, _: int) -> list[Weight]:
    """A second, narrow embedding of the tokens enters every layer."""
    width = c.count("hidden_size_per_layer_input", 0, 0)
    if not width:
        return []
    return [
        *linear("per_layer_input_gate", hidden(c), width),
        *linear("per_layer_projection", width, hidden(c)),
        *norm("post_per_layer_input_norm", hidden(c)),
    ]


def _layer_embeddings(c: Fields) -> list[Weight]:
    width, layers = c.count("hidden_size_per_layer_input", 0, 0), c.count("num_hidden_layers")
    vocab = c.count("vocab_size_per_layer_input")
    if not width:
        return []
    return [
        tensor("embed_tokens_per_layer.weight", axis(vocab, kind="vocab"), layers * width),
        *linear("per_layer_model_projection", hidden(c), layers * width),
        *norm("per_layer_projection_norm", width),
    ]


def _altup(c: Fields, layer: int) -> list[Weight]:
    """Gemma 3n: several streams of hidden states, mixed by learned coefficients, and a low-rank residual."""
    streams, rank = c.count("altup_num_inputs"), c.count("laurel_rank")
    return [
        tensor("altup.correct_output_scale", hidden(c)),
        *linear("altup.correction_coefs", streams, streams),
        *linear("altup.prediction_coefs", streams, streams**2),
        *linear("altup.modality_router", hidden(c), streams),
        *norm("altup.router_norm", hidden(c)),
        *linear("laurel.linear_left", hidden(c), rank),
        *linear("laurel.linear_right", rank, hidden(c)),
        *norm("laurel.post_laurel_norm", hidden(c)),
        *_layer_input(c, layer),
    ]


class _Gemma(Decoder, frozen=True):
    """The embeddings of the layers stand beside that of the tokens."""

    def embedding(self, c: Fields) -> list[Weight]:
        return [*super().embedding(c), *_layer_embeddings(c)]


class _Gemma3n(_Gemma, frozen=True):
    def embedding(self, c: Fields) -> list[Weight]:
        streams = c.count("altup_num_inputs")
        names = ("altup_projections", "altup_unembed_projections")
        mixed = [linear(f"{name}.{i}", hidden(c), hidden(c)) for name in names for i in range(streams - 1)]
        return [*super().embedding(c), *(one for pair in mixed for one in pair)]


class _Gemma4(_Gemma, frozen=True):
    """Sliding layers have tables of positions as wide as their heads, full ones of theirs."""

    def layer(self, c: Fields, layer: int) -> Forward | None:
        attention = _gemma4_attends(c, layer)
        mlp = Gated("mlp", "gate_proj up_proj down_proj", "", c.word("hidden_activation", "gelu_pytorch_tanh"))
        router = Gemma4Router(c.count("top_k_experts")) if c.flag("enable_moe_block") else None
        inputs = LayerInput(c.count("hidden_size_per_layer_input", 0, 0), c.count("num_hidden_layers"), mlp.activation)
        return Gemma4Layer(attention, mlp, router, inputs if inputs.width else None, _shares(c, layer))

    def ends(self, c: Fields) -> Ends:
        full = [_full(c, layer, 6) for layer in range(c.count("num_hidden_layers"))]
        widths = [c.count("global_head_dim", 512)] * any(full) + [c.count("head_dim")] * (not all(full))
        inputs = c.count("hidden_size_per_layer_input", 0, 0)
        return structs.replace(super().ends(c), rotary=sum(widths), layer_inputs=inputs)


GEMMA4 = _Gemma4(
    _gemma4_attention,
    _gemma4_mlp,
    norms=SANDWICH,
    more=_layer_input,
    norm="rms_shifted",
    scales="module",
    rotary=None,
    logits=capped_logits,
)
GEMMA3N = _Gemma3n(_gemma3n_attention, _gemma3n_mlp, norms=SANDWICH, more=_altup)

TYPES = {
    "gemma4": Multimodal(GEMMA4, gemma4_towers, own_cache=False),
    "gemma3n": Multimodal(GEMMA3N, gemma3n_towers),
}
