"""Faults that were found by use: a value that was dropped is used, refused by its name, or listed with its cause."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cli.cases import run
from tests.random_jobs import Values, said

from vramcast.errors import Refused
from vramcast.estimate import forecast
from vramcast.types.result import Forecast

_CARD: Values = {"model": "Qwen/Qwen2.5-0.5B", "gpu": "a100-sxm-80gb"}
_SFT: Values = {**_CARD, "algorithm": "sft", "framework": "trl==1.16.0"}
_GRPO: Values = {
    **_CARD, "algorithm": "grpo", "framework": "trl==1.16.0", "prompt_len": 256, "response_len": 256, "group": 8,
    "micro_batch": 8, "engine.kind": "vllm", "engine.fraction": 0.4,
}  # fmt: skip
_INFERENCE: Values = {**_CARD, "algorithm": "inference"}
SERVED: Values = {
    "algorithm": "inference", "model": "meta-llama/Llama-3.2-3B", "gpu": "rtx-4080", "engine.kind": "vllm",
    "engine.fraction": 1.0, "engine.max_len": 131072,
}  # fmt: skip


def _causes(answer: Forecast) -> dict[str, str]:
    return {item.path: item.why for item in answer.ineffective}


# --- an engine that serves alone --------------------------------------------------------------------------------------


def test_an_engine_whose_cache_holds_no_sequence_of_its_length_does_not_start() -> None:
    """A key and a value, 28 layers, 8 heads of 128, 2 bytes: 114,688 bytes a token, 14.0 GiB for 131,072 of them. The
    card has 15.7 GiB, and the weights are 6.0 of them."""
    answer = forecast(said(SERVED))
    (engine,) = answer.groups[0].engines
    assert answer.verdict == "does_not_fit"
    assert engine.kv_bytes_per_token == 2 * 28 * 8 * 128 * 2 == 114_688
    assert engine.kv_bytes < 131072 * engine.kv_bytes_per_token == 14 * 2**30
    weights = {term.name: term.bytes for term in answer.groups[0].phases[0].terms}["engine.weights"]
    assert round(weights / 2**30, 1) == 6.0
    assert any("less than one sequence of 131,072; lower engine.max_len: it will not start" in text
               for text in answer.warnings)  # fmt: skip


def test_a_shorter_limit_starts() -> None:
    answer = forecast(said({**SERVED, "engine.max_len": 8192, "engine.fraction": 0.9}))
    (engine,) = answer.groups[0].engines
    assert answer.verdict != "does_not_fit"
    assert engine.max_concurrency == engine.kv_tokens // 8192 > 0


def test_what_an_engine_is_served_with_by_default() -> None:
    """vLLM: 0.92 of the card, the model's own length, the checkpoint's dtype; nothing of `generate` is priced."""
    answer = forecast(said({**_INFERENCE, "engine.kind": "vllm"}))
    found = {item.path: item.value for item in answer.assumptions}
    assert (found["engine.fraction"], found["engine.max_len"], found["engine.dtype"]) == (0.92, 32768, "bf16")
    assert {phase.name for phase in answer.groups[0].phases} == {"engine.start", "generate"}
    assert not {term.name for phase in answer.groups[0].phases for term in phase.terms} & {"weights", "kv_cache"}


def test_an_engine_over_several_gpus() -> None:
    """Half of the weights on each of two."""
    one, two = (
        forecast(said({**SERVED, "gpus": gpus, "engine.tp": gpus, "engine.max_len": 4096})).groups[0].engines[0]
        for gpus in (1, 2)
    )
    assert two.kv_bytes_per_token * 2 == one.kv_bytes_per_token
    assert two.kv_tokens > 2 * one.kv_tokens


# --- refused by name --------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Values, str]] = {
    "states on the host in supervised training": (
        {**_SFT, "offload.optimizer": "cpu"}, "offload.optimizer = cpu is not modelled yet"),
    "weights on the host in inference": (
        {**_INFERENCE, "offload.weights": "cpu"},
        "offload.weights = cpu is not modelled yet"),
    "nothing generates": ({**_INFERENCE, "engine.kind": "none"}, "engine.kind = none: nothing would generate"),
    "a frozen policy": ({**_GRPO, "tuning": "frozen"}, "tuning = frozen leaves nothing to train"),
    "experts of a dense model": (
        {**_INFERENCE, "quant.kind": "mxfp4"},
        "quant.kind = mxfp4 packs the experts of a model, and Qwen/Qwen2.5-0.5B has none"),
    "more than the card": (
        {**_SFT, "gpu": "l4", "busy_bytes": "30GiB"},
        "busy_bytes = 30GiB: other processes cannot hold that much of l4-24gb"),
    "more engines than cards": (
        {**_GRPO, "engine.count": 2}, "engine.count = 2 engines of 1 GPUs each are more than gpus = 1"),
    "another model as reference": (
        {**_GRPO, "reference.kind": "copy", "reference.model": "Qwen/Qwen2.5-1.5B"},
        "reference.model = Qwen/Qwen2.5-1.5B is not modelled yet"),
    "a packed reference": (
        {**_GRPO, "reference.kind": "copy", "reference.quant.kind": "fp8"},
        "reference.quant.kind = fp8 is not modelled yet"),
    "shares of a reference": (
        {**_GRPO, "gpus": 4, "shard": "fsdp2", "reference.kind": "copy", "reference.shard_size": 3},
        "reference.shard_size = 3 does not divide gpus = 4"),
    "the policy by its name": (
        {**_SFT, "policy.micro_batch": 4}, "policy.micro_batch: what is the policy's has no prefix"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_modelled_is_refused_by_its_name(name: str) -> None:
    values, fact = REFUSED[name]
    with pytest.raises(Refused) as refused:
        forecast(said(values))
    assert [mistake.fact for mistake in refused.value.mistakes] == [fact]


# --- listed with the cause --------------------------------------------------------------------------------------------

LISTED: dict[str, tuple[Values, str, Any, str]] = {
    "without autocast": (
        {**_CARD, "algorithm": "pretrain"}, "compute_dtype", "fp32",
        "without autocast products run in the dtype of the weights"),
    "fp32 shards": (
        {**_SFT, "gpus": 4, "shard": "fsdp2", "autocast": True}, "weights_dtype", "bf16",
        "FSDP's mixed precision keeps what trains in fp32"),
    "machines": (_SFT, "gpus_per_node", 4, "nothing of this job is on the host"),
    "the engine's version": (
        _GRPO, "engine.version", "0.9.1", "the terms of this job are the same in the version that is assumed"),
    "tokens of a generation": (_INFERENCE, "token_budget", 4096, "generation takes micro_batch sequences"),
    "a critic where there is none": (_SFT, "critic.micro_batch", 4, "this job has no critic"),
    "a copy that does not train": (
        {**_GRPO, "reference.kind": "copy"}, "reference.optimizer", "sgd", "the reference only scores"),
    "the dtype of another engine": (
        {**_INFERENCE, "engine.kind": "vllm"}, "weights_dtype", "fp32",
        "an engine has values of its own: engine.dtype, engine.quant, engine.max_batched_tokens"),
    "without a known cause": (_GRPO, "engine.dtype", "fp16", "the answer is the same with bf16"),
    "null is said too": ({**_SFT, "tuning": "full"}, "lora.targets", "q_proj", "only with tuning=lora or qlora"),
}  # fmt: skip


@pytest.mark.parametrize("name", LISTED)
def test_what_changes_nothing_is_listed_with_its_cause(name: str) -> None:
    base, path, value, why = LISTED[name]
    answer = forecast(said({**base, path: value}))
    assert _causes(answer)[path] == why
    assert answer.groups == forecast(said(base)).groups


def test_what_the_job_has_anyway_is_not_listed() -> None:
    assert "optimizer" not in _causes(forecast(said({**_SFT, "optimizer": "adamw"})))


def test_a_value_that_matters_is_not_listed() -> None:
    answer = forecast(said({**_SFT, "micro_batch": 3, "seq_len": 512, "weights_dtype": "bf16"}))
    assert not {"micro_batch", "seq_len", "weights_dtype"} & set(_causes(answer))


def test_nothing_generates_where_responses_come_from_elsewhere() -> None:
    names = {phase.name for phase in forecast(said({**_GRPO, "engine.kind": "none"})).groups[0].phases}
    assert "generate" not in names
    assert {"forward", "step"} <= names


# --- all mistakes at once ---------------------------------------------------------------------------------------------


def test_a_bad_framework_hides_no_other_mistake() -> None:
    found = run(
        "check --model Qwen/Qwen2.5-7B --gpu nocard --gpus 4 --set framework=nope --set shard_size=3 --set tp=3 "
        "--set recompute=selective"
    )
    facts = [line for line in found.stderr.splitlines() if line.startswith("error:")]
    assert found.exit == 2
    assert facts == [
        "error: unknown GPU 'nocard'",
        "error: unknown framework 'nope'",
        "error: tp = 3 does not divide heads = 28",
        "error: shard_size = 3 does not divide gpus = 4",
        "error: recompute = selective is not modelled yet",
    ]


def test_a_bad_model_hides_no_mistake_that_needs_none() -> None:
    found = run("check --model nomodel --gpus 4 --set algorithm=inference --set prompt_len=9000 --set seq_len=100")
    facts = [line for line in found.stderr.splitlines() if line.startswith("error:")]
    assert found.exit == 2
    assert facts[1:] == [
        "error: inference on several GPUs is not modelled yet",
        "error: prompt_len = 9000 is above seq_len = 100",
    ]
