"""Up to how many tokens in a micro-batch a padding-free job fits, where it does not at full length."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.cases import run
from tests.group_jobs import VERL, Values
from tests.random_jobs import said

from vramcast.estimate import forecast
from vramcast.estimate.longest import fits_up_to_tokens
from vramcast.types.result import gets_through

LONG: Values = {**VERL, "gpus": 4, "padding": "free", "token_budget": 131072, "logprob.token_budget": 131072,
                "engine.fraction": 0.3, "response_len": 8192, "engine.max_len": 16384}  # fmt: skip
SFT: Values = {
    "algorithm": "sft", "framework": "loop==5.24.0", "model": "Qwen/Qwen2.5-7B", "gpu": "a100-sxm-80gb",
    "tuning": "lora", "weights_dtype": "bf16", "padding": "free", "packing": False, "micro_batch": 1, "seq_len": 65536,
    "loss": "full", "recompute": "full",
}  # fmt: skip


def tokens_of(job: Values) -> int | None:
    return fits_up_to_tokens(said(job), forecast(said(job), cards=False))


def is_a_yes(job: Values) -> bool:
    answer = forecast(said(job), cards=False)
    return gets_through(answer.verdict, answer.peak)


def test_a_long_sequence_that_fits_when_it_is_short() -> None:
    """The answer fits; one part in 64 of the full length more does not."""
    assert not is_a_yes(SFT)
    tokens = tokens_of(SFT)
    assert tokens is not None
    assert 0 < tokens < 65536
    assert tokens % 1024 == 0
    assert is_a_yes({**SFT, "seq_len": tokens})
    assert not is_a_yes({**SFT, "seq_len": tokens + 1024})


def test_micro_batches_that_are_cut_by_tokens() -> None:
    """What the engine accepts is not shortened: only what the trainer gets at once."""
    assert not is_a_yes(LONG)
    tokens = tokens_of(LONG)
    assert tokens is not None
    fitting, failing = ({**LONG, "token_budget": size, "logprob.token_budget": size}
                        for size in (tokens, tokens + 2048))  # fmt: skip
    assert tokens > 512 + 8192  # a whole sequence, so that nothing else has to be shorter
    assert is_a_yes(fitting)
    assert not is_a_yes(failing)


@pytest.mark.parametrize(
    "job",
    [
        {**SFT, "seq_len": 1024},  # fits as it is
        {**SFT, "padding": "longest"},  # every sequence is as long as the longest
        {**SFT, "packing": True, "framework": "trl==1.16.0"},  # every pack is full
        {**SFT, "gpu": "t4-16gb", "weights_dtype": "fp32", "compute_dtype": "fp16"},  # not even without tokens
        {path: value for path, value in SFT.items() if path != "gpu"},  # no card, no verdict
    ],
)
def test_where_there_is_nothing_to_say(job: Values) -> None:
    assert tokens_of(job) is None


def test_the_first_screen_and_the_json_say_it(tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    file.write_text(json.dumps(SFT), encoding="utf-8")
    tokens = json.loads(run(f"check {file} --json").stdout)["fits_up_to_tokens"]
    assert tokens == tokens_of(SFT)
    assert f"fits while a micro-batch holds at most {tokens:,} tokens" in " ".join(run(f"check {file}").stdout.split())
