"""Bytes of whole models: by hand, on ranks, as tensors that an allocator sees, and beside logs of engines."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from vramcast.catalog.models import model_config, model_names
from vramcast.models.describe import build_layout
from vramcast.models.layout import Layout
from vramcast.models.place import VOCAB_MULTIPLE, Cut, held_by
from vramcast.models.quant.extras import absorbed, extras, rope_tables, workspaces
from vramcast.models.quant.loadtime import load_time
from vramcast.models.quant.quantisation import Quantisation
from vramcast.models.quant.read import read_quantisation
from vramcast.models.stored import allocations, stored, tensors
from vramcast.num import Named
from vramcast.units import GIB, MIB

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
FP8 = {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"], "config_groups": {
    "a": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}}  # fmt: skip
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def _model(name: str, section: dict[str, Any] | None = None) -> tuple[Layout, Quantisation | None, dict[str, Any]]:
    row = model_config(name)
    config = {**row.config, **({"quantization_config": section} if section else {})}
    return build_layout(row.id, config, row.where), read_quantisation(config, row.where), config


@pytest.mark.parametrize("name", model_names()[::7])
def test_without_quantisation_it_is_the_parameters(name: str) -> None:
    row = model_config(name)
    if row.params is None:
        return
    layout = build_layout(row.id, row.config, row.where)
    found = stored(layout, None, "bf16")
    assert found.bytes == 2 * row.params
    assert found.modules == {module: 2 * size for module, size in layout.modules().items()}
    assert found.bits() == 16
    assert sum(block.bytes for block in found.blocks) == sum(found.parts.values()) == found.bytes


def test_gptq_by_hand() -> None:
    """Llama-3.1-8B: 6,979,321,856 weights in 32 layers of q, o: 4096², k, v: 1024 × 4096, MLP: 3 × 14336 × 4096.

    Words: half a byte. Scales: fp16 for 128. Zero points: half a byte for 128. Index: int32 for each input, which are
    4096 of six layers and 14336 of one. The rest, 1,050,939,392 parameters, is bf16.
    """
    layout, found, _ = _model(LLAMA, GPTQ)
    weights = 32 * (2 * 4096**2 + 2 * 1024 * 4096 + 3 * 14336 * 4096)
    assert weights == 6_979_321_856
    rest = 8_030_261_248 - weights
    result = stored(layout, found, "bf16")
    assert result.parts == {
        "bf16": 2 * rest,
        "packed": weights // 2,
        "scales": weights // 128 * 2,
        "zeros": weights // 128 // 2,
        "group_index": 32 * 4 * (6 * 4096 + 14336),
    }
    assert result.formats["mlp"] == ("int4 g128",)
    # Marlin keeps words and scales: 4 + 16 ÷ 128 bits.
    engine = stored(layout, found, "bf16", holder="vllm")
    assert engine.bytes == 2 * rest + weights // 2 + weights // 64
    assert engine.bits("mlp") == 4 + Fraction(16, 128)
    assert engine.bits("norms") == 16


def test_gpt_oss_checkpoint() -> None:
    """gpt-oss-20b: 24 layers of 32 experts: 3 × 2880² weights of half a byte and a byte for 32; the rest is bf16."""
    layout, found, _ = _model("openai/gpt-oss-20b")
    weights = 24 * 32 * 3 * 2880**2
    result = stored(layout, found, "bf16")
    assert result.parts == {
        "bf16": 2 * (layout.params - weights), "packed": weights // 2, "scales": weights // 32,
    }  # fmt: skip
    assert result.bytes == 13_761_264_768
    # Marlin: hidden 2880 → 3072, intermediate 2880 → 2944, biases with them.
    padded = 24 * 32 * 3 * 2944 * 3072
    biases = 24 * 32 * (2 * 2944 + 3072 - 3 * 2880)
    engine = stored(layout, found, "bf16", holder="vllm")
    assert engine.bytes == 2 * (layout.params - weights + biases) + padded // 2 + padded // 32


def test_files_hold_gate_and_up_apart() -> None:
    """Blocks of 128 × 128: an intermediate size of 1408 = 11 × 128 is 11 rows of scales each, and 22 together."""
    layout, _, _ = _model("deepseek-ai/DeepSeek-V2-Lite")
    found = load_time("fp8_block")
    for holder in ("checkpoint", "transformers"):
        parts = {tensor.name: tensor.parts for block in layout.blocks
                 for tensor in tensors(block, found, "bf16", holder=holder)}  # fmt: skip
        assert parts["model.layers.1.mlp.experts.gate_up_proj"]["scales"] == 64 * 22 * 16 * 4


@pytest.mark.parametrize("section", [None, GPTQ, AWQ, FP8])
@pytest.mark.parametrize("tp", [2, 4, 8])
def test_ranks_hold_the_whole(section: dict[str, Any] | None, tp: int) -> None:
    """What is cut adds up: 8 key heads, widths that divide, so only what every rank holds is there more than once."""
    layout, found, _ = _model(LLAMA, section)
    whole, rank = stored(layout, found, "bf16", holder="vllm"), stored(layout, found, "bf16", Cut(tp=tp), 0, "vllm")
    for part in ("packed", "zeros"):
        if part in whole.parts:
            assert tp * rank.parts[part] == whole.parts[part]
    repeated = tp * rank.bytes - whole.bytes
    norms = (tp - 1) * 2 * 65 * 4096
    rows = 32 * (4096 + 4096)  # outputs of the two row-parallel layers, whose channel scales are on each rank
    assert repeated == norms + ((tp - 1) * 4 * rows if section is FP8 else 0)


def test_more_ranks_than_key_heads() -> None:
    """Qwen2.5-7B has 4 key heads: with 8 ranks each holds one, so keys and values are there twice."""
    layout, found, _ = _model("Qwen/Qwen2.5-7B", AWQ)
    four, eight = (stored(layout, found, "bf16", Cut(tp=tp), 0, "vllm") for tp in (4, 8))
    keys = 28 * 2 * 128 * 3584
    attention = 28 * (2 * 3584 * 3584) + 4 * keys
    assert 4 * four.parts["packed"] == (attention + 28 * 3 * 18944 * 3584) // 2
    # 28 query heads do not divide by 8: a rank has 4 of 32.
    queries = 28 * 2 * 4 * 128 * 3584
    assert eight.parts["packed"] == (queries + keys + 28 * 3 * 18944 * 3584 // 8) // 2


def test_pipeline_stages() -> None:
    layout, found, _ = _model(LLAMA, GPTQ)
    stages = [stored(layout, found, "bf16", Cut(pp=4), stage, "vllm") for stage in range(4)]
    assert sum(stage.bytes for stage in stages) == stored(layout, found, "bf16", holder="vllm").bytes
    assert [block.count for block in stages[1].blocks] == [8]


def test_layers_that_a_list_keeps_are_told_apart() -> None:
    section = {**AWQ, "modules_to_not_convert": ["model.layers.0", "model.layers.31"]}
    layout, found, _ = _model(LLAMA, section)
    whole, some = stored(layout, None, "bf16"), stored(layout, found, "bf16")
    layer = 2 * 4096**2 + 2 * 1024 * 4096 + 3 * 14336 * 4096
    assert whole.bytes - some.bytes == 30 * (2 * layer - layer // 2 - layer // 64 - layer // 256)
    first, inner = (stored(layout, found, "bf16", Cut(pp=16), stage) for stage in (0, 1))
    assert first.parts["packed"] * 2 == inner.parts["packed"]


def test_the_tensors_in_memory_add_up() -> None:
    layout, found, _ = _model(LLAMA, GPTQ)
    for holder in ("checkpoint", "transformers", "vllm"):
        sizes = allocations(layout, found, "bf16", holder=holder)
        assert sum(sizes) == stored(layout, found, "bf16", holder=holder).bytes
    fused = allocations(layout, None, "bf16", holder="vllm")
    assert fused.count(2 * 6144 * 4096) == fused.count(2 * 2 * 14336 * 4096) == 32
    assert fused[0] == fused[-1] == 2 * 128256 * 4096


def test_it_is_a_formula_over_ranks() -> None:
    layout, found, _ = _model(LLAMA, GPTQ)
    named = stored(layout, found, "bf16", Cut(tp=Named(4, "tp")), 0, "vllm")
    assert isinstance(named.bytes, Named)
    assert int(named.bytes) == stored(layout, found, "bf16", Cut(tp=4), 0, "vllm").bytes


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B-Instruct", "deepseek-ai/DeepSeek-V3"])
def test_held_by_agrees(name: str) -> None:
    layout, _, _ = _model(name)
    cut = Cut(tp=4, etp=4, pp=2, vocab_multiple=VOCAB_MULTIPLE)
    for stage in (0, 1):
        assert stored(layout, None, "bf16", cut, stage, "vllm").bytes == 2 * held_by(layout, cut, stage)


def test_rope_tables() -> None:
    """Positions × rotary width × bytes. Gemma 3 has two ropes, one of them eight times as long."""
    _, _, llama = _model(LLAMA)
    assert rope_tables(llama, "llama", 2) == 131072 * 128 * 2
    assert rope_tables(llama, "llama", 4) == 131072 * 128 * 4
    _, _, gemma = _model("google/gemma-3-12b-it")
    assert rope_tables(gemma, "gemma3", 2) == 576 * MIB == (8 + 1) * 131072 * 256 * 2
    _, _, lite = _model("deepseek-ai/DeepSeek-V2-Lite")
    assert rope_tables(lite, "deepseek_v2", 2) == 4096 * 40 * 64 * 2
    _, _, gpt2 = _model("facebook/opt-125m")
    assert rope_tables(gpt2, "opt", 2) == 0
    assert rope_tables({"max_position_embeddings": 2048, "head_dim": 80, "partial_rotary_factor": 0.4}, "phi", 2) == (
        2048 * 32 * 2
    )
    assert rope_tables({"max_position_embeddings": 100, "head_dim": 8, "rope_scaling": {"type": "longrope",
                        "original_max_position_embeddings": 10}}, "phi3", 2) == 110 * 8 * 2  # fmt: skip
    nested = {"full": {"rope_type": "default"}, "sliding": {"rope_type": "default"}}
    config = {"max_position_embeddings": 100, "head_dim": 8, "rope_parameters": nested}
    assert rope_tables(config, "x", 2) == 100 * 8 * 2  # equal ropes share a table


def test_absorbed_projections() -> None:
    """DeepSeek-V2-Lite: 27 layers × 16 heads × (128 + 128) × 512 × 2 bytes, over the ranks that share the heads."""
    layout, _, _ = _model("deepseek-ai/DeepSeek-V2-Lite")
    whole = 27 * 16 * 256 * 512 * 2
    assert absorbed(layout, None, 2, Cut()) == whole
    assert absorbed(layout, None, 2, Cut(), copies=False) == 0
    assert absorbed(layout, load_time("fp8_block"), 2, Cut(tp=2), copies=False) == whole // 2
    assert absorbed(_model(LLAMA)[0], None, 2, Cut()) == 0


def test_workspaces() -> None:
    """Four fused layers in each of 32, an int32 for each of 132 multiprocessors."""
    layout, found, _ = _model(LLAMA, GPTQ)
    assert workspaces(layout, found, Cut(), 0, 132) == 32 * 4 * 132 * 4
    assert workspaces(layout, None, Cut(), 0, 132) == 0


def _engine(name: str, section: dict[str, Any] | None, tp: int = 1, dtype: str = "bf16") -> int:
    layout, found, config = _model(name, section)
    cut = Cut(tp=tp, etp=tp, vocab_multiple=VOCAB_MULTIPLE)
    more = extras(config, layout, found, 4 if dtype == "fp32" else 2, cut, multiprocessors=132)
    return _rounded(allocations(layout, found, dtype, cut, 0, "vllm")) + sum(map(int, more.values()))


def _rounded(sizes: list[int]) -> int:
    """With the ends of segments of 2 MiB that the caching allocator does not split off (1 MiB or less)."""
    ends = [-size % (2 * MIB) if size >= 10 * MIB else 0 for size in sizes]
    return sum(sizes) + sum(end for end in ends if end <= MIB)


@pytest.mark.parametrize(
    ("name", "section", "tp", "dtype", "logged"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", None, 1, "bf16", 14.99),
        ("meta-llama/Llama-3.1-8B-Instruct", None, 1, "fp32", 29.98),
        ("meta-llama/Llama-3.1-8B-Instruct", None, 4, "bf16", 3.77),
        ("meta-llama/Llama-3.1-8B-Instruct", FP8, 1, "bf16", 8.49),
        ("meta-llama/Llama-3.3-70B-Instruct", FP8, 4, "bf16", 16.96),
        ("Qwen/Qwen2.5-7B-Instruct", None, 1, "bf16", 14.25),
        ("Qwen/Qwen2.5-7B-Instruct", FP8, 1, "bf16", 8.14),
        ("Qwen/Qwen2.5-72B-Instruct", None, 2, "bf16", 67.80),
        ("Qwen/Qwen3-30B-A3B", None, 1, "bf16", 56.88),
        ("google/gemma-2-2b-it", None, 1, "bf16", 4.90),
        ("google/gemma-3-12b-it", None, 1, "bf16", 23.31),
        ("google/gemma-3-27b-it", None, 1, "bf16", 51.45),
        ("microsoft/phi-4", None, 1, "bf16", 27.39),
        ("deepseek-ai/DeepSeek-V2-Lite", None, 1, "bf16", 29.43),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", None, 2, "bf16", 43.51),
    ],
)
def test_what_vllm_0_19_logs(name: str, section: dict[str, Any] | None, tp: int, dtype: str, logged: float) -> None:
    """GiB of weights on an H100, to the two digits of the log and what fragments hold (0.1 %)."""
    assert _engine(name, section, tp, dtype) / GIB == pytest.approx(logged, rel=1e-3)
