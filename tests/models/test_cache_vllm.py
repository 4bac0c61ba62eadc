"""vLLM's pages, groups, blocks and concurrency: its logs to the block."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.test_cache_kinds import kinds

from vramcast.errors import Refused
from vramcast.models.cache.formats import formats
from vramcast.models.cache.vllm import Page, Plan, Run, attention_block, plan
from vramcast.models.place import Cut

GIB = 1 << 30
RUN = Run(8192)


def planned(
    name: str, cut: Cut | None = None, cache: str = "auto", state: str = "", drafted: int = 0, **more: int
) -> Plan:
    found = kinds(name, "vllm", state_dtype=state, drafted=drafted)
    return plan(found, formats(found, "vllm", "bf16", cache), cut or Cut(), **more)


@pytest.mark.parametrize(
    ("name", "tp", "kv_gib", "blocks", "logged"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 1, 58.11, 29752, 29751),
        ("meta-llama/Llama-3.1-8B-Instruct", 4, 67.44, 138117, 138112),
        ("deepseek-ai/DeepSeek-V2-Lite", 1, 43.61, 94091, 94097),
        ("google/gemma-3-12b-it", 1, 47.72, 48865, 48867),
        ("openai/gpt-oss-20b", 2, 59.32, 323966, 323972),
    ],
)
def test_blocks_of_logged_rooms(name: str, tp: int, kv_gib: float, blocks: int, logged: int) -> None:
    """The log rounds to 0.01 GiB, 0.02 % of these rooms."""
    found = planned(name, Cut(tp=tp)).blocks(int(kv_gib * GIB))
    assert abs(found - logged) / logged < 4e-4
    assert abs(found - blocks) / blocks < 4e-4


@pytest.mark.parametrize(
    ("name", "tp", "blocks", "tokens", "concurrency"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 1, 29751, 476_016, "58.11"),
        ("deepseek-ai/DeepSeek-V2-Lite", 1, 94097, 1_505_552, "183.78"),
        ("google/gemma-2-9b-it", 1, 21110, 168_880, "20.60"),
        ("google/gemma-3-12b-it", 1, 48867, 130_304, "15.88"),
        ("google/gemma-3-27b-it", 1, 15997, 36_560, "4.46"),
        ("openai/gpt-oss-20b", 2, 323972, 2_591_776, "316.07"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 2, 29121, 465_936, "56.88"),
    ],
)
def test_logs_of_vllm_0_19(name: str, tp: int, blocks: int, tokens: int, concurrency: str) -> None:
    """Start-ups on an H100 at 8192 tokens: the lines that a number of blocks gives."""
    found = planned(name, Cut(tp=tp))
    assert found.tokens_by_block(blocks) == tokens
    assert f"{float(found.concurrency(blocks, 8192, RUN)):.2f}" == concurrency


def test_gemma_by_hand() -> None:
    """40 sliding and 8 full layers: six groups of eight, a page of 16 × 8 × 512 × 2 bytes."""
    found = planned("google/gemma-3-12b-it")
    assert [len(page.layers) for group in found.groups for page in group.pages] == [8] * 6
    assert found.block_bytes == (8 * 131_072,)
    assert found.request_blocks(8192, RUN) == 512 + 5 * 513
    without = planned("google/gemma-3-12b-it", hybrid=False)
    assert without.request_blocks(8192, RUN) == 512
    assert without.block_bytes == (48 * 131_072,)


def test_padding_layers() -> None:
    """Gemma 3 27B: 52 sliding, 10 full; 6 groups of 8 or 9 hold the 52, so a block has room for 10."""
    found = planned("google/gemma-3-27b-it")
    assert len(found.groups) == 7
    assert found.block_bytes == (10 * 16 * 16 * 128 * 2 * 2,)


@pytest.mark.parametrize(
    ("name", "tp", "drafted", "cache", "state", "block", "page", "padding"),
    [
        ("Qwen/Qwen3.5-27B", 1, 0, "fp8", "", 1568, 1568 * 2048, 4096),  # logged: 1568, 0.13 %
        ("Qwen/Qwen3.5-27B", 2, 7, "fp8", "", 1648, 1648 * 1024, 12288),  # logged: 1648, 0.73 %
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", 1, 0, "auto", "float16", 672, 672 * 4096, None),  # logged: 672
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 1, 0, "auto", "float16", 544, 544 * 2048, None),
    ],
)
def test_blocks_as_large_as_a_state(
    name: str, tp: int, drafted: int, cache: str, state: str, block: int, page: int, padding: int | None
) -> None:
    found = planned(name, Cut(tp=tp), cache, state, drafted)
    assert {(one.block, one.bytes) for group in found.groups for one in group.pages} == {(block, page)}
    assert padding is None or found.padding == padding


def test_logs_of_hybrid_models() -> None:
    """Qwen3-Next: 12 full layers and 36 with states of 1,097,728 bytes; a request of 65,536 takes 121 + 3 × 2 blocks,
    and 470 blocks are the logged 242,534 tokens. Qwen3.5-2B: 955 blocks are 1.97 requests of 262,144."""
    found = planned("Qwen/Qwen3-Next-80B-A3B-Instruct", state="float16")
    run = Run(8192, aligned=True)
    assert found.request_blocks(65_536, run) == 121 + 6
    assert found.tokens(470, 65_536, run) == 242_534
    small = planned("Qwen/Qwen3.5-2B")
    assert small.blocks(6_388_763_853) == 955
    assert small.tokens_by_block(955) == 129_472
    assert f"{float(small.concurrency(955, 262_144, RUN)):.2f}" == "1.97"


def test_worked_numbers_of_other_engines_logs() -> None:
    """Qwen3-14B: 6.51 GiB, 42,656 tokens; Qwen3-235B on four GPUs: one key head each, 48,128 bytes a token."""
    found = planned("Qwen/Qwen3-14B")
    assert found.block_bytes == (16 * 163_840,)
    assert found.tokens_by_block(found.blocks(int(6.51 * GIB))) == 42_656
    large = planned("Qwen/Qwen3-235B-A22B", Cut(tp=4))
    assert large.block_bytes == (16 * 48_128,)
    assert large.tokens_by_block(large.blocks(int(8.11 * GIB))) == 180_928


def test_stages_have_the_blocks_of_the_poorest() -> None:
    """32 layers on 3 stages: 11, 11 and 10, the last the fewest."""
    found = planned("meta-llama/Llama-3.1-8B-Instruct", Cut(pp=3))
    assert found.block_bytes == (11 * 65_536, 11 * 65_536, 10 * 65_536)
    assert found.blocks(10 * GIB, 10 * GIB, 9 * GIB) == 9 * GIB // (10 * 65_536)
    assert found.blocks(GIB) == GIB // (11 * 65_536)


def test_decode_context_parallelism_spreads_tokens() -> None:
    """Kimi K2 on 8 × 8: 46.8 GiB hold 715,072 tokens of a rank, and 5,721,088 together (logged)."""
    found = planned("moonshotai/Kimi-K2-Instruct-0905", Cut(tp=8))
    assert 8 * found.tokens_by_block(found.blocks(int(46.8 * GIB))) == pytest.approx(5_721_088, rel=5e-4)
    assert found.request_blocks(8192, Run(8192, dcp=8)) == 8192 // 8 // 16


def test_an_indexer_shares_the_group_of_its_layers() -> None:
    found = planned("deepseek-ai/DeepSeek-V3.2-Exp", cache="fp8")
    assert len(found.groups) == 1
    assert found.block_bytes == (16 * 61 * (656 + 132),)


def test_one_block_is_never_given_out() -> None:
    found = planned("meta-llama/Llama-3.1-8B-Instruct")
    assert found.starts(513, 8192, RUN)
    assert not found.starts(512, 8192, RUN)


def test_chunks_end_where_they_end() -> None:
    page = Page("chunked attention", "chunk", (0,), 16, 1024, 8192)
    assert page.blocks(100_000, Run(2048)) == (8192 + 2048) // 16
    assert page.blocks(4000, Run(2048)) == 250


def test_what_is_not_modelled() -> None:
    with pytest.raises(Refused, match="vLLM packs the pages of compressed sparse attention side by side"):
        planned("deepseek-ai/DeepSeek-V4-Flash")
    with pytest.raises(Refused, match="the blocks of cross attention in vLLM are not modelled"):
        planned("meta-llama/Llama-3.2-11B-Vision-Instruct")


def test_windows_do_not_go_with_decode_context_parallelism() -> None:
    with pytest.raises(Refused, match="dcp = 2 does not go with layers that have a window"):
        planned("google/gemma-3-12b-it").request_blocks(8192, Run(8192, dcp=2))


@given(st.integers(1, 200_000), st.integers(1, 4096), st.sampled_from([1, 16, 64, 128]))
def test_a_block_holds_a_state(state: int, token: int, kernel: int) -> None:
    block = attention_block(state, token, kernel)
    assert block % kernel == 0
    assert (block - kernel) * token < state <= block * token


PLANS = [planned(name) for name in ("google/gemma-3-12b-it", "Qwen/Qwen3.5-2B")]


@given(st.integers(1, 300_000), st.integers(0, 1 << 16), st.sampled_from(PLANS))
def test_a_longer_request_takes_no_fewer_blocks(tokens: int, more: int, found: Plan) -> None:
    assert found.request_blocks(tokens, RUN) <= found.request_blocks(tokens + more, RUN)
