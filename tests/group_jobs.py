"""GRPO jobs for tests that ask more than one question of each."""

from __future__ import annotations

from typing import Any

from tests.random_jobs import said

from vramcast.estimate import forecast
from vramcast.types.result import EngineBytes, Forecast, PhaseBytes

Values = dict[str, Any]

_GRPO: Values = {
    "algorithm": "grpo", "model": "Qwen/Qwen2.5-7B", "gpu": "h100-sxm-80gb", "gpus": 8, "weights_dtype": "bf16",
    "shard": "fsdp2", "group": 8, "prompt_len": 512, "response_len": 1024, "micro_batch": 4, "accumulation": 2,
    "engine.kind": "vllm", "engine.tp": 1, "engine.fraction": 0.4, "engine.max_len": 4096,
}  # fmt: skip
TRL: Values = {**_GRPO, "framework": "trl==1.16.0"}
"""The engine is in the trainer's process and does not sleep."""
VERL: Values = {
    **{path: value for path, value in _GRPO.items() if path != "accumulation"},  # the mini-batch says it
    "framework": "verl==0.9.1", "prompts_per_step": 256, "mini_batch": 64,
}  # fmt: skip
"""The engine has a process of its own and sleeps at level 2."""
SFT: Values = {
    "framework": "trl==1.16.0", "algorithm": "sft", "model": "Qwen/Qwen2.5-7B", "gpu": "a100-sxm-80gb",
    "weights_dtype": "bf16", "micro_batch": 4, "seq_len": 4096,
}  # fmt: skip
INFERENCE: Values = {
    "framework": "transformers==5.24.0", "algorithm": "inference", "model": "Qwen/Qwen2.5-7B", "gpu": "l40s-48gb",
    "micro_batch": 8, "seq_len": 8192,
}  # fmt: skip
"""One GPU that trains, and one that generates."""


def ask(values: Values) -> Forecast:
    return forecast(said(values), cards=False)


def engine_of(answer: Forecast) -> EngineBytes:
    """The one engine of a job with one group."""
    (engine,) = answer.groups[0].engines
    return engine


def phase_of(answer: Forecast, name: str) -> PhaseBytes:
    """The first instant of a phase."""
    return next(phase for phase in answer.groups[0].phases if phase.name == name)


def terms_of(phase: PhaseBytes, role: str = "rollout") -> dict[str, int]:
    """Term → bytes of one role."""
    return {term.name: term.bytes for term in phase.terms if term.role == role}
