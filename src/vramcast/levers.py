"""Levers: edits of a job that lower its peak. What one saves is always the job estimated again, never a formula."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from vramcast.errors import Refused
from vramcast.estimate import Resolved, edited, forecast, resolve
from vramcast.readers import native_keys
from vramcast.types.job import Understanding
from vramcast.types.paths import Value
from vramcast.types.result import Forecast, LeverResult, Price

_PRICES: tuple[Price, ...] = ("free", "slower", "numerics", "quality")


class Lever(Struct, frozen=True):
    """A named edit. `edit` gives the paths to set, or None where it does not apply; its docstring says what it does."""

    name: str
    price: Price
    edit: Callable[[Resolved, Forecast], dict[str, Value] | None]
    native_only: bool = False
    """applies only where the framework has a key for it"""


def _recompute(job: Resolved, answer: Forecast) -> dict[str, Value] | None:
    """Recompute activations in backward: keep one hidden state a layer, pay about a third more compute."""
    return {"recompute": "full"} if _trains(job) and job.settings.recompute == "none" else None


def _smaller_batch(job: Resolved, answer: Forecast) -> dict[str, Value] | None:
    """Half the micro-batch and twice the accumulation: the same step from smaller pieces."""
    micro, accumulation = job.settings.micro_batch, job.settings.accumulation
    if not _trains(job) or micro % 2 or job.settings.token_budget:
        return None
    if job.settings.mini_batch:  # the accumulation follows
        return {"micro_batch": micro // 2}
    return {"micro_batch": micro // 2, "accumulation": accumulation * 2}


def _smaller_budget(job: Resolved, answer: Forecast) -> dict[str, Value] | None:
    """Half the tokens of a packed micro-batch, down to one sequence."""
    budget = job.settings.token_budget
    return {"token_budget": budget // 2} if budget and budget // 2 >= job.settings.seq_len else None


def _smaller_scoring(job: Resolved, answer: Forecast) -> dict[str, Value] | None:
    """Half the sequences of a log-probability pass."""
    micro = job.settings.logprob_micro_batch
    return {"logprob.micro_batch": micro // 2} if _rollouts(job) and micro and micro > 1 else None


def _bf16_weights(job: Resolved, answer: Forecast) -> dict[str, Value] | None:
    """Load the weights in bf16 instead of fp32: half the weights, gradients and states, and no autocast copies."""
    if job.settings.weights_dtype != "fp32" or not job.gpu.has_bf16:
        return None
    return {"weights_dtype": "bf16"}


def _fused_step(job: Resolved, answer: Forecast) -> dict[str, Value] | None:
    """The fused optimizer kernel: no copy of the variance during the step."""
    return {"optimizer.impl": "fused"} if _trains(job) and job.settings.optimizer_impl != "fused" else None


def _expandable(job: Resolved, answer: Forecast) -> dict[str, Value] | None:
    """Expandable segments: the allocator keeps no remainders of 2 MiB segments. vLLM's sleep mode forbids them."""
    if job.settings.allocator or job.settings.engine_sleep != "none":
        return None
    return {"allocator": "expandable_segments:True"}


def _shard(job: Resolved, answer: Forecast) -> dict[str, Value] | None:
    """FSDP: share weights, gradients and states over the GPUs instead of copying them to each."""
    return {"shard": "fsdp2"} if _trains(job) and job.settings.gpus > 1 and job.settings.shard == "none" else None


def _sleep(job: Resolved, answer: Forecast) -> dict[str, Value] | None:
    """Let the engine sleep while the trainer works: its weights and cache go, and come back for the next rollout."""
    return {"engine.sleep": "2"} if _rollouts(job) and job.settings.engine_sleep == "none" else None


def _fraction(job: Resolved, answer: Forecast) -> dict[str, Value] | None:
    """The largest share that leaves the trainer its room, if one sequence still fits into it."""
    engine = next((engine for group in answer.groups for engine in group.engines), None)
    if engine is None or engine.fraction_low is None or engine.fraction_high is None:
        return None
    now = job.settings.engine_fraction or 0
    if engine.fraction_low > engine.fraction_high or engine.fraction_low <= now <= engine.fraction_high:
        return None
    return {"engine.fraction": engine.fraction_high if now > engine.fraction_high else engine.fraction_low}


def _offload_optimizer(job: Resolved, answer: Forecast) -> dict[str, Value] | None:
    """Optimizer states wait on the host while nothing trains."""
    if not _rollouts(job) or job.settings.offload_optimizer != "none" or job.settings.shard == "none":
        return None
    return {"offload.optimizer": "cpu"}


