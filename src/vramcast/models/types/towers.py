"""Vision towers and projectors. Attention and MLPs of a tower are cut by tensor parallelism as the language model's are
(vLLM 0.11 `models/clip.py`, `siglip.py`, `pixtral.py`, `qwen2_vl.py`); embeddings and projectors are whole everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, cast

from msgspec import structs

from vramcast.models.fields import Fields
from vramcast.models.grouped_query import GroupedQuery
from vramcast.models.layout import Blocks, Sight, Weight, axis
from vramcast.models.ops import Forward, Heads
from vramcast.models.parts import Plain, Weights, linear, norm, single, stack, tensor
from vramcast.models.sight import Normed, Patches, Pool, Projector
from vramcast.models.types.decoder import Layer
from vramcast.num import Size, whole


def first(c: Fields, *names: str) -> Size:
    """A size that configs spell in several ways; the last name is transformers'."""
    for name in names[:-1]:
        if c.given(name) is not None:
            return c.count(name)
    return c.count(names[-1])


def apart(at: str, width: Size, bias: bool, out: str = "out_proj", inner: Size = 0) -> list[Weight]:
    """q, k, v and output, all as wide as the tower (or `inner`)."""
    heads = axis(inner or width)
    found = [one for name in ("q_proj", "k_proj", "v_proj") for one in linear(f"{at}.{name}", width, heads, bias)]
    return [*found, *linear(f"{at}.{out}", heads, width, bias)]


def two(names: str, width: Size, middle: Size, bias: bool = True) -> list[Weight]:
    up, down = names.split()
    return [*linear(up, width, axis(middle), bias), *linear(down, axis(middle), width, bias)]


def scales(names: str, width: Size, bias: bool) -> list[Weight]:
    return [one for name in names.split() for one in norm(name, width, bias)]


def encoder(attention: str, out: str, mlp: str, norms: str, bias: bool = True) -> Weights:
    """An encoder layer of CLIP, SigLIP and their kin."""

    def part(v: Fields, _: int) -> list[Weight]:
        width, middle = v.count("hidden_size"), v.count("intermediate_size")
        return [
            *apart(attention, width, bias, out),
            *two(mlp, width, middle),
            *scales(norms, width, True),
        ]

    return part


def _clip_layer(activation: str) -> Callable[[Fields, int], Forward]:
    """The forward of `CLIPEncoderLayer` and `SiglipEncoderLayer`; `activation` where the config names none."""

    def forward(v: Fields, _: int) -> Forward:
        count, width = v.count("num_attention_heads"), v.count("hidden_size")
        heads = Heads(count, count, whole(width, count), whole(width, count))
        attention = GroupedQuery("self_attn", "out_proj", heads, rotates=False)
        mlp = Plain("mlp.fc1 mlp.fc2", v.word("hidden_act", activation))
        return Layer(attention, mlp, "pre", ("layer_norm1", "layer_norm2"), "layer")

    return forward


_CLIP = encoder("self_attn", "out_proj", "mlp.fc1 mlp.fc2", "layer_norm1 layer_norm2")
_NORMS = "input_layernorm post_attention_layernorm"


def _patches(v: Fields, name: str, *, bias: bool, time: bool = False) -> list[Weight]:
    """The convolution that turns patches of pixels into tokens."""
    side, width = v.count("patch_size"), v.count("hidden_size")
    channels = first(v, "in_chans", "in_channels", "num_channels") if time else v.count("num_channels")
    depth = [v.count("temporal_patch_size")] if time else []
    found = [tensor(f"{name}.weight", width, channels, *depth, side, side)]
    return [*found, tensor(f"{name}.bias", width)] if bias else found


