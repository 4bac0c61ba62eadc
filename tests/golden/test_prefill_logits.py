"""Of which tokens `generate` makes logits in its first pass: by version, all or the last one."""

from __future__ import annotations

import pytest
from tests.jobs import Instant, check, phases, terms

PROMPT = 30_720
HEAD: Instant = ("generate", "first token", "steady")
JOB = (
    f"--set algorithm=inference --set weights_dtype=bf16 --set attention=flash --set prompt_len={PROMPT} "
    "--set response_len=2048 --gpu a100-sxm-80gb"
).split()
QWEN = ("--model", "Qwen/Qwen2.5-7B-Instruct")  # 3584 wide, 152,064 words
GRANITE = ("--model", "ibm-granite/granite-3.1-8b-instruct")  # 4096 wide, 49,155 words; it divides its logits


def logits(model: tuple[str, ...], version: str, prompt: int = PROMPT) -> int:
    answer = check(*model, *JOB, "--set", f"framework=transformers=={version}", "--set", f"prompt_len={prompt}")
    return terms(phases(answer)[HEAD])["logits"]


@pytest.mark.parametrize("version", ["4.38.2", "4.44.2"])
def test_before_4_45_all_in_16_bits_and_fp32(version: str) -> None:
    """Found by use (the Qwen2 speed table): 954.2 KiB a token are 891.0 of logits, 7.0 of the hidden state behind them
    and 56 of cache, which is a term of its own; 42.62 GiB were measured."""
    token = logits(QWEN, version) - logits(QWEN, version, PROMPT - 1)
    assert token == 152_064 * (2 + 4) + 3584 * 2 == (891 + 7) * 1024
    whole = check(*QWEN, *JOB, "--set", f"framework=transformers=={version}")
    assert 42.5 < whole["peak"]["bytes"] / 2**30 < 43.0


@pytest.mark.parametrize("version", ["4.45.0", "4.51.3", "5.24.0"])
def test_since_4_45_the_last_one(version: str) -> None:
    token = logits(QWEN, version) - logits(QWEN, version, PROMPT - 1)
    assert token < 5 * 3584 * 2  # hidden states and what their norm makes: no logits


@pytest.mark.parametrize(
    ("version", "copies"),
    [
        ("4.44.2", 2 + 4),  # scaled logits beside their fp32 copy
        ("4.45.0", 4 + 4),  # the fp32 copy, and the loop's copy of that
        ("4.46.0", 2 + 2),  # no fp32 copy any more
        ("4.47.1", 2 + 2),
    ],
)
def test_granites_class_came_later(version: str, copies: int) -> None:
    """transformers 4.48 is the first whose `models/granite` takes `num_logits_to_keep`."""
    whole, one_less = logits(GRANITE, version), logits(GRANITE, version, PROMPT - 1)
    hidden = 4096 * 2 if version != "4.45.0" else 0  # the model's forward is over when the loop copies
    assert whole - one_less == 49_155 * copies + hidden
    assert logits(GRANITE, "4.48.0") < whole / 4
