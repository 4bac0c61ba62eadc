"""The caches of Transformers' `generate`, worked by hand: Qwen2.5-7B with 8 sequences of 4096 tokens after prompts of
2000, and Mistral-7B-v0.1, whose layers see the last 4096 tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.cases import run
from tests.golden.qwen import KV, LAYERS
from tests.random_jobs import said

from vramcast.catalog.models import model_config
from vramcast.estimate import forecast
from vramcast.models.cache import hf
from vramcast.models.cache.formats import Formats, formats
from vramcast.models.cache.kinds import LayerKind, cache_kinds
from vramcast.models.describe import build_layout

JOB: dict[str, Any] = {
    "algorithm": "inference", "framework": "transformers==5.24.0", "model": "Qwen/Qwen2.5-7B", "gpu": "a100-sxm-80gb",
    "weights_dtype": "bf16", "micro_batch": 8, "seq_len": 4096, "prompt_len": 2000,
}  # fmt: skip
MISTRAL = {**JOB, "model": "mistralai/Mistral-7B-v0.1", "micro_batch": 1, "prompt_len": 1000}

SIDE = KV * 2
"""keys, or values, of a token in a layer: 4 heads of 128 numbers of 2 bytes, 1,024"""
TOKEN = LAYERS * 2 * SIDE
"""of a token: 57,344"""


def held(job: dict[str, Any], term: str = "kv_cache", **more: object) -> list[int]:
    """Bytes at prefill, first token and decode."""
    answer = forecast(said({**job, **{path.replace("__", "."): value for path, value in more.items()}}))
    return [
        sum(one.bytes for one in phase.terms if one.name == term)
        for phase in answer.groups[0].phases
        if phase.name == "generate"
    ]


# --- Qwen2.5-7B -------------------------------------------------------------------------------------------------------


def test_dynamic_has_the_prompt_first_and_all_tokens_in_the_end() -> None:
    prompt, end = 8 * 2000 * TOKEN, 8 * 4096 * TOKEN
    assert (prompt, end) == (917_504_000, 1_879_048_192)
    assert held(JOB) == [prompt, prompt, end]


def test_dynamic_grows_through_a_copy_of_the_keys_of_one_layer() -> None:
    grow = 8 * 4095 * SIDE  # the old keys, without the newest token, beside the new ones
    assert grow == 33_546_240
    assert held(JOB, "kv_cache.grow") == [0, 0, grow]


def test_static_is_whole_from_the_first_token_and_never_grows() -> None:
    whole = 8 * 4096 * TOKEN
    assert whole == 1_879_048_192
    assert held(JOB, engine__cache="static") == [whole] * 3
    assert held(JOB, "kv_cache.grow", engine__cache="static") == [0, 0, 0]


def test_offloaded_has_two_layers_on_the_gpu() -> None:
    """The one at work, and the next one on its way."""
    prompt, end = 8 * 2000 * 2 * 2 * SIDE, 8 * 4096 * 2 * 2 * SIDE
    assert (prompt, end) == (65_536_000, 134_217_728)
    assert held(JOB, engine__cache="offloaded") == [prompt, prompt, end]
    assert held(JOB, "kv_cache.grow", engine__cache="offloaded") == [0, 0, 0]


def quantised(packed: int, left: int, bits: int) -> int:
    """`packed` tokens in groups of 64 numbers with a scale and a shift of 2 bytes each, `left` ones in 16 bits."""
    numbers = 8 * packed * KV
    side = numbers * bits // 8 + numbers // 64 * (2 + 2)
    return LAYERS * 2 * (side + 8 * left * SIDE)


@pytest.mark.parametrize(("dtype", "bits"), [(None, 4), ("int4", 4), ("int8", 8)])
def test_quantised_packs_the_prompt_and_then_128_steps_at_a_time(dtype: str | None, bits: int) -> None:
    """2096 steps are 16 x 128, packed with the prompt, and 48 that are not. It was largest a step before the last were
    packed: 127 are the most in full."""
    assert 4096 == 2000 + 16 * 128 + 48
    prompt, most = quantised(2000, 0, bits), quantised(2000 + 15 * 128, 127, bits)
    assert most > quantised(2000 + 16 * 128, 48, bits)
    found = {} if dtype is None else {"engine__kv_dtype": dtype}
    assert held(JOB, engine__cache="quantised", **found) == [prompt, prompt, most]
    assert held(JOB, "kv_cache.grow", engine__cache="quantised", **found) == [0, 0, 0]


def test_the_figures_of_a_quantised_cache() -> None:
    # 4 bits: half a byte and 4 bytes for 64 numbers, 288 bytes a token and side instead of 1,024
    assert quantised(1, 0, 4) == 8 * LAYERS * 2 * 288
    assert (quantised(2000, 0, 4), quantised(4048, 48, 4)) == (258_048_000, 544_309_248)
    assert (quantised(2000, 0, 8), quantised(4048, 48, 8)) == (487_424_000, 1_008_566_272)


@pytest.mark.parametrize(
    ("tokens", "packed", "rest"),
    [(2001, 2000, 1), (2127, 2000, 127), (2128, 2000, 127), (2200, 2000, 127), (2255, 2128, 127), (2256, 2128, 127)],
)
def test_steps_are_packed_when_there_are_128(tokens: int, packed: int, rest: int) -> None:
    """A longer run has been where the shorter one is."""
    assert held({**JOB, "seq_len": tokens}, engine__cache="quantised")[2] == quantised(packed, rest, 4)


@pytest.mark.parametrize(("dtype", "width"), [("fp32", 4), ("fp16", 2)])
def test_the_cache_has_the_dtype_of_the_weights(dtype: str, width: int) -> None:
    job = {**JOB, "weights_dtype": dtype}
    assert held(job)[2] == 8 * 4096 * LAYERS * 2 * KV * width
    # of a quantised one, the scales and what is not packed
    numbers, rest = 8 * 3920 * KV, 8 * 127 * KV
    side = numbers // 2 + numbers // 64 * 2 * width + rest * width
    assert held(job, engine__cache="quantised")[2] == LAYERS * 2 * side


def test_packed_weights_leave_the_cache_in_16_bits() -> None:
    assert held(JOB, quant__kind="nf4") == held(JOB)


# --- Mistral-7B-v0.1: 32 layers of 8 key heads of 128, a window of 4096 -----------------------------------------------

LONG = {**MISTRAL, "seq_len": 32768}
MISTRAL_SIDE = 8 * 128 * 2
MISTRAL_TOKEN = 32 * 2 * MISTRAL_SIDE


@pytest.mark.parametrize(("tokens", "kept"), [(2048, 2048), (4095, 4095), (4096, 4096), (4097, 4096), (32768, 4096)])
def test_sliding_layers_stop_growing_at_their_window(tokens: int, kept: int) -> None:
    job = {**MISTRAL, "seq_len": tokens}
    assert held(job)[2] == kept * MISTRAL_TOKEN
    assert held(job, engine__cache="static") == [kept * MISTRAL_TOKEN] * 3
    assert held(job, engine__cache="offloaded")[2] == kept * 2 * 2 * MISTRAL_SIDE


def test_a_prompt_longer_than_the_window_is_kept_until_the_first_step() -> None:
    """The cache keeps a view of the last tokens, and the memory behind it."""
    prompt = 20_000 * MISTRAL_TOKEN
    assert held({**LONG, "prompt_len": 20_000}) == [prompt, prompt, 4096 * MISTRAL_TOKEN]


def test_the_copy_of_growing_stops_at_the_window_too() -> None:
    """The old window beside the new one."""
    assert held(LONG, "kv_cache.grow")[2] == 4096 * MISTRAL_SIDE == 8_388_608
    assert held({**MISTRAL, "seq_len": 4096}, "kv_cache.grow")[2] == 4095 * MISTRAL_SIDE


def test_a_model_without_a_window_in_its_config_keeps_all_tokens() -> None:
    assert held({**LONG, "model": "mistralai/Mistral-7B-Instruct-v0.3"})[2] == 32768 * MISTRAL_TOKEN


# --- one law, two places ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slides_from", [0, 1, 14, 28])
def test_the_terms_agree_with_what_the_layers_of_the_config_keep(slides_from: int, tmp_path: Path) -> None:
    """`memory/terms/cache.py` counts by two numbers of an architecture, `models/cache/hf.py` layer by layer. Here
    Qwen2.5-7B with its window switched on: the layers from one on see 4096 tokens."""
    windows = {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": slides_from}
    config = model_config(JOB["model"]).config | windows
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    kinds, form = kinds_of(config)
    for tokens in (4096, 4097, 20_000):
        expected = {
            "dynamic": hf.dynamic_bytes(kinds, form, 8, tokens),
            "static": hf.static_bytes(kinds, form, 8, tokens),
            "offloaded": hf.offloaded_bytes(kinds, form, 8, tokens),
        }
        job = {**JOB, "model": str(file), "seq_len": tokens}
        assert {cache: held(job, engine__cache=cache)[2] for cache in expected} == expected
        assert held(job, "kv_cache.grow")[2] == hf.growth_bytes(kinds, form, 8, tokens)


@pytest.mark.parametrize("prompt", [1, 128, 2000])
def test_and_so_does_a_quantised_one(prompt: int) -> None:
    kinds, form = kinds_of(model_config(JOB["model"]).config)
    for tokens in (2001, 2128, 4096):
        job = {**JOB, "prompt_len": prompt, "seq_len": tokens}
        for dtype, options in (("int4", hf.Quantised()), ("int8", hf.Quantised("hqq", 8))):
            whole = prompt + (tokens - prompt) // 128 * 128
            ends = [tokens, whole - 1] if whole > prompt else [tokens]
            expected = max(hf.quantised_bytes(kinds, form, 8, prompt, end, options) for end in ends)
            assert held(job, engine__cache="quantised", engine__kv_dtype=dtype)[2] == expected


def kinds_of(config: dict[str, Any]) -> tuple[tuple[LayerKind, ...], Formats]:
    """What the layers of a config keep in bf16."""
    kinds = cache_kinds(build_layout("qwen", config, "here"), config, "here", "transformers")
    return kinds, formats(kinds, "transformers", "bf16")


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_cache_that_nobody_has_is_refused() -> None:
    base = "check --model mistralai/Mistral-7B-v0.1 --gpu l4 --set algorithm=inference --set engine.cache=quantised"
    found = run(f"{base} --set engine.kv_dtype=fp8")
    assert (found.exit, found.stdout) == (2, "")
    assert found.stderr.rstrip() == (
        "error: engine.cache = quantised is for layers that see all tokens: mistralai/Mistral-7B-v0.1 has 32 that see "
        "4096\n"
        "  from     --set\n"
        "  allowed  dynamic, static, offloaded\n"
        "error: engine.kv_dtype = fp8 is no dtype of a cache with engine.kind = hf\n"
        "  from     --set\n"
        "  allowed  int4, int8"
    )


def test_a_dtype_that_changes_nothing_is_said() -> None:
    answer = forecast(said({**JOB, "engine.kv_dtype": "int8"}))
    assert [(one.path, one.why) for one in answer.ineffective] == [
        ("engine.kv_dtype", "Transformers keeps the model's dtype, unless engine.cache=quantised")
    ]
