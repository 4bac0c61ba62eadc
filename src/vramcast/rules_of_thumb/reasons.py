"""Why a line of the rules and a part of the forecast differ, in a sentence made from the job's own figures."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

from vramcast.estimate import Resolved
from vramcast.rules_of_thumb import parts
from vramcast.rules_of_thumb.lines import Line, number
from vramcast.rules_of_thumb.question import Question, generated, lengths
from vramcast.rules_of_thumb.rules import ACTIVATIONS, ADAPTERS, CACHE, GRADIENTS, WEIGHTS
from vramcast.types.result import Forecast, PhaseBytes
from vramcast.units import gib


class Ground(NamedTuple):
    """What a reason is made of: one part at one instant, article and exact."""

    part: str
    lines: list[Line]
    article: Fraction
    """bytes by the rules"""
    exact: int
    """bytes of the forecast at the instant"""
    best: PhaseBytes | None
    """the instant at which the part is largest"""
    at: PhaseBytes
    job: Resolved
    answer: Forecast
    asked: Question

    @property
    def per_parameter(self) -> str:
        """The exact bytes as bytes of one parameter, over all ranks."""
        return number(Fraction(self.exact * self.ranks, self.asked.shape().params))

    @property
    def ranks(self) -> int:
        """Ranks that share one copy."""
        settings = self.job.settings
        return settings.gpus if settings.shard in ("fsdp1", "fsdp2") else 1

    @property
    def shared(self) -> str:
        return f", in shares over {self.ranks} GPUs" if self.ranks > 1 else ""


def reason(ground: Ground) -> str:
    """Why article and exact differ here; `the same` where they do not."""
    if ground.exact == ground.article and ground.exact:
        return "the same"
    if not ground.exact:
        return _absent(ground)
    return _REASONS[ground.part](ground)


def total_reason(lines: list[Line]) -> str:
    """Why the two totals cannot be subtracted as they stand."""
    units = {line.unit for line in lines if line.size}
    return "the article adds GB of 10^9 and of 1024^3 as if they were one" if len(units) > 1 else ""


def _absent(ground: Ground) -> str:
    if ground.best is None:
        note = next((line.note for line in ground.lines if line.note), "")
        return "nothing of it on the GPU" if ground.article else f"none on either side: {note}"
    size = parts.held(ground.best)[ground.part]
    return f"not alive at this instant: at most {gib(size)}, at {ground.best.name} · {ground.best.instant}"


def _weights(ground: Ground) -> str:
    asked = ground.job.facts.get("weights_dtype")
    upcast = ground.job.recipe.upcasts_trainable and ground.ranks > 1 and ground.job.settings.tuning == "full"
    why = ": FSDP keeps what trains in fp32" if upcast else f" ({asked.origin})" if asked else ""
    return f"{ground.per_parameter} bytes a parameter{ground.shared}{why}"


def _copies(ground: Ground) -> str:
    what = "whole weights of the units at work, gathered from all ranks" if ground.ranks > 1 else "16-bit copies"
    return f"{what}: not in the rules"


def _adapters(ground: Ground) -> str:
    settings = ground.job.settings
    return f"rank {settings.lora_rank}, {settings.lora_dtype}: small, and exact"


def _gradients(ground: Ground) -> str:
    if ground.job.settings.tuning == "lora":
        return "of the adapters only: the rules say negligible"
    ddp = ground.job.settings.gpus > 1 and ground.job.settings.shard == "none"
    buckets = ", and DDP's buckets hold all of them again" if ddp else ""
    return f"those alive at this instant, in the dtype of the weights{buckets}{ground.shared}"


def _optimizer(ground: Ground) -> str:
    if ground.job.settings.tuning == "lora":
        return "states of the adapters, from the first step on"
    states = f"{ground.per_parameter} bytes a parameter{ground.shared}"
    return f"states in the dtype of the weights, {states}: no separate fp32 copy of the weights"


def _reference(ground: Ground) -> str:
    return f"a frozen copy, {ground.per_parameter} bytes a parameter{ground.shared}"


def _cache(ground: Ground) -> str:
    engines = ground.answer.groups[0].engines
    query, key = ground.job.arch.heads
    heads = f"{key} key heads of {query}"
    settings = ground.asked.role("policy")
    tokens = generated(settings) * lengths(settings)
    if engines:
        engine = engines[0]
        need = gib(tokens * engine.kv_bytes_per_token)
        return f"a share of the card, not a need: with {heads}, {tokens:,} tokens need {need}"
    factor = Fraction(query, key)
    return f"{heads}: keys and values are 1/{number(factor)} of a multi-head model's"


def _activations(ground: Ground) -> str:
    if ground.job.settings.algorithm == "inference" or ground.at.name == "generate":
        return "the one block that is running: the rules have no activations in generation"
    if ground.job.settings.recompute == "full":
        return "one hidden state a layer where the rule has two, and a whole layer made again, which it has not"
    return "by tensor of the real block: gated MLP, shared keys, no attention matrix, no dropout masks"


def _logits(ground: Ground) -> str:
    vocab = f"{int(ground.job.arch.vocab):,}"
    return f"tokens × {vocab} words of vocabulary: both articles have no logits"


def _engine(ground: Ground) -> str:
    return "the engine has its own copy of the weights: the rules share one"


def _engine_rest(ground: Ground) -> str:
    asleep = ground.at.states.get("rollout") == "rest" and ground.job.settings.engine_sleep != "none"
    return "CUDA graphs and buffers: they stay while the engine sleeps" if asleep else "graphs, buffers, working memory"


def _runtime(ground: Ground) -> str:
    nccl = ", NCCL" if ground.job.settings.gpus > 1 else ""
    return f"CUDA context, cuBLAS{nccl}, rounding of the allocator: not in the rules"


_REASONS: dict[str, Callable[[Ground], str]] = {
    WEIGHTS: _weights,
    parts.COPIES: _copies,
    ADAPTERS: _adapters,
    GRADIENTS: _gradients,
    parts.OPTIMIZER: _optimizer,
    parts.REFERENCE: _reference,
    parts.REWARD: _reference,
    parts.CRITIC: _weights,
    CACHE: _cache,
    ACTIVATIONS: _activations,
    parts.LOGITS: _logits,
    parts.ENGINE: _engine,
    parts.ENGINE_REST: _engine_rest,
    parts.RUNTIME: _runtime,
}
