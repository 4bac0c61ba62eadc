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
    edit: Callable[[Resolved], dict[str, Value] | None]


def _recompute(job: Resolved) -> dict[str, Value] | None:
    """Recompute activations in backward: keep one hidden state a layer, pay about a third more compute."""
    return {"recompute": "full"} if _trains(job) and job.settings.recompute == "none" else None


def _smaller_batch(job: Resolved) -> dict[str, Value] | None:
    """Half the micro-batch and twice the accumulation: the same step from smaller pieces."""
    micro, accumulation = job.settings.micro_batch, job.settings.accumulation
    if not _trains(job) or micro % 2:
        return None
    return {"micro_batch": micro // 2, "accumulation": accumulation * 2}


def _bf16_weights(job: Resolved) -> dict[str, Value] | None:
    """Load the weights in bf16 instead of fp32: half the weights, gradients and states, and no autocast copies."""
    if job.settings.weights_dtype != "fp32" or not job.gpu.has_bf16:
        return None
    return {"weights_dtype": "bf16"}


def _fused_step(job: Resolved) -> dict[str, Value] | None:
    """The fused optimizer kernel: no copy of the variance during the step."""
    return {"optimizer.impl": "fused"} if _trains(job) and job.settings.optimizer_impl != "fused" else None


def _expandable(job: Resolved) -> dict[str, Value] | None:
    """Expandable segments: the allocator keeps no remainders of 2 MiB segments."""
    return {"allocator": "expandable_segments:True"} if not job.settings.allocator else None


def _lora(job: Resolved) -> dict[str, Value] | None:
    """Train adapters instead of all weights: gradients and optimizer states all but vanish."""
    return {"tuning": "lora"} if _trains(job) and job.settings.tuning == "full" else None


def _shorter(job: Resolved) -> dict[str, Value] | None:
    """Half the longest sequence: activations, logits and cache halve."""
    return {"seq_len": job.settings.seq_len // 2} if job.settings.seq_len > 1 else None


def _fewer_sequences(job: Resolved) -> dict[str, Value] | None:
    """Half the sequences at once."""
    if job.settings.algorithm != "inference" or job.settings.micro_batch < 2:
        return None
    return {"micro_batch": job.settings.micro_batch // 2}


def _lower_rank(job: Resolved) -> dict[str, Value] | None:
    """Half the rank of the adapters."""
    if job.settings.tuning != "lora" or job.settings.lora_rank < 2:
        return None
    return {"lora.rank": job.settings.lora_rank // 2}


def _trains(job: Resolved) -> bool:
    return job.settings.algorithm != "inference"


LEVERS = (
    Lever("recompute", "slower", _recompute),
    Lever("fused-step", "free", _fused_step),
    Lever("expandable-segments", "free", _expandable),
    Lever("smaller-micro-batch", "slower", _smaller_batch),
    Lever("fewer-sequences", "slower", _fewer_sequences),
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
    edits = lever.edit(job)
    if edits is None:
        return
    try:
        after = forecast(edited(said, dict(edits), f"lever {lever.name}"))
    except Refused:
        return  # the edit contradicts something the user set
    saved = answer.peak.bytes - after.peak.bytes
    if saved > 0:
        yield LeverResult(
            name=lever.name,
            set=edits,
            native=native_keys(job.framework, edits),
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
