"""SGLang's pools: worked examples and logs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.models.test_cache_kinds import kinds

from vramcast.models.cache import sglang
from vramcast.models.cache.formats import formats
from vramcast.models.cache.sizes import bytes_per_token, state_per_sequence
from vramcast.models.place import Cut

GIB = 1 << 30


def cell(name: str, tp: int = 1, cache: str = "auto", draft: int = 0) -> int:
    found = kinds(name, "sglang")
    return sglang.cell_bytes(found, formats(found, "sglang", "bf16", cache), Cut(tp=tp), draft_layers=draft)


def test_tokens_of_a_pool() -> None:
    """Qwen3-30B-A3B with 94.24 GiB: 48 × 4 × 256 × 2 = 98,304 bytes a token; logged 1,029,388."""
    assert cell("Qwen/Qwen3-30B-A3B") == 98_304
    found = sglang.pool_tokens(int(94.24 * GIB), 98_304)
    assert found == 1_029_352
    assert abs(found - 1_029_388) / 1_029_388 < 1e-4
    assert sglang.pool_tokens(int(94.24 * GIB), 98_304, 64) % 64 == 0


def test_logged_pools() -> None:
    """Qwen3-235B on four GPUs: 367,404 tokens are 8.234 GB of keys; GLM-4.7-Flash: 383,872 tokens in 19.36 GiB."""
    assert cell("Qwen/Qwen3-235B-A22B", 4) == 48_128
    assert round(367_404 * 48_128 / 2 / GIB, 2) == 8.23
    assert cell("zai-org/GLM-4.7-Flash", 2) == 47 * 576 * 2
    assert round(sglang.allocated_bytes(383_872, 54_144) / GIB, 2) == 19.36


def test_draft_layers_are_further_layers() -> None:
    assert cell("meta-llama/Llama-3.1-8B", draft=1) == 33 * 8 * 256 * 2
    assert cell("deepseek-ai/DeepSeek-V3.2-Exp", cache="fp8") == 61 * (656 + 132)


def test_two_pools_in_a_fixed_ratio() -> None:
    """gpt-oss: F = rest ÷ (12 c + 0.8 × 12 c), whatever the window."""
    found = kinds("openai/gpt-oss-20b", "sglang")
    layer, rest = 8 * 64 * 2 * 2, 10 * GIB
    pools = sglang.sliding_pools(rest, found, formats(found, "sglang", "bf16"))
    assert pools.full == rest * 5 // (12 * layer * 9)
    assert pools.sliding == pools.full * 4 // 5


def test_windows_without_a_pool_of_their_own_save_nothing() -> None:
    found = kinds("google/gemma-3-12b-it", "sglang")
    flat = sglang.own_windows(found, "gemma3")
    assert bytes_per_token(flat, formats(flat, "sglang", "bf16")) == 48 * 8 * 512 * 2
    assert sglang.own_windows(found, "gpt_oss") == found
    sliding = kinds("mistralai/Mistral-7B-v0.1", "sglang", {"sliding_window": 4096})
    pools = sglang.sliding_pools(GIB, sliding, formats(sliding, "sglang", "bf16"))
    assert pools == sglang.Pools(0, GIB // (32 * 8 * 256 * 2))


def test_slots_of_a_log() -> None:
    """Qwen3.8-27B: 124 slots hold 17.58 GiB of states and 0.34 of convolutions, one more slot than is given out."""
    found = kinds("Qwen/Qwen3.5-27B", "sglang")
    plain = formats(found, "sglang", "bf16")
    state = state_per_sequence(found, plain, names=["state"])
    conv = state_per_sequence(found, plain, names=["conv state"])
    assert state == 48 * 48 * 128 * 128 * 4
    assert conv == 48 * (2 * 16 * 128 + 48 * 128) * 3 * 2
    assert f"{sglang.slot_bytes(124, state) / GIB:.2f}" == "17.58"
    assert f"{sglang.slot_bytes(124, conv) / GIB:.2f}" == "0.34"


@given(st.integers(GIB, 200 * GIB))
def test_slots_stay_within_their_share(pool: int) -> None:
    found = STATES
    slots = sglang.state_slots(pool, found, formats(found, "sglang", "bf16"))
    assert slots.bytes + slots.left == pool
    assert slots.bytes <= pool * 9 // 19 + 1
    assert slots.requests() == slots.number // 3


STATES = kinds("Qwen/Qwen3.5-2B", "sglang")


def test_the_table_that_no_formula_counts() -> None:
    assert sglang.request_table_bytes(2047, 131_072) == GIB
