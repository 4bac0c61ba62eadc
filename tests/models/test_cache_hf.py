"""The caches of transformers: dynamic, static, offloaded, quantised, encoder and decoder."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.test_cache_kinds import BF16, kinds

from vramcast.errors import Refused
from vramcast.models.cache import hf
from vramcast.models.cache.sizes import bytes_of_sequence

LLAMA = kinds("meta-llama/Llama-3.1-8B")
GEMMA = kinds("google/gemma-3-12b-it")
LAYER = 8 * 128 * 2
"""bytes of the keys of a token in a layer of Llama"""


def test_dynamic_and_its_growth() -> None:
    assert hf.dynamic_bytes(LLAMA, BF16, 3, 1000) == 3 * 1000 * 32 * 2 * LAYER
    assert hf.growth_bytes(LLAMA, BF16, 3, 1001) == 3 * 1000 * LAYER
    assert hf.growth_bytes(kinds("state-spaces/mamba-1.4b-hf"), BF16, 3, 1001) == 0


def test_windows_hold_the_prompt_until_the_first_step() -> None:
    layer = 8 * 256 * 2 * 2
    assert hf.dynamic_bytes(GEMMA, BF16, 1, 5000) == (8 * 5000 + 40 * 1024) * layer
    assert hf.dynamic_bytes(GEMMA, BF16, 1, 5000, windows=False) == 48 * 5000 * layer


def test_static_is_allocated_at_its_longest() -> None:
    assert hf.static_bytes(LLAMA, BF16, 2, 4096) == 2 * 4096 * 32 * 2 * LAYER
    assert hf.static_bytes(GEMMA, BF16, 1, 5000) == hf.dynamic_bytes(GEMMA, BF16, 1, 5000)
    with pytest.raises(Refused, match="StaticCache has no layer for compressed sparse attention"):
        hf.static_bytes(kinds("deepseek-ai/DeepSeek-V4-Flash"), BF16, 1, 100)


def test_offloaded_has_two_layers_on_the_gpu() -> None:
    assert hf.offloaded_bytes(LLAMA, BF16, 2, 1000) == 2 * 2 * 1000 * 2 * LAYER
    layer = 8 * 256 * 2 * 2
    assert hf.offloaded_bytes(GEMMA, BF16, 1, 5000, only_full=True) == (40 * 1024 + 2 * 5000) * layer


@pytest.mark.parametrize(
    ("prompt", "tokens", "packed"),
    [(1000, 1000, 1000), (1000, 1127, 1000), (1000, 1128, 1128), (1000, 1300, 1256)],
)
def test_quantised_packs_every_128_steps(prompt: int, tokens: int, packed: int) -> None:
    """quanto, 4 bits: half a byte, and a scale and a shift of 2 bytes for 64 elements."""
    elements = 8 * 128
    expected = 64 * (packed * (elements // 2 + elements // 64 * 4) + (tokens - packed) * elements * 2)
    assert hf.quantised_bytes(LLAMA, BF16, 1, prompt, tokens, hf.Quantised()) == expected


def test_other_backends() -> None:
    fp8 = hf.quantised_bytes(LLAMA, BF16, 2, 10, 100, hf.Quantised("fp8"))
    assert fp8 == 64 * (2 * 100 * 1024 + 4)
    three = hf.quantised_bytes(LLAMA, BF16, 1, 100, 100, hf.Quantised("hqq", 3))
    assert three == 64 * (100 * 1024 // 10 * 4 + 100 * 1024 // 64 * 4)


def test_what_a_quantised_cache_is_not_for() -> None:
    with pytest.raises(Refused, match="a QuantizedCache is for layers that see all tokens, not for sliding attention"):
        hf.quantised_bytes(GEMMA, BF16, 1, 10, 20, hf.Quantised())
    with pytest.raises(Refused, match="unknown backend 'quanta'"):
        hf.quantised_bytes(LLAMA, BF16, 1, 10, 20, hf.Quantised("quanta"))
    with pytest.raises(Refused, match="quanto has no cache of 8 bits"):
        hf.quantised_bytes(LLAMA, BF16, 1, 10, 20, hf.Quantised("quanto", 8))
    with pytest.raises(Refused, match="a group of 48 does not divide the 1024 elements"):
        hf.quantised_bytes(LLAMA, BF16, 1, 10, 20, hf.Quantised(group=48))


def test_an_encoder_and_a_decoder() -> None:
    """Whisper large: 32 layers, 20 heads of 64, 1500 frames; vLLM logs 163,836 bytes a token."""
    found = hf.encoder_decoder_kinds(32, 20, 64)
    layer = 20 * 64 * 2 * 2
    assert bytes_of_sequence(found, BF16, 1) == 32 * layer == 163_840
    assert bytes_of_sequence(found, BF16, 448, encoder=1500) == 32 * (448 + 1500) * layer


@given(st.integers(1, 5000), st.integers(0, 5000), st.integers(1, 8))
def test_quantised_is_smaller_than_full(prompt: int, steps: int, sequences: int) -> None:
    full = hf.dynamic_bytes(LLAMA, BF16, sequences, prompt + steps)
    assert hf.quantised_bytes(LLAMA, BF16, sequences, prompt, prompt + steps, hf.Quantised()) < full


def test_states_are_never_offloaded() -> None:
    """Qwen3-Next: of the layers of linear attention all stay, of the full ones two are on the GPU."""
    states = 36 * (8192 * 4 * 2 + 32 * 128 * 128 * 4)
    """convolutions over four tokens in bf16, and 32 heads of 128 × 128 in fp32"""
    keys = 2 * 256 * 2 * 2
    """two heads of 256, keys and values in bf16"""
    found = kinds("Qwen/Qwen3-Next-80B-A3B-Instruct")
    assert hf.offloaded_bytes(found, BF16, 3, 1000) == 3 * (states + 2 * 1000 * keys)
