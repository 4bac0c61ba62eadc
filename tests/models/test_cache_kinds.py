"""What each kind of layer keeps, by hand: every known type, windows, shared keys, latents, states."""

from __future__ import annotations

from typing import Any

import pytest

from vramcast.catalog.models import model_config, model_names
from vramcast.errors import Refused
from vramcast.models.cache.formats import formats
from vramcast.models.cache.kinds import Holder, LayerKind, cache_kinds
from vramcast.models.cache.sizes import bytes_of_sequence, bytes_per_token, layer_bytes, state_per_sequence
from vramcast.models.describe import build_layout
from vramcast.models.place import Cut
from vramcast.models.types import family_of
from vramcast.num import Named


def kinds(name: str, holder: Holder = "transformers", config: dict[str, Any] | None = None, **more: Any):
    """The kinds of a catalogue model, or of an edit of its config."""
    row = model_config(name)
    config = row.config | (config or {})
    layout = build_layout(name, config, row.where)
    return cache_kinds(layout, config, row.where, holder, **more)


def named(found: tuple[LayerKind, ...]) -> dict[str, int]:
    return {kind.name: len(kind.layers) for kind in found}


BF16 = formats(kinds("Qwen/Qwen3-0.6B"), "vllm", "bf16")


def test_every_type_keeps_something_and_every_layer_is_in_one_kind() -> None:
    seen: set[str] = set()
    for name in model_names():
        row = model_config(name)
        if row.config["model_type"] in seen or row.config["model_type"] not in family_of():
            continue
        seen.add(row.config["model_type"])
        layout = build_layout(name, row.config, row.where)
        found = cache_kinds(layout, row.config, row.where)
        layers = sorted(layer for kind in found for layer in kind.layers)
        assert layers == list(range(len(layout.layers()))), name
        assert bytes_of_sequence(found, formats(found, "transformers", "bf16"), 100) > 0, name
    assert len(seen) >= 100


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("meta-llama/Llama-3.1-8B", {"full attention": 32}),
        ("google/gemma-3-12b-it", {"sliding attention": 40, "full attention": 8}),
        ("google/gemma-2-27b-it", {"sliding attention": 23, "full attention": 23}),
        ("CohereLabs/c4ai-command-r7b-12-2024", {"sliding attention": 24, "full attention": 8}),
        ("openai/gpt-oss-20b", {"sliding attention": 12, "full attention": 12}),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", {"chunked attention": 36, "full attention": 12}),
        ("google/gemma-3n-E4B-it", {"sliding attention": 16, "full attention": 4,
                                    "attention on another layer's keys": 15}),
        ("deepseek-ai/DeepSeek-V3.2-Exp", {"sparse latent attention": 61}),
        ("zai-org/GLM-5.2", {"sparse latent attention": 21, "latent attention": 57}),
        ("deepseek-ai/DeepSeek-V4-Flash", {"sliding attention": 2, "compressed sparse attention": 21,
                                           "heavily compressed attention": 20}),
        ("Qwen/Qwen3-Coder-Next", {"gated delta attention": 36, "full attention": 12}),
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", {"kimi delta attention": 20, "latent attention": 7}),
        ("LiquidAI/LFM2-1.2B", {"short convolution": 10, "full attention": 6}),
        ("ibm-ai-platform/Bamba-9B-v1", {"state space": 29, "full attention": 3}),
        ("tiiuae/Falcon-H1-1.5B-Base", {"full attention + state space": 24}),
        ("nvidia/Nemotron-H-8B-Base-8K", {"state space": 24, "no attention": 24, "full attention": 4}),
        ("MiniMaxAI/MiniMax-Text-01-hf", {"lightning attention": 70, "full attention": 10}),
        ("MiniMaxAI/MiniMax-M3", {"full attention": 3, "sparse attention": 57}),
        ("meta-llama/Llama-3.2-11B-Vision-Instruct", {"full attention": 32, "cross attention": 8}),
        ("Zyphra/ZAYA1-base", {"full attention + key convolution": 40}),
    ],
)  # fmt: skip
def test_layers_by_kind(name: str, expected: dict[str, int]) -> None:
    assert named(kinds(name)) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("meta-llama/Llama-3.1-8B", 32 * 8 * 128 * 2 * 2),
        ("bigcode/gpt_bigcode-santacoder", 24 * 1 * 128 * 2 * 2),  # one key head
        ("openai-community/gpt2-large", 36 * 20 * 64 * 2 * 2),
        ("XiaomiMiMo/MiMo-V2-Flash", 9 * 4 * (192 + 128) * 2),  # values are narrower; sliding layers do not grow
        ("deepseek-ai/DeepSeek-V2-Lite", 27 * (512 + 64) * 2),
        ("deepseek-ai/DeepSeek-V3.2-Exp", 61 * (512 + 64 + 128) * 2),
        ("MiniMaxAI/MiniMax-M3", 60 * 4 * 128 * 2 * 2 + 57 * 128 * 2),
        ("Qwen/Qwen3-Coder-Next", 12 * 2 * 256 * 2 * 2),
        ("state-spaces/mamba-1.4b-hf", 0),
    ],
)
def test_bytes_of_a_further_token(name: str, expected: int) -> None:
    found = kinds(name)
    assert bytes_per_token(found, formats(found, "transformers", "bf16")) == expected


