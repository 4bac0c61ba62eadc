"""What the memory model knows so far. A value it does not know is refused when the user set it, and a warning when it
is a framework's default. Each step of the project takes entries away."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from vramcast.algorithms import ALGORITHMS
from vramcast.catalog.optimizers import optimizers, refused
from vramcast.errors import Mistakes
from vramcast.types.job import Fact
from vramcast.types.paths import PATHS, Value, find
from vramcast.types.recipe import Recipe
from vramcast.types.result import Ineffective
from vramcast.types.settings import ADAPTED, Settings

_TRAINING = (
    "tuning", "weights_dtype", "compute_dtype", "autocast", "optimizer", "optimizer.impl", "micro_batch",
    "accumulation", "seq_len", "packing", "padding", "labelled_frac", "attention", "recompute", "recompute.reentrant",
    "loss", "gpus", "quant.kind", "quant.double", "quant.compute_dtype", "quant.rest_dtype", "lora.rank",
    "lora.targets", "lora.dtype", "lora.dropout", "framework", "algorithm",
)  # fmt: skip
_GROUP = (
    "group", "prompts_per_step", "mini_batch", "prompt_len", "response_len", "logprob.micro_batch", "token_budget",
    "logprob.token_budget", "logprob.source", "logprob.entropy", "logprob.chunk", "shard", "shard_size", "wrap",
    "offload.weights", "offload.optimizer", "reference.kind", "reference.offload.weights", "reference.weights_dtype",
    "reward.kind", "engine.kind", "engine.process",
    "engine.fraction", "engine.tp", "engine.dtype", "engine.max_seqs", "engine.max_batched_tokens", "engine.max_len",
    "engine.eager", "engine.sleep", "engine.sync_bucket_bytes",
)  # fmt: skip
USED: dict[str, tuple[str, ...]] = {
    "sft": (*_TRAINING, "shard", "wrap"),
    "pretrain": (*_TRAINING, "shard", "wrap"),
    "grpo": (*_TRAINING, *_GROUP),
    "inference": (
        "framework", "algorithm", "weights_dtype", "micro_batch", "seq_len", "prompt_len", "attention", "engine.kind",
        "engine.cache", "gpus", "quant.kind",
    ),
}  # fmt: skip
"""Paths that an algorithm's forecast reads: the ones listed as assumptions."""

_ANY: tuple[Any, ...] | None = None
_KNOWN: dict[str, tuple[Any, ...] | None] = {
    **dict.fromkeys(
        (
            "framework", "model", "lora.rank", "lora.targets", "lora.dropout", "micro_batch", "accumulation", "seq_len",
            "prompt_len", "response_len", "packing", "padding", "labelled_frac", "autocast", "optimizer.impl",
            "recompute.reentrant", "gpu", "gpus", "gpus_per_node", "busy_bytes", "allocator", "host_bytes",
            "grpo.variant", "group", "prompts_per_step", "mini_batch", "token_budget", "logprob.micro_batch",
            "logprob.token_budget", "logprob.source", "logprob.entropy", "logprob.chunk",
            "shard_size", "engine.version", "engine.fraction", "engine.kv_bytes", "engine.tp", "engine.max_seqs",
            "engine.max_batched_tokens", "engine.max_len", "engine.eager", "engine.sleep", "engine.count",
            "engine.sync_bucket_bytes", "quant.kind", "quant.bits", "quant.group",
        ),
        _ANY,
    ),
    "algorithm": (*ALGORITHMS, "pretrain"),
    "tuning": ("full", "lora", "qlora", "frozen"),
    "weights_dtype": ("fp32", "bf16", "fp16"),
    "compute_dtype": ("fp32", "bf16", "fp16"),
    "state_dtype": (None, "fp32", "bf16"),
    "lora.dtype": ("fp32", "bf16", "fp16"),
    "quant.double": (False, True),
    "quant.compute_dtype": (None, "fp32", "bf16", "fp16"),
    "quant.rest_dtype": (None, "fp32", "bf16", "fp16"),
    "optimizer": tuple(row.id for row in optimizers()),
    "attention": (None, "eager", "flash", "efficient"),
    "recompute": ("none", "full"),
    "loss": ("full", "fused"),
    "shard": ("none", "fsdp1", "fsdp2"),
    "wrap": ("block", "none"),
    "reshard": (True, False),
    "offload.weights": ("none", "cpu"),
    "offload.optimizer": ("none", "cpu"),
    "reference.kind": ("none", "copy", "adapter_off"),
    "reward.kind": ("none", "rules"),
    "engine.kind": ("none", "hf", "vllm"),
    "engine.process": ("trainer", "own", "server"),
    "engine.dtype": ("bf16", "fp16", "fp32"),
    "engine.quant": ("none", "fp8"),
    "engine.kv_dtype": (None, "bf16", "fp16", "fp32", "fp8", "int8", "int4"),
    "engine.cache": ("dynamic", "static", "offloaded", "quantised"),
    "quant.storage": (None, "fp32", "bf16", "fp16", "int8"),
}  # fmt: skip
"""Values that are modelled, by path; a path that is missing here is modelled at its default only."""
_HELP: dict[str, str] = dict.fromkeys(
    ("lora.dora", "lora.rank_pattern", "lora.save_modules"),
    "`vramcast explain --arch` counts the adapter's parameters exactly",
)
"""path -> what there is instead, where its value is not modelled"""


