"""What Gemma 3n and 4 see and hear with: vision and audio towers and their projections."""

from __future__ import annotations

from vramcast.models.fields import Fields
from vramcast.models.layout import Blocks, Weight
from vramcast.models.parts import linear, norm, single, stack, tensor
from vramcast.models.types.towers import apart, scales
from vramcast.num import Size

MOBILENETS = {"mobilenetv5_300m_enc": 294_126_912}
"""architecture → parameters of the image encoder, which no config field changes (counted in timm 1.0.31)"""
_SANDWICH = "input_layernorm post_attention_layernorm pre_feedforward_layernorm post_feedforward_layernorm"


def _clipped(name: str, inputs: Size, outputs: Size) -> list[Weight]:
    """A linear layer inside a module that may clip its range."""
    return linear(f"{name}.linear", inputs, outputs)


def _gemma4_layer(v: Fields, _: int) -> list[Weight]:
    width, middle, head = v.count("hidden_size"), v.count("intermediate_size"), v.count("head_dim")
    queries = v.count("num_attention_heads") * head
    keys = v.count("num_key_value_heads", v.count("num_attention_heads")) * head
    sides = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
    return [
        *(one for name, side in sides.items() for one in _clipped(f"self_attn.{name}", width, side)),
        *_clipped("self_attn.o_proj", queries, width),
        *scales("self_attn.q_norm self_attn.k_norm", head, False),
        *_clipped("mlp.gate_proj", width, middle),
        *_clipped("mlp.up_proj", width, middle),
        *_clipped("mlp.down_proj", middle, width),
        *scales(_SANDWICH, width, False),
    ]


def gemma4_towers(c: Fields, text: Size) -> list[Blocks]:
    """Gemma 4: vision where the config has it, audio where the config has it."""
    found: list[Blocks] = []
    if c.given("vision_config") is not None:
        v, at = c.sub("vision_config"), "model.vision_tower"
        width = v.count("hidden_size")
        embed = [
            tensor("position_embedding_table", 2, v.count("position_embedding_size"), width),
            *linear("input_proj", 3 * v.count("patch_size") ** 2, width),
        ]
        found += [
            *single("vision embedding", f"{at}.patch_embedder", embed),
            *stack(v, "vision layer", f"{at}.encoder.layers", v.count("num_hidden_layers"), _gemma4_layer),
            *single("projector", "model.embed_vision", linear("embedding_projection", width, text)),
        ]
    if c.given("audio_config") is not None:
        found += _gemma4_audio(c, text)
    return found


def _conformer(width: Size, kernel: Size, names: str) -> list[Weight]:
    """Feed-forward before and after, and a short convolution, of a conformer layer."""
    found: list[Weight] = []
    for name in names.split():
        for layer, sizes in (("ffw_layer_1", (width, 4 * width)), ("ffw_layer_2", (4 * width, width))):
            found += linear(f"{name}.{layer}", *sizes)
        found += scales(f"{name}.pre_layer_norm {name}.post_layer_norm", width, False)
    return [
        *found,
        *linear("lconv1d.linear_start", width, 2 * width),
        *linear("lconv1d.linear_end", width, width),
        tensor("lconv1d.depthwise_conv1d.weight", width, 1, kernel),
        *scales("lconv1d.pre_layer_norm lconv1d.conv_norm", width, False),
    ]


def _inside(weights: list[Weight]) -> list[Weight]:
    """Gemma 4 wraps its linear layers."""
    return [
        Weight(weight.name.replace(".weight", ".linear.weight"), weight.axes)
        if any(part in weight.name for part in ("ffw_layer", "linear_start", "linear_end"))
        else weight
        for weight in weights
    ]