def test_transformers_4_expands_latents_to_all_heads() -> None:
    found = kinds("deepseek-ai/DeepSeek-V2-Lite", "transformers 4")
    assert bytes_per_token(found, BF16) == 27 * 16 * ((128 + 64) + 128) * 2


def test_a_checkpoint_with_its_own_code_expands_them_too() -> None:
    found = kinds("moonshotai/Kimi-K2-Instruct-0905")
    assert bytes_per_token(found, BF16) == 61 * 64 * ((128 + 64) + 128) * 2
    assert bytes_per_token(kinds("moonshotai/Kimi-K2-Instruct-0905", "vllm"), BF16) == 61 * 576 * 2


def test_sizes_carry_their_text() -> None:
    found = bytes_of_sequence(kinds("google/gemma-3-12b-it"), BF16, Named(8192, "tokens"))
    assert isinstance(found, Named)
    assert "min(tokens, 1,024)" in found.formula


def test_windows_cap_and_states_do_not_grow() -> None:
    gemma = kinds("google/gemma-3-12b-it")
    layer = 8 * 256 * 2 * 2
    assert bytes_of_sequence(gemma, BF16, 8192) == 8 * 8192 * layer + 40 * 1024 * layer
    assert bytes_per_token(gemma, BF16, windowed=True) == 48 * layer
    mamba = kinds("mistralai/Mamba-Codestral-7B-v0.1")
    assert bytes_of_sequence(mamba, BF16, 10) == bytes_of_sequence(mamba, BF16, 100_000)


def test_states_of_a_gated_delta_rule_by_holder() -> None:
    """Qwen3-Next: convolution of 2 × 16 × 128 + 32 × 128 channels, state of 32 × 128 × 128."""
    name = "Qwen/Qwen3-Coder-Next"
    conv, state = 2 * 16 * 128 + 32 * 128, 32 * 128 * 128
    assert state_per_sequence(kinds(name), BF16) == 36 * (conv * 4 * 2 + state * 4)  # all 4 taps, fp32
    assert state_per_sequence(kinds(name, "vllm"), BF16) == 36 * (conv * 3 * 2 + state * 2)  # the model's dtype
    assert state_per_sequence(kinds(name, "sglang"), BF16) == 36 * (conv * 3 * 2 + state * 4)
    told = kinds(name, "vllm", state_dtype="float32", drafted=2)
    assert state_per_sequence(told, BF16) == 36 * (conv * 5 * 2 + state * 4)


def test_a_config_says_the_dtype_of_states() -> None:
    nemotron = "nvidia/Nemotron-H-8B-Base-8K"
    state = 24 * 128 * 64 * 128
    assert state_per_sequence(kinds(nemotron, "vllm"), BF16, names=["state"]) == state * 4
    half = kinds(nemotron, "vllm", {"mamba_ssm_cache_dtype": "float16"})
    assert state_per_sequence(half, BF16, names=["state"]) == state * 2


def test_mamba_on_ranks_repeats_the_groups_of_its_convolution() -> None:
    """Codestral: 128 heads of 64, 8 groups of 128; on 16 ranks each has 8 heads and one group."""
    found = kinds("mistralai/Mamba-Codestral-7B-v0.1", "vllm")
    conv, state = 8 * 64 + 2 * 128, 8 * 64 * 128
    assert state_per_sequence(found, BF16, Cut(tp=16)) == 64 * (conv * 3 + state) * 2


def test_cuts_by_heads_and_whole_latents() -> None:
    llama, mla = kinds("meta-llama/Llama-3.1-8B"), kinds("deepseek-ai/DeepSeek-V3.2-Exp")
    assert bytes_per_token(llama, BF16, Cut(tp=4)) == 32 * 2 * 128 * 2 * 2
    assert bytes_per_token(llama, BF16, Cut(tp=16)) == 32 * 1 * 128 * 2 * 2  # more ranks than heads
    assert bytes_per_token(mla, BF16, Cut(tp=8)) == bytes_per_token(mla, BF16)
    assert bytes_per_token(kinds("deepseek-ai/DeepSeek-V2-Lite"), BF16, dcp=8) == 27 * 144
    gpt = kinds("openai/gpt-oss-20b")
    parts = [bytes_of_sequence(gpt, BF16, 5000, Cut(pp=3), stage=stage) for stage in range(3)]
    assert sum(parts) == bytes_of_sequence(gpt, BF16, 5000)


