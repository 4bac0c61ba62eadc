"""Models that see: a vision tower, a projector, and a language model of another family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from msgspec import Struct, structs

from vramcast.models.fields import Fields
from vramcast.models.layout import Blocks, Ends, Need, Sight, Weight, axis
from vramcast.models.parts import gated, gqa, hidden, linear, norm
from vramcast.models.types import qwen_vision, towers
from vramcast.models.types.decoder import Decoder
from vramcast.models.types.dense import TYPES as DENSE
from vramcast.models.types.experts import Rule, listed, moe, shared
from vramcast.models.types.llama_vision import LLAMA4, MLLAMA
from vramcast.models.types.mla import TYPES as MLA
from vramcast.models.types.moe import TYPES as MOE
from vramcast.models.types.recurrent import QWEN3_5, QWEN3_5_MOE
from vramcast.num import Size


class Multimodal(Struct, frozen=True):
    """A row: the language model (its own row, or the one that `text_config` names), and the tower."""

    text: Decoder | dict[str, Decoder]
    tower: Callable[[Fields, Size], list[Blocks]]
    prefix: str = "model.language_model"
    head: str = "lm_head"
    tied: str | bool = "tie_word_embeddings"
    text_ties: bool = False
    """`text_config.tie_word_embeddings` alone ties the head too"""
    flat: bool = False
    """older configs spell the language model's fields beside `vision_config`"""
    sight: Callable[[Fields], Sight | None] | None = None
    """what the tower runs on, where its forward is written"""
    own_cache: bool = True
    """the forward of the whole model does not pass on what its configuration says of a cache"""
    both_ways: bool = False
    """tokens of an image see each other"""
    axes: bool = False
    """positions have three axes (M-RoPE), and each sequence its own"""

    def blocks(self, c: Fields) -> list[Blocks]:
        section = c.flat("text_config") if self.flat else self.section(c)
        text = self.text if isinstance(self.text, Decoder) else self.named(c, self.text)
        tied = c.flag(self.tied) or bool(self.text_ties and section.given("tie_word_embeddings"))
        section.given("tie_word_embeddings")
        decoder = text.blocks(section, self.prefix, self.head, tied)
        seen = self.tower(c, section.count("hidden_size"))
        return [*(structs.replace(block, needs=block.needs or _need(block)) for block in seen), *decoder]

    def ends(self, c: Fields) -> Ends:
        """Those of the language model."""
        section = c.flat("text_config") if self.flat else self.section(c)
        text = self.text if isinstance(self.text, Decoder) else self.named(c, self.text)
        sight = self.sight(c) if self.sight else None
        return structs.replace(
            text.ends(section),
            own_positions=self.axes,
            own_cache=self.own_cache,
            both_ways=self.both_ways,
            sight=sight,
        )

    def section(self, c: Fields) -> Fields:
        """The language model's fields, with the defaults of its own type if it is one."""
        return c.sub("text_config", self.text_type(c) if isinstance(self.text, dict) else "")

    def text_type(self, c: Fields) -> str:
        given = c.given("text_config")
        return str(cast("dict[str, Any]", given).get("model_type") or "") if isinstance(given, dict) else ""

    def named(self, c: Fields, known: dict[str, Decoder]) -> Decoder:
        """The row that `text_config.model_type` names."""
        model_type = self.text_type(c)
        if model_type not in known:
            c.wrong(f"text_config.model_type = {model_type!r} is not known", allowed=", ".join(known))
        return known.get(model_type, next(iter(known.values())))


def _need(block: Blocks) -> Need:
    return "sound" if block.name.startswith("audio") else "images"


def _m3_attention(c: Fields, layer: int) -> list[Weight]:
    """MiniMax M3: sparse layers have a small indexer over blocks of keys."""
    found = list(gqa(qk_norm="q_norm k_norm")(c, layer))
    sparse = c.sub("sparse_attention_config")
    layers = c.count("num_hidden_layers")
    kinds, flags = c.items("layer_types", layers), sparse.items("sparse_attention_freq", layers)
    on = kinds[layer] != "full_attention" if kinds else bool(flags and flags[layer])
    count = sparse.count("sparse_num_index_heads") if sparse.config else c.count("index_n_heads")
    width = sparse.count("sparse_index_dim") if sparse.config else c.count("index_head_dim")
    if not on or not (sparse.flag("use_sparse_attention") or not sparse.config):
        return found
    at = "self_attn.indexer"
    return [
        *found,
        *linear(f"{at}.q_proj", hidden(c), axis(count, width)),
        *linear(f"{at}.k_proj", hidden(c), width),
        *norm(f"{at}.q_norm", width),
        *norm(f"{at}.k_norm", width),
    ]


_m3_rule: Rule = listed("mlp_layer_types", listed("moe_layer_freq", lambda _, __: True))
_M3 = Decoder(
    _m3_attention,
    moe(
        "num_local_experts",
        width="intermediate_size",
        shared_part=shared(lambda c: c.count("shared_intermediate_size"), fused="gate_up_proj"),
        sparse=_m3_rule,
        dense=gated(fused="gate_up_proj", width=lambda c: axis(c.count("dense_intermediate_size"))),
    ),
)
_LLAVA = {name: DENSE[name] for name in ("llama", "mistral", "qwen2")}
_KIMI: dict[str, Decoder] = dict.fromkeys(("kimi_k2", "deepseek_v3"), MLA["deepseek_v3"])
"""Transformers has Kimi K2.5 with DeepSeek V3's language model"""
_MISTRAL = {"mistral": DENSE["mistral"], "ministral3": DENSE["mistral"]}

TYPES = {
    "qwen2_vl": Multimodal(DENSE["qwen2"], qwen_vision.qwen2, flat=True, sight=qwen_vision.sight, axes=True),
    "qwen2_5_vl": Multimodal(DENSE["qwen2"], qwen_vision.qwen2_5, flat=True, sight=qwen_vision.sight, axes=True),
    "qwen3_vl": Multimodal(DENSE["qwen3"], qwen_vision.qwen3(deep=True), sight=qwen_vision.sight, axes=True),
    "qwen3_vl_moe": Multimodal(MOE["qwen3_moe"], qwen_vision.qwen3(deep=True), sight=qwen_vision.sight, axes=True),
    "qwen3_5": Multimodal(QWEN3_5, qwen_vision.qwen3(deep=False), axes=True),
    "qwen3_5_moe": Multimodal(QWEN3_5_MOE, qwen_vision.qwen3(deep=False), axes=True),
    "gemma3": Multimodal(DENSE["gemma3_text"], towers.siglip, sight=towers.siglip_sight, both_ways=True),
    "llava": Multimodal(_LLAVA, towers.clip, sight=towers.clip_sight),
    "mistral3": Multimodal(_MISTRAL, towers.pixtral, own_cache=False),
    "kimi_k25": Multimodal(_KIMI, towers.kimi),
    "minimax_m3_vl": Multimodal(_M3, towers.minimax, text_ties=True),
    "mllama": Multimodal(MLLAMA, towers.mllama),
    "llama4": Multimodal(
        LLAMA4,
        towers.llama4,
        tied=False,
        text_ties=True,
        prefix="language_model.model",
        head="language_model.lm_head",
    ),
}
