"""`check` and `explain --arch` say the same of an engine: weights on a rank, bytes of a token, one sequence's pool."""

from __future__ import annotations

import pytest
from tests.group_jobs import TRL, ask, engine_of, phase_of, terms_of
from tests.random_jobs import said

from vramcast.catalog.models import model_config, model_names
from vramcast.errors import Refused
from vramcast.models.arch import has_head
from vramcast.report.arch import arch_report

LENGTH, BATCHED = 8192, 4096
_TYPES = ("granite", "llama", "mistral", "qwen2", "qwen3")


def _forecast(name: str) -> bool:
    """Models with a program and a head, unless packed: what the trainer does with those is another matter."""
    config = model_config(name).config
    return config.get("model_type") in _TYPES and has_head(config, name) and "quantization_config" not in config


MODELS = [name for name in model_names() if _forecast(name)][::2]
RANKS = (1, 2, 4)


def test_there_are_many() -> None:
    assert len(MODELS) >= 50


@pytest.mark.parametrize("name", MODELS)
def test_one_answer(name: str) -> None:
    heads = model_config(name).config["num_attention_heads"]
    for ranks in (ranks for ranks in RANKS if heads % ranks == 0):
        job = {**TRL, "model": name, "engine.tp": ranks, "gpus": 4, "engine.dtype": "bf16", "engine.max_len": LENGTH,
               "engine.max_batched_tokens": BATCHED, "lora.rank": 8}  # fmt: skip
        answer = ask(job)
        engine = engine_of(answer)
        shown = {"model": name, "engine.kind": "vllm", "tp": ranks, "weights_dtype": "bf16", "seq_len": LENGTH,
                 "engine.max_batched_tokens": BATCHED}  # fmt: skip
        report = arch_report(said(shown))
        kept = report.kept
        assert kept is not None
        weights = terms_of(phase_of(answer, "engine.start"))["engine.weights"]
        assert weights == report.ranks[0].bytes
        assert engine.kv_bytes_per_token == sum(kind.bytes_per_token for kind in kept.kinds)
        assert engine.kv_least_bytes == kept.request_bytes
        if not any(kind.window for kind in kept.kinds):
            assert engine.kv_bytes_per_token == kept.bytes_per_token
            assert engine.kv_least_bytes == kept.sequence_bytes + 16 * kept.bytes_per_token


def test_windows_of_mistral() -> None:
    """Found by use: `check` priced a sequence of 32,768 tokens at 4 GiB, `explain --arch` at 0.5. What vLLM asks for is
    what a layer can see while a step runs: 4095 tokens of the window and two steps of 4096 are 12,287, 768 blocks, one
    that is begun, and one of the pool that is never given out."""
    job = {**TRL, "model": "mistralai/Mistral-7B-v0.1", "engine.max_len": 32_768, "engine.max_batched_tokens": BATCHED}
    engine = engine_of(ask(job))
    assert engine.kv_bytes_per_token == 2 * 32 * 8 * 128 * 2 == 131_072
    assert -(-(4095 + 2 * BATCHED) // 16) == 768
    assert engine.kv_least_bytes == (768 + 1 + 1) * 16 * 131_072
    older = engine_of(ask({**job, "engine.version": "0.19.1"}))  # one step at a time
    assert older.kv_least_bytes == (512 + 1 + 1) * 16 * 131_072
    blocks = engine.kv_bytes // (16 * 131_072)
    assert engine.max_concurrency == blocks // 769
    assert engine.kv_tokens == blocks * 32_768 // 769


def test_an_embedding_model_keeps_nothing() -> None:
    """Its class has no head: nothing is generated, and no cache of 0 bytes a token is shown."""
    name = "intfloat/e5-mistral-7b-instruct"
    assert arch_report(said({"model": name, "engine.kind": "vllm"})).kept is None
    with pytest.raises(Refused, match="has no language-model head"):
        ask({**TRL, "model": name})