Also: TypeAlias = Mapping[str, tuple[Any, ...]]
"""path -> values that another method than the formulas knows"""
NOTHING_MORE: Also = {}


def is_modelled(path: str, value: Value, also: Also = NOTHING_MORE) -> bool:
    if value in also.get(path, ()):
        return True
    known = _KNOWN.get(path, (PATHS[path].default,))
    return known is None or value in known or value == PATHS[path].default


def _unknown_roles(filled: Mapping[str, Fact], also: Also) -> set[str]:
    """Roles that are refused as a whole, with the paths that say that they are there."""
    kinds = {role: filled.get(f"{role}.kind") for role in ("critic", "reward", "teacher")}
    found = {role for role, fact in kinds.items() if fact and not is_modelled(f"{role}.kind", fact.value, also)}
    algorithm = filled.get("algorithm")
    if algorithm is not None and not is_modelled("algorithm", algorithm.value, also):
        found |= {"critic", "critic.kind", "reward", "reward.kind"}
    return found


def not_modelled(
    asked: Mapping[str, Fact],
    filled: Mapping[str, Fact],
    warnings: list[str],
    mistakes: Mistakes,
    also: Also = NOTHING_MORE,
) -> None:
    """Refuse what the user set, warn of what a framework set."""
    unknown_roles = _unknown_roles(filled, also)
    for name, fact in filled.items():
        role, path = find(name)
        if is_modelled(path.name, fact.value, also) and role in ("", "policy", "reference"):
            continue
        if name in unknown_roles or (role in unknown_roles and f"{role}.kind" != name):
            continue  # what brings the role is refused, and one cause is said once
        text = f"{name} = {_shown(fact.value)} is not modelled yet"
        if name in asked:
            why = refused().get(str(fact.value), "") if path.name == "optimizer" else ""
            context = {"from": str(fact.origin), "why": why, "modelled": _modelled_values(path.name, also)}
            mistakes.add(text, **context, help=_HELP.get(path.name, ""))
        else:
            warnings.append(f"{text} ({fact.origin}): its effect is left out")


def _modelled_values(path: str, also: Also) -> str:
    known = (*(_KNOWN.get(path, (PATHS[path].default,)) or ()), *also.get(path, ()))
    return ", ".join(_shown(value) for value in known)


