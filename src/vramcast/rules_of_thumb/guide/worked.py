"""Figures of the rulebook: parts of the rules' sums and of forecasts, as text."""

from __future__ import annotations

from fractions import Fraction

from vramcast.estimate import peak_phase
from vramcast.rules_of_thumb.guide.ask import LORA, SFT, Job, at_step, exact, gib, most, refusal, rules
from vramcast.rules_of_thumb.lines import DECIMAL, number

PARAMETERS = 7_615_616_512
"""of Qwen2.5-7B"""


def total(model: str, **values: str) -> str:
    """The rules' largest sum."""
    return f"{rules(model, **values).peak_gb:,} GB"


def static(algorithm: str, reward: str) -> str:
    """Parameters of a 7B and what belongs to them, without caches and activations."""
    answer = rules("article/7b", algorithm=algorithm, reference__kind="copy", reward__kind=reward)
    return f"{sum(term.gb for phase in answer.phases for term in phase.terms if term.unit == DECIMAL):,}"


def part(model: str, name: str, **values: str) -> str:
    """One part of the rules' first sum, at 2,048 tokens."""
    terms = rules(model, seq_len="2048", **values).phases[0].terms
    return f"{next(term.gb for term in terms if term.name == name):,} GB"


def changed(job: Job, **values: str) -> dict[str, str]:
    """A job with some paths set anew; `__` stands for the dot of a path."""
    return {**job, **{path.replace("__", "."): raw for path, raw in values.items()}}


def recipe(job: Job) -> list[str]:
    """Bytes of one parameter of Qwen2.5-7B: weights, gradients, states, DDP's buckets, and their sum."""
    parts = [at_step(exact(job), term) for term in ("weights", "gradients", "optimizer.state", "ddp.buckets")]
    return [number(Fraction(size, PARAMETERS)) for size in (*parts, sum(parts))]


def trained(rank: str, targets: str = "all-linear") -> str:
    """Adapters (fp32) as a percentage of the parameters."""
    size = at_step(exact({**SFT, **LORA, "lora.rank": rank, "lora.targets": targets}), "adapters")
    return number(Fraction(100 * size, 4 * PARAMETERS))


def activations(job: Job) -> int:
    """The most that saved tensors and the running block hold together."""
    return most(exact(job), "activations.saved", "activations.block")


def at_peak(job: Job, name: str) -> str:
    """A term at the job's peak."""
    return gib(sum(term.bytes for term in peak_phase(exact(job)).terms if term.name == name))


def if_modelled(job: Job) -> str:
    """The peak of a job, or the forecast's own words for why it has none."""
    return refusal(job) or f"the forecast's peak is {gib(exact(job).peak.bytes)}"
