"""Qwen's vision towers: 2, 2.5 and 3."""

from __future__ import annotations

from collections.abc import Callable

from vramcast.models.fields import Fields
from vramcast.models.layout import Blocks, Sight, Weight, axis
from vramcast.models.ops import Forward, Heads
from vramcast.models.parts import Gated, Plain, Weights, linear, norm, single, stack, tensor
from vramcast.models.sight import Merger, Packed, Patches
from vramcast.models.types.decoder import Layer
from vramcast.models.types.towers import first, scales, two
from vramcast.num import Size, whole

_AT = "model.visual"


def _patch(v: Fields, width: Size, bias: bool) -> list[Weight]:
    side, depth = v.count("patch_size"), v.count("temporal_patch_size")
    found = [tensor("patch_embed.proj.weight", width, first(v, "in_chans", "in_channels"), depth, side, side)]
    return [*found, tensor("patch_embed.proj.bias", width)] if bias else found


def _attention(width: Size) -> list[Weight]:
    heads = axis(width)
    return [*linear("attn.qkv", width, heads + heads + heads, True), *linear("attn.proj", heads, width, True)]


def qwen2(c: Fields, text: Size) -> list[Blocks]:
    """Qwen2-VL: layer norms, plain MLP; `hidden_size` is the output's width."""
    v = c.sub("vision_config")
    width, out = v.count("embed_dim"), v.count("hidden_size")
    middle, merged = width * v.count("mlp_ratio"), width * v.count("spatial_merge_size") ** 2

    def layer(_: Fields, __: int) -> list[Weight]:
        return [*scales("norm1 norm2", width, True), *_attention(width), *two("mlp.fc1 mlp.fc2", width, middle)]

    _out(v, out, text)
    merger = [*norm("ln_q", width, True), *linear("mlp.0", merged, merged, True), *linear("mlp.2", merged, out, True)]
    forward = _layer(v, width, Plain("mlp.fc1 mlp.fc2", v.word("hidden_act", "quick_gelu")), "layer")
    return _tower(v, width, False, layer, merger, forward, Merger("layer", "ln_q", "mlp.0 mlp.2", _merged(v)))


def qwen2_5(c: Fields, text: Size) -> list[Blocks]:
    """Qwen2.5-VL: RMS norms, gated MLP."""
    v = c.sub("vision_config")
    width, middle = v.count("hidden_size"), v.count("intermediate_size")
    merged = width * v.count("spatial_merge_size") ** 2

    def layer(_: Fields, __: int) -> list[Weight]:
        return [
            *scales("norm1 norm2", width, False),
            *_attention(width),
            *linear("mlp.gate_proj", width, axis(middle), True),
            *two("mlp.up_proj mlp.down_proj", width, middle),
        ]

    out = _out(v, v.count("out_hidden_size"), text)
    merger = [*norm("ln_q", width), *linear("mlp.0", merged, merged, True), *linear("mlp.2", merged, out, True)]
    mlp = Gated("mlp", "gate_proj up_proj down_proj", "", v.word("hidden_act", "silu"))
    forward = _layer(v, width, mlp, "rms")
    return _tower(v, width, False, layer, merger, forward, Merger("rms", "ln_q", "mlp.0 mlp.2", _merged(v), sorts=True))


def _merged(v: Fields) -> Size:
    """Patches that make one token."""
    return v.count("spatial_merge_size") ** 2


def _layer(v: Fields, width: Size, mlp: Forward, norm: str) -> Forward:
    count = first(v, "num_attention_heads", "num_heads")
    heads = Heads(count, count, whole(width, count), whole(width, count))
    return Layer(Packed(heads), mlp, "pre", ("norm1", "norm2"), norm)


def sight(c: Fields) -> Sight:
    """Images of any size, in patches of some frames; several patches make a token."""
    v = c.sub("vision_config")
    width = v.count("embed_dim") if v.given("embed_dim") is not None else v.count("hidden_size")
    pixels = first(v, "in_chans", "in_channels") * v.count("temporal_patch_size") * v.count("patch_size") ** 2
    heads = first(v, "num_attention_heads", "num_heads")
    return Sight(width=width, patches=_merged(v), pixels=pixels, rotary=whole(width, heads), listed=True, narrow=True)


def qwen3(deep: bool) -> Callable[[Fields, Size], list[Blocks]]:
    """Qwen3-VL and 3.5: learned positions, and mergers of inner layers (`deep`)."""

    def tower(c: Fields, text: Size) -> list[Blocks]:
        v = c.sub("vision_config")
        width, middle = v.count("hidden_size"), v.count("intermediate_size")
        merged, out = width * v.count("spatial_merge_size") ** 2, _out(v, v.count("out_hidden_size"), text)

        def layer(_: Fields, __: int) -> list[Weight]:
            names = "mlp.linear_fc1 mlp.linear_fc2"
            return [*scales("norm1 norm2", width, True), *_attention(width), *two(names, width, middle)]

        def merger(normed: Size) -> list[Weight]:
            inner = [*linear("linear_fc1", merged, merged, True), *linear("linear_fc2", merged, out, True)]
            return [*norm("norm", normed, True), *inner]

        forward = _layer(v, width, Plain("mlp.linear_fc1 mlp.linear_fc2", v.word("hidden_act", "gelu")), "layer")
        merges = Merger("layer", "norm", "linear_fc1 linear_fc2", _merged(v))
        found = _tower(v, width, True, layer, merger(width), forward, merges)
        levels = v.get("deepstack_visual_indexes")
        if levels and not deep:
            v.wrong(f"{v.path('deepstack_visual_indexes')} = {levels!r} is not known")
        count = len(levels) if deep and isinstance(levels, list) else 0  # pyright: ignore[reportUnknownArgumentType]
        return [
            *found,
            *stack(
                v,
                "deepstack merger",
                f"{_AT}.deepstack_merger_list",
                count,
                lambda _, __: merger(merged),
                forward=lambda _, __: Merger("layer", "norm", "linear_fc1 linear_fc2", _merged(v), first=False),
            ),
        ]

    return tower


def _tower(
    v: Fields, width: Size, learned: bool, layer: Weights, merger: list[Weight],
    forward: Forward | None = None, merges: Merger | None = None,
) -> list[Blocks]:  # fmt: skip
    embed = _patch(v, width, learned)
    if learned:
        embed.append(tensor("pos_embed.weight", v.count("num_position_embeddings"), width))
    sorts = bool(merges and merges.sorts)
    sorts = bool(merges and merges.sorts)
    front = Patches("patch_embed.proj", "pos_embed" if learned else "", 4 * learned, sorts=sorts)
    return [
        *single("vision embedding", _AT, embed, front),
        *stack(v, "vision layer", f"{_AT}.blocks", v.count("depth"), layer, forward=lambda _, __: forward),
        *single("projector", f"{_AT}.merger", merger, merges),
    ]


def _out(v: Fields, out: Size, text: Size) -> Size:
    """The tower ends in the width of the language model."""
    if out != text:
        v.wrong(f"{v.path('out_hidden_size')} = {out} is not the language model's hidden_size = {text}")
    return out