def _offload_weights(job: Resolved, answer: Forecast) -> dict[str, Value] | None:
    """The trainer's weights wait on the host while the engine generates."""
    if not _rollouts(job) or job.settings.offload_weights != "none" or job.settings.shard == "none":
        return None
    return {"offload.weights": "cpu"}


def _lora(job: Resolved, answer: Forecast) -> dict[str, Value] | None:
    """Train adapters instead of all weights: gradients and optimizer states all but vanish."""
    if not _trains(job) or job.settings.tuning != "full":
        return None
    return {"tuning": "lora", "reference.kind": "adapter_off"} if _has_copy(job) else {"tuning": "lora"}


def _shorter(job: Resolved, answer: Forecast) -> dict[str, Value] | None:
    """Half the longest sequence, or half the response: activations, logits and cache shrink."""
    if job.settings.algorithm == "grpo":
        response = job.settings.response_len or 0
        return {"response_len": response // 2} if response > 1 else None
    return {"seq_len": job.settings.seq_len // 2} if job.settings.seq_len > 1 else None


def _fewer_sequences(job: Resolved, answer: Forecast) -> dict[str, Value] | None:
    """Half the sequences at once."""
    if job.settings.algorithm != "inference" or job.settings.micro_batch < 2:
        return None
    return {"micro_batch": job.settings.micro_batch // 2}


def _lower_rank(job: Resolved, answer: Forecast) -> dict[str, Value] | None:
    """Half the rank of the adapters."""
    if job.settings.tuning != "lora" or job.settings.lora_rank < 2:
        return None
    return {"lora.rank": job.settings.lora_rank // 2}


def _trains(job: Resolved) -> bool:
    return job.settings.algorithm != "inference"


def _rollouts(job: Resolved) -> bool:
    return job.settings.algorithm == "grpo" and job.settings.engine_kind == "vllm"


def _has_copy(job: Resolved) -> bool:
    return job.settings.reference_kind == "copy"


LEVERS = (
    Lever("fused-step", "free", _fused_step),
    Lever("expandable-segments", "free", _expandable),
    Lever("engine-fraction", "free", _fraction),
    Lever("recompute", "slower", _recompute),
    Lever("smaller-micro-batch", "slower", _smaller_batch),
    Lever("smaller-token-budget", "slower", _smaller_budget),
    Lever("smaller-scoring-batch", "slower", _smaller_scoring),
    Lever("fewer-sequences", "slower", _fewer_sequences),
    Lever("shard", "slower", _shard),
    Lever("engine-sleep", "slower", _sleep),
    Lever("offload-optimizer", "slower", _offload_optimizer, native_only=True),
    Lever("offload-weights", "slower", _offload_weights, native_only=True),
    Lever("bf16-weights", "numerics", _bf16_weights),
    Lever("lora", "quality", _lora),
    Lever("lower-rank", "quality", _lower_rank),
    Lever("shorter-sequences", "quality", _shorter),
)
"""All levers, the cheapest prices first."""


def pull(said: Understanding, answer: Forecast) -> list[LeverResult]:
    """Every lever that lowers the peak of the job, the best first.

    A job that does not fit: first what makes it fit, by price, then what saves most. A job that fits: by price, savings
    below a hundredth last.
    """
    job = resolve(said)
    found = [result for lever in LEVERS for result in _pulled(lever, job, said, answer)]
    return sorted(found, key=lambda result: _rank(result, answer))


def _pulled(lever: Lever, job: Resolved, said: Understanding, answer: Forecast) -> Iterator[LeverResult]:
    edits = lever.edit(job, answer)
    native = native_keys(job.framework, edits) if edits else {}
    if edits is None or (lever.native_only and not native):
        return
    try:
        after = forecast(edited(said, dict(edits), f"lever {lever.name}"))
    except Refused:
        return  # the edit contradicts something the user set
    saved = answer.peak.bytes - after.peak.bytes
    if saved > 0 or (answer.verdict == "does_not_fit" and after.verdict == "fits"):
        yield LeverResult(
            name=lever.name,
            set=edits,
            native=native,
            peak_bytes=after.peak.bytes,
            saves_bytes=saved,
            price=lever.price,
            verdict=after.verdict,
        )


def _rank(result: LeverResult, answer: Forecast) -> tuple[bool, bool, int, int]:
    stuck = answer.verdict in ("does_not_fit", "tight")
    helps = not stuck or result.verdict == "fits"
    small = result.saves_bytes * 100 < answer.peak.bytes
    return (
        not helps,
        small and not (stuck and helps),
        _PRICES.index(result.price) if helps else 0,
        -result.saves_bytes,
    )