def test_compressed_attention_in_its_parts() -> None:
    """DeepSeek V4, 134 tokens: a window of 128 keys that are the values, an entry for 4 tokens of 512, a rest of two
    lanes and a gate, an overlap whose gate is fp32; its indexer the same with 128."""
    found = {kind.name: kind for kind in kinds("deepseek-ai/DeepSeek-V4-Flash")}
    sparse = found["compressed sparse attention"]
    one = 33 * 2 + 2 * 2 * 2 * 2 + 4 * 2 + 4 * 4  # bytes of entries, rest, overlap and its gate, by element
    assert layer_bytes(sparse, BF16, 134) == 128 * 512 * 2 + one * (512 + 128)
    heavy = found["heavily compressed attention"]
    assert layer_bytes(heavy, BF16, 134) == 128 * 512 * 2 + 512 * 2 + 6 * 512 * 2 * 2
    assert layer_bytes(found["sliding attention"], BF16, 134) == 128 * 512 * 2 * 2  # values beside the keys


def test_compressed_attention_of_vllm() -> None:
    """584 bytes a token of the window and for 4 or 128 tokens; the indexer 132 for 4; a window of fp32 states."""
    found = kinds("deepseek-ai/DeepSeek-V4-Flash", "vllm")
    packed = formats(found, "vllm", "bf16", "fp8_ds_mla")
    assert bytes_per_token(found, packed) == 21 * (584 // 4 + 132 // 4) + 20 * -(-584 // 128)
    sparse = next(kind for kind in found if kind.name == "compressed sparse attention")
    states = 8 * (2 * 2 * 512 + 2 * 2 * 128) * 4
    assert layer_bytes(sparse, packed, 400) == 128 * 584 + 100 * (584 + 132) + states


def test_cross_attention_keeps_the_tokens_of_an_image() -> None:
    found = kinds("meta-llama/Llama-3.2-11B-Vision-Instruct")
    without = bytes_of_sequence(found, BF16, 50)
    assert without == 32 * 50 * 8 * 128 * 2 * 2
    assert bytes_of_sequence(found, BF16, 50, encoder=6404) - without == 8 * 6404 * 8 * 128 * 2 * 2


@pytest.mark.parametrize(
    ("name", "config", "sliding"),
    [
        ("mistralai/Mistral-7B-v0.1", {"sliding_window": 4096}, 32),
        ("mistralai/Mistral-7B-v0.1", {"sliding_window": None}, 0),
        ("Qwen/Qwen2.5-7B", {"use_sliding_window": True, "max_window_layers": 20}, 8),
        ("Qwen/Qwen2.5-7B", {"use_sliding_window": False, "max_window_layers": 20}, 0),
        ("google/gemma-3-1b-it", {"sliding_window_pattern": 2}, 13),
        ("HuggingFaceTB/SmolLM3-3B", {"use_sliding_window": True, "sliding_window": 64}, 9),
        ("Qwen/Qwen1.5-MoE-A2.7B", {"use_sliding_window": True, "max_window_layers": 10}, 5),
        ("XiaomiMiMo/MiMo-V2-Flash", {"sliding_window_size": 99}, 39),
        ("meta-llama/Llama-3.1-8B", {"layer_types": ["sliding_attention", "full_attention"] * 16,
                                     "sliding_window": 10}, 16),
    ],
)  # fmt: skip
def test_rules_of_windows(name: str, config: dict[str, Any], sliding: int) -> None:
    found = kinds(name, config=config)
    assert sum(len(kind.layers) for kind in found if kind.window) == sliding


def test_the_window_of_attention_both_ways_is_half() -> None:
    found = kinds("google/gemma-3-1b-it", config={"use_bidirectional_attention": True})
    assert {kind.window for kind in found} == {257, None}


def refusal(name: str, holder: Any = "transformers", config: dict[str, Any] | None = None, **more: Any) -> str:
    with pytest.raises(Refused) as caught:
        kinds(name, holder, config, **more)
    return str(caught.value)


def test_what_is_refused() -> None:
    llama = "meta-llama/Llama-3.1-8B"
    assert "unknown holder of a cache 'vlm'" in refusal(llama, "vlm")
    assert "near     vllm" in refusal(llama, "vlm")
    assert "states cannot be kept in 'int3'" in refusal(llama, state_dtype="int3")
    assert "sliding_window must be a whole number" in refusal(llama, config={"sliding_window": -3})
    listed = {"layer_types": ["sliding_attention"] * 32}
    assert "layer_types has sliding_attention, and sliding_window says no window" in refusal(llama, config=listed)
    assert "what vllm keeps for compressed convolutional attention is not known" in refusal("Zyphra/ZAYA1-base", "vllm")
    assert "what transformers 4 keeps for gated delta" in refusal("Qwen/Qwen3-Coder-Next", "transformers 4")
    assert "what sglang keeps for compressed sparse" in refusal("deepseek-ai/DeepSeek-V4-Flash", "sglang")