def _shown(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


_WITHOUT_LORA = "only with tuning=lora or qlora"
_NO_TRAINING = "nothing trains in inference"
_OF_TRAINING = (
    "optimizer", "accumulation", "recompute", "loss", "tuning", "labelled_frac", "state_dtype", "autocast", "packing",
    "padding", "lora",
)  # fmt: skip
_OF_PACKING = ("quant.double", "quant.storage", "quant.bits", "quant.group")
_OF_GROUPS = ("group", "prompts_per_step", "mini_batch", "grpo.variant")
_OF_GENERATE = ("engine.kind", "engine.cache", "engine.kv_dtype")
_RULES: tuple[tuple[Callable[[str], bool], Callable[[Settings], bool], str], ...] = (
    (lambda path: path.startswith("lora."), lambda job: job.tuning not in ADAPTED, _WITHOUT_LORA),
    (
        lambda path: path.partition(".")[0] in _OF_TRAINING,
        lambda job: job.algorithm == "inference",
        _NO_TRAINING,
    ),
    (
        lambda path: path.startswith("engine.") or path in ("prompt_len", "response_len"),
        lambda job: job.algorithm not in ("inference", "grpo"),
        "this algorithm does not generate",
    ),
    (
        lambda path: path.startswith("engine.") and path not in _OF_GENERATE,
        lambda job: job.engine_kind != "vllm",
        "only with engine.kind=vllm",
    ),
    (lambda path: path == "engine.cache", lambda job: job.engine_kind != "hf", "only with engine.kind=hf"),
    (
        lambda path: path == "engine.kv_dtype",
        lambda job: job.engine_kind == "hf" and job.engine_cache != "quantised",
        "Transformers keeps the model's dtype, unless engine.cache=quantised",
    ),
    (lambda path: path == "quant.kind", lambda job: job.quant_kind == "none", "nothing is packed"),
    (
        lambda path: path.startswith("quant.") and path != "quant.kind",
        lambda job: job.quant_kind == "none",
        "only with packed weights",
    ),
    (
        lambda path: path == "quant.double",
        lambda job: job.quant_kind not in ("nf4", "fp4"),
        "only with quant.kind=nf4 or fp4",
    ),
    (
        lambda path: path in _OF_GROUPS or path.startswith(("logprob.", "reference.", "reward.")),
        lambda job: job.algorithm != "grpo",
        "only with algorithm=grpo",
    ),
    (
        lambda path: path.startswith("reference.") and path != "reference.kind",
        lambda job: job.reference_kind != "copy",
        "only with reference.kind=copy",
    ),
    (lambda path: path == "logprob.chunk", lambda job: job.logprob_entropy != "chunked",
     "only with logprob.entropy=chunked"),
    (
        lambda path: path.startswith("logprob.") and path != "logprob.source",
        lambda job: job.logprob_source == "engine",
        "only with logprob.source=trainer",
    ),
    (lambda path: path in ("shard", "shard_size", "wrap"), lambda job: job.gpus == 1, "only with several GPUs"),
    (lambda path: path in ("shard_size", "wrap"), lambda job: job.shard == "none", "only with shard=fsdp1 or fsdp2"),
    (lambda path: path == "host_bytes", lambda job: not _uses_host(job), "nothing of this job is on the host"),
)  # fmt: skip


def _uses_host(job: Settings) -> bool:
    return "cpu" in (job.offload_weights, job.offload_optimizer) or job.engine_sleep == "1"


def ineffective(
    asked: Mapping[str, Fact], settings: Settings, packed: str, recipe: Recipe | None = None
) -> list[Ineffective]:
    """Values the user set that change nothing in this job; `packed`: how the checkpoint itself is, if it is."""
    changed = [(name, fact) for name, fact in asked.items() if fact.value != find(name)[1].default]
    reasons = [(name, fact, without_effect(name, settings, recipe)) for name, fact in changed]
    found = [Ineffective(name, fact.value, why) for name, fact, why in reasons if why]
    if packed:
        why = f"the checkpoint is packed already: {packed}"
        found += [Ineffective(name, fact.value, why) for name, fact in changed if name in _OF_PACKING]
    length = asked.get("seq_len")
    if settings.algorithm == "grpo" and length is not None and length.value != settings.seq_len:
        found.append(Ineffective("seq_len", length.value, "a sequence is prompt_len + response_len"))
    return found


def without_effect(path: str, settings: Settings, recipe: Recipe | None = None) -> str:
    """Why a path changes nothing in this job; empty when it does."""
    if recipe is not None and recipe.fsdp_alone and path in ("shard", "wrap") and settings.gpus == 1:
        return ""
    return next((why for concerns, applies, why in _RULES if concerns(path) and applies(settings)), "")
