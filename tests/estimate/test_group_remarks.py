"""What a GRPO job is told beside its forecast: values without effect, lengths that do not go together, no window."""

from __future__ import annotations

import pytest
from tests.group_jobs import TRL, VERL, ask, engine_of, phase_of, terms_of
from tests.random_jobs import said

from vramcast.errors import Refused
from vramcast.estimate import forecast


def test_a_length_that_prompt_and_response_override() -> None:
    answer = forecast(said({**TRL, "seq_len": 8192}))
    assert [(item.value, item.why) for item in answer.ineffective if item.path == "seq_len"] == [
        (8192, "a sequence is prompt_len + response_len")
    ]
    assert "seq_len" not in {item.path for item in forecast(said({**TRL, "seq_len": 512 + 1024})).ineffective}


def test_an_engine_that_cuts_sequences() -> None:
    warning = "engine.max_len = 1,500 is below prompt_len + response_len = 1,536: longer sequences are cut or refused"
    assert warning in ask({**TRL, "engine.max_len": 1500}).warnings
    assert not [text for text in ask({**TRL, "engine.max_len": 1536}).warnings if "engine.max_len" in text]


def test_a_mini_batch_above_the_rollout() -> None:
    assert "mini_batch = 64 is above prompts_per_step = 32: verl refuses that" in (
        ask({**VERL, "prompts_per_step": 32}).warnings
    )
    assert not [text for text in ask(VERL).warnings if "mini_batch" in text]


def test_a_group_of_one() -> None:
    text = "group = 1: a group of one response has no advantage to learn from"
    assert text in ask({**TRL, "group": 1}).warnings
    assert text not in ask({**TRL, "group": 1, "grpo.variant": "reinforce_pp"}).warnings


def test_adapters_that_are_not_there_cannot_be_off() -> None:
    with pytest.raises(Refused) as refused:
        ask({**TRL, "reference.kind": "adapter_off"})
    assert str(refused.value).splitlines()[0] == (
        "error: reference.kind = adapter_off needs adapters, and all weights are trained"
    )


def test_no_share_is_free_on_a_card_that_training_fills() -> None:
    """Without a shard a step alone fills 80 GB: weights, gradients, buckets and two moments of 14.2 GiB each."""
    engine = engine_of(ask({**VERL, "shard": "none", "weights_dtype": "bf16"}))
    assert engine.fraction_high == 0


def test_limits_of_the_engine_follow_the_card() -> None:
    """vLLM's own: 1024 sequences and 16384 tokens a step from 70 GiB on, but not on an A100. Activation of Qwen2.5-7B:
    the sampler on H100, max(forward, rows + 14.7 bytes x 1024 x 152064); the forward over 8192 tokens on A100."""
    job = {path: value for path, value in VERL.items() if path not in ("framework", "mini_batch")}
    job |= {"framework": "transformers==5.24.0", "engine.process": "own", "engine.sleep": "none"}
    large = terms_of(phase_of(ask(job), "engine.start"))["engine.activation"]
    small = terms_of(phase_of(ask({**job, "gpu": "a100-sxm-80gb"}), "engine.start"))["engine.activation"]
    assert large == max(16384 * (3 * 18944 + 4 * 3584) * 2, 3584 * (16384 + 2048) * 2 + 1024 * 152064 * 147 // 10)
    assert small == max(8192 * (3 * 18944 + 4 * 3584) * 2, 3584 * (8192 + 512) * 2 + 256 * 152064 * 147 // 10)


def test_the_sampler_has_no_more_rows_than_tokens() -> None:
    few = {**TRL, "engine.max_batched_tokens": 64, "engine.max_seqs": 512}
    found = terms_of(phase_of(ask(few), "engine.start"))["engine.activation"]
    assert found == 3584 * (64 + 2 * 64) * 2 + 64 * 152064 * 147 // 10 > 64 * (3 * 18944 + 4 * 3584) * 2