def _tiles(v: Fields) -> Size:
    """Patches of an image."""
    return (v.count("image_size") // v.count("patch_size")) ** 2


def siglip(c: Fields, text: Size) -> list[Blocks]:
    """Gemma 3: SigLIP and a projection matrix."""
    v, at = c.sub("vision_config", "siglip_vision_model"), "model.vision_tower"
    width = v.count("hidden_size")
    if v.flag("vision_use_head"):
        v.wrong(f"{v.path('vision_use_head')} = true is not known")
    embed = [
        *_patches(v, "embeddings.patch_embedding", bias=True),
        tensor("embeddings.position_embedding.weight", _tiles(v), width),
    ]
    projector = [tensor("mm_input_projection_weight", width, text), *norm("mm_soft_emb_norm", width)]
    layers, patches = v.count("num_hidden_layers"), whole(_tiles(v), c.count("mm_tokens_per_image", 256))
    return [
        *single("vision embedding", at, embed, Patches("embeddings.patch_embedding", "embeddings.position_embedding")),
        *stack(v, "vision layer", f"{at}.encoder.layers", layers, _CLIP, forward=_clip_layer("gelu_pytorch_tanh")),
        *single("vision norm", at, norm("post_layernorm", width, True), Normed("post_layernorm")),
        *single("projector", "model.multi_modal_projector", projector, Pool(patches)),
    ]


def siglip_sight(c: Fields) -> Sight:
    """Images of one size, some hundred tokens each."""
    v, tokens = c.sub("vision_config", "siglip_vision_model"), c.count("mm_tokens_per_image", 256)
    return Sight(width=v.count("hidden_size"), patches=whole(_tiles(v), tokens), pixels=_pixels(v), image=tokens)


def _pixels(v: Fields) -> Size:
    return v.count("num_channels") * v.count("patch_size") ** 2


def _levels(c: Fields) -> int:
    """How many layers of the tower the projector reads."""
    layers = c.get("vision_feature_layer")
    return len(cast("list[Any]", layers)) if isinstance(layers, list) else 1


def clip(c: Fields, text: Size) -> list[Blocks]:
    """LLaVA: CLIP and a projector of two layers."""
    v, at = c.sub("vision_config", "clip_vision_model"), "model.vision_tower"
    width, bias = v.count("hidden_size"), c.flag("multimodal_projector_bias")
    levels = _levels(c)
    embed = [
        tensor("embeddings.class_embedding", width),
        *_patches(v, "embeddings.patch_embedding", bias=False),
        tensor("embeddings.position_embedding.weight", _tiles(v) + 1, width),
        *norm("pre_layrnorm", width, True),
    ]
    projector = [*linear("linear_1", width * levels, text, bias), *linear("linear_2", text, text, bias)]
    layers, read = v.count("num_hidden_layers"), _read_layers(c, v)
    front = Patches("embeddings.patch_embedding", "embeddings.position_embedding", extra=True, norm="pre_layrnorm")
    places = f"{at}.encoder.layers"
    found = stack(v, "vision layer", places, layers, _CLIP, forward=_clip_layer("quick_gelu"))
    merges = Projector("linear_1 linear_2", c.word("projector_hidden_act", "gelu"))
    return [
        *single("vision embedding", at, embed, front),
        *(part for block in found for part in _cut_behind(block, read)),
        *_unread(single("vision norm", at, norm("post_layernorm", width, True))),
        *single("projector", "model.multi_modal_projector", projector, merges),
    ]


def _cut_behind(block: Blocks, read: int) -> list[Blocks]:
    """Layers that the projector reads, and those behind them, which learn nothing."""
    before, behind = (tuple(place for place in block.layers if (place >= read) is late) for late in (False, True))
    parts = [structs.replace(block, layers=before)] if before else []
    return [*parts, *(_unread([structs.replace(block, layers=behind)]) if behind else [])]


def _unread(blocks: list[Blocks]) -> list[Blocks]:
    return [structs.replace(block, needs="images, unread") for block in blocks]


def _read_layers(c: Fields, v: Fields) -> int:
    """Layers up to the last one that the projector reads: `vision_feature_layer` counts from the end."""
    chosen, layers = c.get("vision_feature_layer"), int(v.count("num_hidden_layers"))
    places = cast("list[Any]", chosen) if isinstance(chosen, list) else [chosen]
    counted = [place for place in places if isinstance(place, int)] or [-2]
    return max(place if place >= 0 else layers + 1 + place for place in counted)


def clip_sight(c: Fields) -> Sight | None:
    """Images of one size: a token for each patch, and one for the class where the strategy is "full"."""
    v = c.sub("vision_config", "clip_vision_model")
    if _levels(c) > 1 or c.word("vision_feature_select_strategy", "default") != "default":
        return None
    return Sight(width=v.count("hidden_size"), patches=1, pixels=_pixels(v), image=_tiles(v), extra=1, listed=True)


def _pixtral_layer(v: Fields, _: int) -> list[Weight]:
    width, middle = v.count("hidden_size"), axis(v.count("intermediate_size"))
    return [
        *apart("attention", width, False, "o_proj", v.count("num_attention_heads") * v.count("head_dim", 0)),
        *linear("feed_forward.gate_proj", width, middle),
        *linear("feed_forward.up_proj", width, middle),
        *linear("feed_forward.down_proj", middle, width),
        *scales("attention_norm ffn_norm", width, False),
    ]


def pixtral(c: Fields, text: Size) -> list[Blocks]:
    """Mistral 3: Pixtral, neighbouring patches merged, a projector of two layers."""
    v, at = c.sub("vision_config", "pixtral"), "model.vision_tower"
    width, merge = v.count("hidden_size"), c.count("spatial_merge_size")
    bias = c.flag("multimodal_projector_bias")
    projector = [
        *norm("norm", width),
        *linear("patch_merger.merging_layer", width * merge**2, width),
        *linear("linear_1", width * _levels(c), text, bias),
        *linear("linear_2", text, text, bias),
    ]
    return [
        *single("vision embedding", at, [*_patches(v, "patch_conv", bias=False), *norm("ln_pre", width)]),
        *stack(v, "vision layer", f"{at}.transformer.layers", v.count("num_hidden_layers"), _pixtral_layer),
        *single("projector", "model.multi_modal_projector", projector),
    ]


def minimax(c: Fields, text: Size) -> list[Blocks]:
    """MiniMax M3: CLIP's layers over video patches, two projectors, the second merges patches."""
    v, at = c.sub("vision_config"), "model.vision_tower"
    width, inner = v.count("hidden_size"), c.count("projector_hidden_size", text)
    merge = _merge(v)
    projector = [
        *linear("linear_1", width, inner, True),
        *linear("linear_2", inner, text, True),
        *linear("merge_linear_1", text * merge**2, inner, True),
        *linear("merge_linear_2", inner, text, True),
    ]
    return [
        *single("vision embedding", at, [
            *_patches(v, "embeddings.proj", bias=False, time=True), *norm("pre_layrnorm", width, True)
        ]),
        *stack(v, "vision layer", f"{at}.layers", v.count("num_hidden_layers"), _CLIP),
        *single("projector", "model.multi_modal_projector", projector),
    ]  # fmt: skip


def _merge(v: Fields) -> Size:
    nested = v.sub("img_token_compression_config")
    nested.count("temporal_patch_size", 1)
    if nested.config:
        return nested.count("spatial_merge_size")
    return v.count("spatial_merge_size")


def llama4(c: Fields, text: Size) -> list[Blocks]:
    """Llama 4: patches as a linear layer, pixels shuffled together, an adapter and a projector."""
    v, at = c.sub("vision_config"), "vision_model"
    width, side = v.count("hidden_size"), v.count("patch_size")
    ratio = v.get("pixel_shuffle_ratio")
    shuffled = round(width / ratio**2) if isinstance(ratio, float) and ratio > 0 else width
    if shuffled != v.count("intermediate_size"):
        v.wrong(f"{v.path('intermediate_size')} must be hidden_size ÷ pixel_shuffle_ratio² = {shuffled}")
    out = v.count("projector_output_dim")
    embed = [
        tensor("class_embedding", width),
        tensor("positional_embedding_vlm", _tiles(v) + 1, width),
        *linear("patch_embedding.linear", v.count("num_channels") * side**2, width),
        *scales("layernorm_pre layernorm_post", width, True),
        *linear("vision_adapter.mlp.fc1", v.count("intermediate_size"), v.count("projector_input_dim")),
        *linear("vision_adapter.mlp.fc2", out, out),
    ]
    layer = encoder("self_attn", "o_proj", "mlp.fc1 mlp.fc2", _NORMS)
    return [
        *single("vision embedding", at, embed),
        *stack(v, "vision layer", f"{at}.model.layers", v.count("num_hidden_layers"), layer),
        *single("projector", "multi_modal_projector", linear("linear_1", v.count("vision_output_dim"), text)),
    ]


def _mllama_gates(_: Fields, __: int) -> list[Weight]:
    return [tensor("gate_attn", 1), tensor("gate_ffn", 1)]


def _mllama_layer(v: Fields, _: int) -> list[Weight]:
    width, middle = v.count("hidden_size"), v.count("intermediate_size")
    return [
        *apart("self_attn", width, False, "o_proj"),
        *two("mlp.fc1 mlp.fc2", width, middle),
        *scales(_NORMS, width, True),
    ]


def mllama(c: Fields, text: Size) -> list[Blocks]:
    """Llama 3.2 Vision: local and global layers over tiles, embeddings for every arrangement of tiles."""
    v, at = c.sub("vision_config"), "model.vision_model"
    width, tokens, tiles = v.count("hidden_size"), _tiles(v) + 1, v.count("max_num_tiles")
    ratios, levels = v.get("supported_aspect_ratios"), v.get("intermediate_layers_indices")
    arrangements = len(ratios) + 1 if isinstance(ratios, list) else 9  # pyright: ignore[reportUnknownArgumentType]
    kept = len(levels) + 1 if isinstance(levels, list) else 6  # pyright: ignore[reportUnknownArgumentType]
    if v.count("vision_output_dim") != width * kept:
        v.wrong(f"{v.path('vision_output_dim')} must be hidden_size × {kept} = {width * kept}")
    embed = [
        tensor("class_embedding", width),
        *_patches(v, "patch_embedding", bias=False),
        tensor("gated_positional_embedding.gate", 1),
        tensor("gated_positional_embedding.embedding", tokens, width),
        tensor("gated_positional_embedding.tile_embedding.weight", arrangements, tiles * tokens * width),
        *scales("layernorm_pre layernorm_post", width, True),
    ]
    for side in ("pre", "post"):
        embed.append(tensor(f"{side}_tile_positional_embedding.gate", 1))
        embed.append(tensor(f"{side}_tile_positional_embedding.embedding.weight", arrangements, tiles * width))
    deep, shallow = v.count("num_global_layers"), v.count("num_hidden_layers")
    return [
        *single("vision embedding", at, embed),
        *stack(v, "vision layer", f"{at}.transformer.layers", shallow, _mllama_layer),
        *stack(v, "vision global layer", f"{at}.global_transformer.layers", deep, _mllama_gates, _mllama_layer),
        *single("projector", "model", linear("multi_modal_projector", v.count("vision_output_dim"), text, True)),
    ]


def _kimi_layer(v: Fields, _: int) -> list[Weight]:
    width = first(v, "vt_hidden_size", "hidden_size")
    return [
        *apart("attn", width, True, "proj"),
        *two("mlp.fc1 mlp.fc2", width, first(v, "vt_intermediate_size", "intermediate_size")),
        *scales("norm1 norm2", width, True),
    ]


def kimi(c: Fields, text: Size) -> list[Blocks]:
    """Kimi K2.5: MoonViT and a projector over merged patches."""
    v, at = c.sub("vision_config"), "model.vision_tower"
    width, side = first(v, "vt_hidden_size", "hidden_size"), v.count("patch_size")
    rows, columns = first(v, "init_pos_emb_height", "pos_emb_height"), first(v, "init_pos_emb_width", "pos_emb_width")
    merged = width * prod(v.numbers("merge_kernel_size", 2))
    embed = [
        tensor("patch_embed.proj.weight", width, 3, side, side),
        tensor("patch_embed.proj.bias", width),
        tensor("patch_embed.pos_emb.position_embeddings", rows, columns, width),
    ]
    projector = [
        *norm("pre_norm", width, True),
        *linear("in_proj", merged, merged, True),
        *linear("out_proj", merged, text, True),
    ]
    layers = first(v, "vt_num_hidden_layers", "num_hidden_layers")
    return [
        *single("vision embedding", at, embed),
        *stack(v, "vision layer", f"{at}.layers", layers, _kimi_layer),
        *single("vision norm", at, norm("final_layernorm", width, True)),
        *single("projector", "model.mm_projector", projector),
    ]
