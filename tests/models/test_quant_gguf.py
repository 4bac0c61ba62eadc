"""GGUF recipes: types tensor by tensor, and sizes beside what llama.cpp prints for public files."""

from __future__ import annotations

from collections import Counter

import pytest

from vramcast.catalog.models import model_config
from vramcast.errors import Refused
from vramcast.models.describe import build_layout
from vramcast.models.layout import Layout
from vramcast.models.quant.gguf import RECIPES, GgufQuantisation, block_format, gguf
from vramcast.models.stored import stored
from vramcast.units import GIB


def _layout(name: str) -> Layout:
    row = model_config(name)
    return build_layout(row.id, row.config, row.where)


def _made(recipe: str, layout: Layout) -> GgufQuantisation:
    found = gguf(recipe, layout)
    assert isinstance(found, GgufQuantisation)
    return found


@pytest.mark.parametrize(
    ("model", "recipe", "gib", "bits"),
    [
        ("Qwen/Qwen3-30B-A3B", "Q4_K_M", 17.28, 4.86),  # ggml-org/llama.cpp#14235: file size
        ("meta-llama/Llama-2-7b-hf", "Q4_K_M", 3.80, 4.84),
        ("meta-llama/Llama-3.1-8B-Instruct", "Q4_K_M", 4.58, 4.89),
    ],
)
def test_sizes_that_llama_cpp_prints(model: str, recipe: str, gib: float, bits: float) -> None:
    layout = _layout(model)
    found = stored(layout, gguf(recipe, layout), layout.dtype)
    assert round(found.bytes / GIB, 2) == gib
    assert round(float(found.bits()), 2) == bits


def test_types_that_llama_cpp_counts() -> None:
    """Qwen3-30B-A3B Q4_K_M, ggml-org/llama.cpp#14235: 241 f32, 289 q4_K, 49 q6_K. Gate and up are apart in a file."""
    layout = _layout("Qwen/Qwen3-30B-A3B")
    types = Counter(form.name for form in _made("Q4_K_M", layout).types.values())
    assert types == {"F32": 241, "Q4_K": 289 - 48, "Q6_K": 49}


def test_all_in_one_type() -> None:
    """Q8_0 of Qwen2.5-0.5B: 34 bytes for 32 of 494,032,768 parameters, but vectors in fp32.

    Vectors: 24 × (2 × 896 + 896 + 2 × 128) + 896 = 71,552, so 493,961,216 × 34 ÷ 32 + 4 × 71,552.
    """
    layout = _layout("Qwen/Qwen2.5-0.5B")
    vectors = 24 * (2 * 896 + 896 + 2 * 128) + 896
    assert stored(layout, gguf("Q8_0", layout), "bf16").bytes == (494_032_768 - vectors) * 34 // 32 + 4 * vectors
    assert stored(layout, gguf("F16", layout), "bf16").bytes == (494_032_768 - vectors) * 2 + 4 * vectors


def test_rows_that_are_no_whole_blocks() -> None:
    """896 is no multiple of 256: Q4_K becomes Q5_0, and Q6_K becomes Q8_0."""
    types = _made("Q4_K_M", _layout("Qwen/Qwen2.5-0.5B")).types
    assert types["model.layers.0.self_attn.q_proj.weight"].name == "Q5_0"
    assert types["model.layers.0.self_attn.v_proj.weight"].name == "Q8_0"
    assert types["model.layers.0.mlp.down_proj.weight"].name == "Q6_K"  # 4864 = 19 × 256
    assert types["model.embed_tokens.weight"].name == "Q8_0"


def test_layers_with_more_bits() -> None:
    """32 layers: the first and last four, and every third between them from the sixth on."""
    types = _made("Q4_K_M", _layout("meta-llama/Llama-2-7b-hf")).types
    better = [layer for layer in range(32) if types[f"model.layers.{layer}.mlp.down_proj.weight"].name == "Q6_K"]
    assert better == [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]
    assert types["lm_head.weight"].name == "Q6_K"
    assert types["model.embed_tokens.weight"].name == "Q4_K"


def test_eight_experts_and_seventy_billion() -> None:
    types = _made("Q4_K_M", _layout("mistralai/Mixtral-8x7B-Instruct-v0.1")).types
    assert types["model.layers.9.self_attn.k_proj.weight"].name == "Q8_0"
    assert types["model.layers.9.self_attn.o_proj.weight"].name == "Q5_K"
    types = _made("Q4_K_M", _layout("meta-llama/Llama-2-70b-hf")).types
    assert types["model.layers.11.self_attn.v_proj.weight"].name == "Q5_K"


def test_recipes_are_ordered() -> None:
    layout = _layout("meta-llama/Llama-2-7b-hf")
    ordered = "Q2_K Q3_K_S Q3_K_M Q3_K_L Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K Q8_0".split()
    sizes = [int(stored(layout, gguf(one, layout), "bf16").bytes) for one in ordered]
    assert sizes == sorted(sizes)
    assert all(stored(layout, gguf(one, layout), "bf16").bytes for one in RECIPES)


def test_refusals() -> None:
    layout = _layout("meta-llama/Llama-2-7b-hf")
    with pytest.raises(Refused, match=r"GGUF recipe 'Q4_K_X' is not known\n  near     Q4_K_"):
        gguf("Q4_K_X", layout)
    with pytest.raises(Refused, match="IQ recipes depend on an importance matrix"):
        gguf("IQ4_XS", layout)
    with pytest.raises(Refused, match="GGUF files of model type deepseek_v3 are not known"):
        gguf("Q4_K_M", _layout("deepseek-ai/DeepSeek-V3"))
    with pytest.raises(Refused, match="GGUF type 'Q9_K' is not known"):
        block_format("Q9_K")
