"""Cache dtypes: bytes of a head by hand, and what a holder or a kind of attention cannot use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.test_cache_kinds import kinds

from vramcast.errors import Refused
from vramcast.models.cache.formats import FORMATS, Format, Formats, formats
from vramcast.models.cache.kinds import Holder
from vramcast.models.cache.sizes import bytes_per_token

LLAMA, LITE, V32 = "meta-llama/Llama-3.1-8B", "deepseek-ai/DeepSeek-V2-Lite", "deepseek-ai/DeepSeek-V3.2-Exp"


@pytest.mark.parametrize(
    ("name", "holder", "dtype", "expected"),
    [
        (LLAMA, "vllm", "auto", 32 * 8 * 2 * 256),
        (LLAMA, "vllm", "fp8", 32 * 8 * 2 * 128),
        (LLAMA, "vllm", "fp8_e5m2", 32 * 8 * 2 * 128),
        (LLAMA, "vllm", "int8_per_token_head", 32 * 8 * 2 * (128 + 4)),
        (LLAMA, "vllm", "int4_per_token_head", 32 * 8 * 2 * (64 + 4)),
        (LLAMA, "vllm", "nvfp4", 32 * 8 * 2 * (64 + 8)),
        (LLAMA, "sglang", "mxfp8", 32 * 8 * 2 * (128 + 4)),
        (LITE, "vllm", "fp8", 27 * 576),
        (LITE, "sglang", "fp4_e2m1", 27 * (288 + 36)),
        (V32, "vllm", "auto", 61 * (1152 + 132)),
        (V32, "vllm", "fp8", 61 * (656 + 132)),  # served as fp8_ds_mla
        (V32, "vllm", "fp8_ds_mla", 61 * (656 + 132)),
        (V32, "vllm", "nvfp4_ds_mla", 61 * (352 + 132)),
        (V32, "sglang", "fp8_e4m3", 61 * (656 + 132)),
    ],
)
def test_bytes_of_a_token_by_dtype(name: str, holder: Holder, dtype: str, expected: int) -> None:
    found = kinds(name, holder)
    assert bytes_per_token(found, formats(found, holder, "bf16", dtype)) == expected


def test_a_model_in_fp32_keeps_four_bytes() -> None:
    found = kinds(LLAMA, "vllm")
    assert bytes_per_token(found, formats(found, "vllm", "fp32")) == 32 * 8 * 2 * 128 * 4


@pytest.mark.parametrize(
    ("name", "holder", "dtype", "fact"),
    [
        (LLAMA, "vllm", "fp8_ds_mla", "vllm cannot keep keys and values in 'fp8_ds_mla'"),
        (LITE, "vllm", "nvfp4", "vllm cannot keep a latent in 'nvfp4'"),
        (LITE, "vllm", "fp8_ds_mla", "vllm cannot keep a latent in 'fp8_ds_mla'"),
        (LLAMA, "vllm", "fp7", "vllm has no cache dtype 'fp7'"),
        (LLAMA, "vllm", "turboquant_k8v4", "a cache in turboquant_k8v4 is not modelled"),
        (LLAMA, "transformers", "fp8", "transformers has no cache dtype 'fp8'"),
        (LITE, "sglang", "mxfp8", "sglang cannot keep a latent in 'mxfp8'"),
    ],
)
def test_a_dtype_that_cannot_be_used(name: str, holder: Holder, dtype: str, fact: str) -> None:
    found = kinds(name, holder)
    with pytest.raises(Refused) as caught:
        formats(found, holder, "bf16", dtype, "here")
    text = str(caught.value)
    assert f"error: {fact}" in text
    assert ("allowed" in text) != (holder == "transformers")  # which has no other than the model's own
    assert "here" in text


def test_scales_that_do_not_divide_a_head() -> None:
    found = kinds("tiiuae/falcon-11B", "vllm", {"num_attention_heads": 512, "num_kv_heads": 8})  # heads of 8
    with pytest.raises(Refused, match="nvfp4 has a scale for 16 elements, which does not divide a head of 8"):
        formats(found, "vllm", "bf16", "nvfp4")


def test_a_packed_latent_is_for_one_width() -> None:
    found = kinds(V32, "vllm", {"kv_lora_rank": 256})
    with pytest.raises(Refused, match="fp8_ds_mla is for a latent of 576 elements, not 320"):
        formats(found, "vllm", "bf16", "fp8_ds_mla")


def test_every_format_has_a_source() -> None:
    assert all(row.source for families in FORMATS.values() for rows in families.values() for row in rows)


@given(st.integers(1, 64).map(lambda n: n * 32), st.sampled_from(FORMATS["vllm"]["keys and values"]))
def test_no_format_is_larger_than_two_bytes_and_a_scale(width: int, row: Format) -> None:
    assert width // 2 <= row.size(width) <= 2 * width + 8
    assert Formats("bf16", row).size("model", width) == 2 * width