def _gemma4_audio(c: Fields, text: Size) -> list[Blocks]:
    a, at = c.sub("audio_config"), "model.audio_tower"
    width, out = a.count("hidden_size"), a.count("output_proj_dims")
    head = width // a.count("num_attention_heads")
    channels = a.numbers("subsampling_conv_channels", 2)
    squeeze = [
        tensor("layer0.conv.weight", channels[0], 1, 3, 3),
        *norm("layer0.norm", channels[0]),
        tensor("layer1.conv.weight", channels[1], channels[0], 3, 3),
        *norm("layer1.norm", channels[1]),
        *linear("input_proj_linear", channels[0] // 4 * channels[1], width),
    ]

    def layer(_: Fields, __: int) -> list[Weight]:
        attention = [
            one
            for name in ("q_proj", "k_proj", "v_proj", "post")
            for one in _clipped(f"self_attn.{name}", width, width)
        ]
        return [
            *_inside(_conformer(width, a.count("conv_kernel_size"), "feed_forward1 feed_forward2")),
            *attention,
            *linear("self_attn.relative_k_proj", width, width),
            tensor("self_attn.per_dim_scale", head),
            *scales("norm_pre_attn norm_post_attn norm_out", width, False),
        ]

    return [
        *single("audio embedding", f"{at}.subsample_conv_projection", squeeze),
        *stack(a, "audio layer", f"{at}.layers", a.count("num_hidden_layers"), layer),
        *single("audio output", at, linear("output_proj", width, out, True)),
        *single("audio projector", "model.embed_audio", linear("embedding_projection", out, text)),
    ]


def gemma3n_towers(c: Fields, text: Size) -> list[Blocks]:
    """Gemma 3n: a fixed image encoder, a conformer for sound, an embedder with a small vocabulary for each."""
    v, a = c.sub("vision_config"), c.sub("audio_config")
    architecture = v.choice("architecture", MOBILENETS)
    encoder = tensor(f"timm_model.{architecture}", MOBILENETS[architecture])
    return [
        *single("vision encoder", "model.vision_tower", [encoder]),
        *_gemma3n_audio(a),
        *single("projector", "model.embed_vision", _embedder(v, text)),
        *single("audio projector", "model.embed_audio", _embedder(a, text)),
    ]


def _embedder(part: Fields, text: Size) -> list[Weight]:
    width = part.count("hidden_size")
    return [
        tensor("embedding.weight", part.count("vocab_size"), width),
        *scales("hard_embedding_norm soft_embedding_norm", width, False),
        *linear("embedding_projection", width, text),
    ]


def _gemma3n_audio(a: Fields) -> list[Blocks]:
    width, at = a.count("hidden_size"), "model.audio_tower"
    channels = a.numbers("sscp_conv_channel_size", 2)
    kernels, strides = a.pairs("sscp_conv_kernel_size", 2), a.pairs("sscp_conv_stride_size", 2)
    squeeze: list[Weight] = []
    bins, before = a.count("input_feat_size"), 1
    for index in range(2):
        rows, columns = kernels[index]
        squeeze.append(tensor(f"conv_{index}.conv.weight", channels[index], before, rows, columns))
        squeeze += norm(f"conv_{index}.norm", channels[index])
        bins, before = (bins + 2 - columns) // strides[index][1] + 1, channels[index]

    def layer(_: Fields, __: int) -> list[Weight]:
        heads = a.count("conf_num_attention_heads")
        return [
            *_conformer(width, a.count("conf_conv_kernel_size"), "ffw_layer_start ffw_layer_end"),
            *apart("attention.attn", width, False)[:3],
            *linear("attention.attn.relative_position_embedding.pos_proj", width, width),
            tensor("attention.attn.per_dim_scale", width // heads),
            *linear("attention.post", width, width),
            *scales("attention.pre_attn_norm attention.post_norm norm", width, False),
        ]

    squeeze += linear("input_proj_linear", before * bins, width)
    return [
        *single("audio embedding", f"{at}.subsample_conv_projection", squeeze),
        *stack(a, "audio layer", f"{at}.conformer", a.count("conf_num_hidden_layers"), layer),
    ]
