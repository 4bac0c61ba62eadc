"""Model types by family: which file holds the row of a type."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from vramcast.errors import Mistake, Refused, near

if TYPE_CHECKING:  # `check` imports this file, and needs neither
    from vramcast.models.fields import Fields
    from vramcast.models.layout import Blocks, Ends


class Unknown(Refused):
    """A model type, or a field of one, that no table has: its class may be counted all the same (`counted.py`)."""


class Row(Protocol):
    """A row of a family's table."""

    def blocks(self, c: Fields) -> Iterable[Blocks]: ...
    def ends(self, c: Fields) -> Ends: ...


FAMILIES = {
    "dense": """apertus arcee cohere cohere2 ernie4_5 exaone exaone4 gemma gemma2 gemma3_text glm glm4
        granite helium hunyuan_v1_dense internlm3 iquestcoder jais2 llama mistral olmo olmo2 olmo3 phi3 qwen2 qwen3
        seed_oss smollm3 stablelm starcoder2""",
    "classic": "bloom gpt2 gpt_bigcode gpt_neo gpt_neox gptj mpt opt phi",
    "falcon": "falcon",
    "moe": """dots1 ernie4_5_moe flex_olmo glm4_moe gpt_oss granitemoe hunyuan_v1_moe hy_v3 mimo_v2_flash minimax_m2
        mixtral olmoe phimoe qwen2_moe qwen3_moe sarvam_moe zaya""",
    "mla": "deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 glm4_moe_lite glm_moe_dsa kimi_k2 minicpm3",
    "mamba": "bamba falcon_h1 falcon_mamba granitemoehybrid jamba mamba mamba2 nemotron_h",
    "recurrent": "kimi_linear lfm2 lfm2_moe minimax olmo_hybrid qwen3_next",
    "multimodal": """gemma3 kimi_k25 llama4 llava minimax_m3_vl mistral3 mllama qwen2_5_vl qwen2_vl qwen3_5 qwen3_5_moe
        qwen3_vl qwen3_vl_moe""",
    "gemma": "gemma3n gemma4",
    "remote": "baichuan deepseek internlm internlm2 nemotron-nas phi3small qwen xverse",
}


@cache
def family_of() -> dict[str, str]:
    """model type → the family whose table has its row."""
    return {name: family for family, names in FAMILIES.items() for name in names.split()}


def row_of(model_type: str) -> Row:
    """The table row of a known type."""
    table = import_module(f"vramcast.models.types.{family_of()[model_type]}")
    return table.TYPES[model_type]


def unknown_type(model_type: str, source: str) -> Unknown:
    """The refusal of a type that no table has: it is never taken for another."""
    from vramcast.models.counted import own_code, reading

    context = {
        "from": source,
        "why": "models of this type bring their own code, which is not read" if own_code(model_type) else "",
        "near": "" if reading(model_type) else near(model_type, family_of()),
        "works": reading(model_type),
        "help": "a type is a row of a table: see CONTRIBUTING.md, or open an issue with the config.json",
    }
    fact = f"unknown model type {model_type!r}" if model_type else "the config names no model_type"
    return Unknown([Mistake(fact, **context)])
