"""An engine's pool: how large, what it holds, what stays when it sleeps, and the share that leaves everyone room."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from tests.group_jobs import TRL, VERL, ask, engine_of, phase_of, terms_of

from vramcast.catalog.gpus import find_gpu
from vramcast.catalog.models import model_config
from vramcast.errors import Refused
from vramcast.memory.loaded import loaded_bytes
from vramcast.types.result import Forecast
from vramcast.validation.serving import served

GIB = 1 << 30
PARTS = ("engine.weights", "engine.activation", "engine.graphs", "engine.runtime")
FRAMEWORKS = {"trl": TRL, "verl": VERL}


# --- its size ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("gpu", "fraction"), [("h100-sxm-80gb", 0.5), ("a100-sxm-80gb", 0.37), ("l40s-48gb", 0.45)])
def test_the_share_less_the_parts(framework: str, gpu: str, fraction: float) -> None:
    """vLLM takes ⌈total × fraction⌉ of what the driver reports, and the cache is what its parts leave."""
    answer = ask({**FRAMEWORKS[framework], "gpu": gpu, "engine.fraction": fraction})
    engine, started = engine_of(answer), terms_of(phase_of(answer, "engine.start"))
    hundredths = round(100 * fraction)
    assert engine.pool_bytes == -(-find_gpu(gpu).total_bytes.value * hundredths // 100)
    assert engine.kv_bytes == engine.pool_bytes - sum(started[name] for name in PARTS) == started["engine.kv"]


def test_what_is_not_known_of_the_parts_is_not_known_of_the_cache() -> None:
    phase = phase_of(ask(TRL), "engine.start")
    parts = [term for term in phase.terms if term.name in PARTS]
    (cache,) = [term for term in phase.terms if term.name == "engine.kv"]
    assert cache.bytes - cache.low_bytes == sum(term.high_bytes - term.bytes for term in parts)
    assert cache.high_bytes - cache.bytes == sum(term.bytes - term.low_bytes for term in parts)


def test_bytes_can_be_said_directly() -> None:
    """kv_cache_memory_bytes: the fraction is not looked at."""
    answer = ask({**TRL, "engine.kv_bytes": "12GiB", "engine.fraction": 0.9})
    parts = terms_of(phase_of(answer, "engine.start"))
    engine = engine_of(answer)
    assert engine.kv_bytes == 12 * GIB
    assert engine.pool_bytes == 12 * GIB + sum(parts[name] for name in PARTS)


# --- what it is good for, by hand -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "ranks", "token"),
    [
        ("Qwen/Qwen2.5-7B", 1, 2 * 28 * 4 * 128 * 2),  # 57,344
        ("Qwen/Qwen2.5-7B", 2, 2 * 28 * 2 * 128 * 2),
        ("Qwen/Qwen2.5-7B", 4, 2 * 28 * 1 * 128 * 2),
        ("Qwen/Qwen2.5-0.5B", 2, 2 * 24 * 1 * 64 * 2),  # 2 key heads
        ("meta-llama/Llama-3.1-8B", 1, 131_072),  # 2 x 32 x 8 x 128 x 2
        ("meta-llama/Llama-3.1-8B", 8, 131_072 // 8),
        ("Qwen/Qwen3-8B", 1, 2 * 36 * 8 * 128 * 2),
    ],
)
def test_bytes_of_a_token(model: str, ranks: int, token: int) -> None:
    """A key and a value in every layer, bf16; ranks share the heads."""
    assert engine_of(ask({**TRL, "model": model, "engine.tp": ranks})).kv_bytes_per_token == token


def test_a_token_in_another_dtype() -> None:
    assert engine_of(ask({**TRL, "engine.kv_dtype": "fp8"})).kv_bytes_per_token == 57_344 // 2
    assert engine_of(ask({**TRL, "engine.dtype": "fp32", "engine.kv_dtype": "fp32"})).kv_bytes_per_token == 2 * 57_344
    with pytest.raises(Refused, match=r"engine\.kv_dtype = fp32 is no dtype of a cache"):
        ask({**TRL, "engine.kv_dtype": "fp32"})


def test_more_ranks_than_key_heads_repeat_them() -> None:
    """0.5B has 14 heads over 2 key heads: 7 ranks keep one key head each."""
    job = {**TRL, "model": "Qwen/Qwen2.5-0.5B", "gpus": 7, "engine.tp": 7, "group": 4}
    assert engine_of(ask(job)).kv_bytes_per_token == 2 * 24 * 1 * 64 * 2


def test_tokens_concurrency_and_waves() -> None:
    # 10 GiB in blocks of 16 tokens of 57,344 bytes: 11,702 blocks and a rest.
    job = {**TRL, "engine.kv_bytes": "10GiB", "engine.max_len": 4096}
    engine = engine_of(ask(job))
    assert 10 * GIB // (16 * 57_344) == 11_702
    assert engine.kv_tokens == 16 * 11_702 == 187_232
    # A sequence of 4096 tokens takes 256 blocks: vLLM's own "maximum concurrency".
    assert engine.max_concurrency == 11_702 // 256 == 45
    # A response of this job ends after 512 + 1024 tokens, 96 blocks: 121 at once. TRL lets the engine run the 4 x 2
    # sequences of its rank at once: one wave.
    assert engine.waves == 1
    # verl: 256 x 8 responses over 8 engines, 256 each, and no more than 121 at once.
    assert engine_of(ask({**VERL, "engine.kv_bytes": "10GiB", "engine.max_len": 4096})).waves == -(-256 // 121) == 3
    # no more than max_num_seqs at once
    assert engine_of(ask({**VERL, "engine.kv_bytes": "10GiB", "engine.max_seqs": 32})).waves == 256 // 32 == 8


# --- sums -------------------------------------------------------------------------------------------------------------

_SUMS: list[dict[str, Any]] = [
    TRL,
    {**TRL, "shard": "none"},
    {**TRL, "engine.sleep": "2"},
    {**TRL, "engine.kind": "hf"},
    {**TRL, "tuning": "lora", "gpus": 1, "reference.kind": "adapter_off"},
    {**TRL, "reference.kind": "copy", "shard": "fsdp1"},
    VERL,
    {**VERL, "engine.tp": 2, "reference.kind": "copy"},
    {**VERL, "engine.sleep": "1", "offload.weights": "cpu", "offload.optimizer": "cpu"},
    {**VERL, "token_budget": 16384, "logprob.token_budget": 32768},
    {**VERL, "engine.kv_bytes": "8GiB", "engine.eager": True},
]


@pytest.mark.parametrize("job", _SUMS)
def test_terms_are_the_phase_and_the_processes(job: dict[str, Any]) -> None:
    for phase in ask(job).groups[0].phases:
        assert sum(term.bytes for term in phase.terms) == phase.bytes
        assert sum(process.reserved_bytes + process.other_bytes for process in phase.processes) == phase.bytes
        assert sum(term.low_bytes for term in phase.terms) == phase.low_bytes
        assert sum(term.high_bytes for term in phase.terms) == phase.high_bytes
        assert all(0 <= term.low_bytes <= term.bytes <= term.high_bytes for term in phase.terms)
        assert {term.process for term in phase.terms} <= {process.name for process in phase.processes}


# --- asleep -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("level", ["1", "2"])
def test_a_sleeping_engine_holds_what_is_declared_to_stay(framework: str, level: str) -> None:
    """Graphs, what lies outside PyTorch and, in a process of its own, the context."""
    answer = ask({**FRAMEWORKS[framework], "engine.sleep": level})
    asleep = [phase for phase in answer.groups[0].phases if phase.states["rollout"] == "rest"]
    assert {phase.name for phase in asleep} == {"score.old", "forward", "loss", "backward", "step"}
    context = {"cuda.context"} if framework == "verl" else set[str]()
    for phase in asleep:
        assert set(terms_of(phase)) == {"engine.graphs", "engine.runtime", *context}


def test_an_engine_without_graphs_leaves_less() -> None:
    answer = ask({**VERL, "engine.sleep": "2", "engine.eager": True})
    assert set(terms_of(phase_of(answer, "step"))) == {"engine.runtime", "cuda.context"}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_engine_that_does_not_sleep_keeps_weights_and_pool(framework: str) -> None:
    answer = ask({**FRAMEWORKS[framework], "engine.sleep": "none"})
    for phase in answer.groups[0].phases:
        held = set(terms_of(phase))
        assert ({"engine.weights", "engine.kv"} <= held) == (phase.states["rollout"] != "absent")


def test_weights_wake_for_the_sync_and_the_pool_later() -> None:
    held = terms_of(phase_of(ask({**VERL, "engine.sleep": "2"}), "sync"))
    assert "engine.weights" in held
    assert "engine.kv" not in held


@pytest.mark.parametrize(("level", "pinned"), [("none", 0), ("1", 8), ("2", 0)])
def test_level_one_keeps_weights_on_the_host(level: str, pinned: int) -> None:
    """Every rank of the machine pins its own copy."""
    answer = ask({**VERL, "engine.sleep": level})
    weights = terms_of(phase_of(answer, "engine.start"))["engine.weights"]
    assert sum(node.host_pinned_bytes for node in answer.nodes) == pinned * weights


# --- the window -------------------------------------------------------------------------------------------------------

_WINDOWS = [
    {**job, "model": model, "gpu": gpu, "gpus": gpus, "engine.sleep": sleep}
    for job in (TRL, VERL)
    for model in ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-7B", "Qwen/Qwen3-8B")
    for gpu, gpus in (("h100-sxm-80gb", 8), ("a100-sxm-80gb", 4), ("h200-sxm-141gb", 2))
    for sleep in ("none", "2")
]


@pytest.mark.parametrize("job", _WINDOWS)
def test_shares_inside_the_window_work_and_others_may_not(job: dict[str, Any]) -> None:
    """At both ends one sequence fits into the pool and the rest beside it, whatever of the ranges is true; a hundredth
    beyond an end it may not. An engine that never sleeps does not use its working memory while the trainer has its
    peak: so much is spare."""
    engine = engine_of(ask(job))
    low, high = engine.fraction_low, engine.fraction_high
    assert low is not None
    assert high is not None
    assert 0 < low < high < 1
    tokens = job["engine.max_len"] + 16  # one block is reserved

    @cache
    def at(fraction: float) -> Forecast:
        return ask({**job, "engine.fraction": round(fraction, 2)})

    def cache_at_least(fraction: float) -> int:
        return next(term.low_bytes for term in phase_of(at(fraction), "engine.start").terms if term.name == "engine.kv")

    def free_at_least(fraction: float) -> int:
        answer = at(fraction)
        mapped = [phase.terms for phase in answer.groups[0].phases if "engine.kv" in terms_of(phase)]
        needs = [[term.bytes if term.counter == "cached" else term.high_bytes for term in terms] for terms in mapped]
        return (answer.peak.capacity_bytes or 0) - max(map(sum, needs))  # what is only cached is given back

    for fraction in (low, high):
        assert (at(fraction).peak.margin_bytes or -1) >= 0, fraction
        assert not [warning for warning in at(fraction).warnings if "pool" in warning]
        assert cache_at_least(fraction) >= tokens * engine.kv_bytes_per_token
        assert free_at_least(fraction) >= 0
    assert cache_at_least(low - 0.01) < tokens * engine.kv_bytes_per_token
    spare = 0
    if job["engine.sleep"] == "none":
        (spare,) = (term.high_bytes for term in phase_of(at(high), "engine.start").terms
                    if term.name == "engine.activation")  # fmt: skip
    assert free_at_least(high + 0.01) < spare


def test_no_window_without_a_card() -> None:
    engine = engine_of(ask({path: value for path, value in TRL.items() if path != "gpu"}))
    assert (engine.fraction_low, engine.fraction_high) == (None, None)


def test_a_pool_smaller_than_one_sequence() -> None:
    """Weights alone are 14.2 GiB of the 15.8 GiB asked for."""
    answer = ask({**TRL, "engine.fraction": 0.2, "engine.max_len": 32768})
    assert answer.verdict == "does_not_fit"
    assert answer.warnings == [
        "the engine's pool holds 0 tokens, less than one sequence of 32,768; raise engine.fraction to 0.24 or lower "
        "engine.max_len: it will not start"
    ]


# --- against vLLM's own log -------------------------------------------------------------------------------------------


def test_llama_on_h100_as_vllm_logged_it() -> None:
    """Llama-3.1-8B, bf16, one H100, utilisation 0.95, 8192 tokens a step, 1024 sequences, 8192 long, vLLM 0.19: weights
    14.99 GiB, activation 1.89 (1.876 by the same rule), cache 58.11.

    0.19 did not subtract its CUDA graphs from the cache; 0.33 does, and so do we: compared is the cache with the graphs
    added back.
    """
    job = {
        **TRL, "model": "meta-llama/Llama-3.1-8B", "gpus": 1, "shard": "none", "engine.fraction": 0.95,
        "engine.max_batched_tokens": 8192, "engine.max_seqs": 1024, "engine.max_len": 8192,
    }  # fmt: skip
    answer = ask(job)
    engine, parts = engine_of(answer), terms_of(phase_of(answer, "engine.start"))
    assert parts["engine.weights"] == (8_030_261_248 + 131_072 * 128) * 2
    assert parts["engine.weights"] / GIB == pytest.approx(14.99, rel=0.001)
    assert parts["engine.activation"] / GIB == pytest.approx(1.876, rel=0.001)
    assert (engine.kv_bytes + parts["engine.graphs"]) / GIB == pytest.approx(58.11, rel=0.001)
    assert engine.kv_bytes_per_token == 131_072
    # The log's 29,751 blocks of 16 tokens, from a cache as large as the logged one.
    logged = engine_of(ask({**job, "engine.kv_bytes": f"{round(58.11 * GIB)}B"}))
    assert logged.kv_tokens / 16 == pytest.approx(29_751, abs=2)
    assert logged.max_concurrency == 58


@pytest.mark.parametrize("model", ["Qwen/Qwen2.5-7B", "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-8B"])
def test_ranks_hold_the_model_and_what_each_repeats(model: str) -> None:
    """Norms and the table of positions are whole on every rank; the rest is shared."""
    one, four = (served({"model": model, "engine.kind": "vllm", "engine.tp": ranks}) for ranks in (1, 4))
    for held in (one, four):
        started = terms_of(phase_of(ask({**TRL, "model": model, "engine.tp": held.cut.tp}), "engine.start"))
        assert started["engine.weights"] == loaded_bytes(held)
    config = model_config(model).config
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    norms = layers * (2 * hidden + (2 * head if config["model_type"] == "qwen3" else 0)) + hidden
    repeated = 2 * (norms + config["max_position_embeddings"] * head)
    assert 4 * sum(four.tensors()) - sum(one.tensors()) == 3 * repeated
