"""What the memory model knows so far. A value it does not know is refused when the user set it, and a warning when it
is a framework's default. Each step of the project takes entries away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from vramcast.algorithms import ALGORITHMS
from vramcast.catalog.optimizers import optimizers, refused
from vramcast.errors import Mistakes
from vramcast.estimate.causes import absent, is_of_role
from vramcast.types.job import Fact
from vramcast.types.paths import Path, find, show_value
from vramcast.types.settings import Settings

_ANY: tuple[Any, ...] | None = None
_KNOWN: dict[str, tuple[Any, ...] | None] = {
    **dict.fromkeys(
        (
            "framework", "model", "lora.rank", "lora.targets", "lora.dropout", "micro_batch", "accumulation", "seq_len",
            "prompt_len", "response_len", "packing", "padding", "labelled_frac", "image_tokens", "autocast",
            "optimizer.impl", "recompute.reentrant", "gpu", "gpus", "gpus_per_node", "busy_bytes", "allocator",
            "host_bytes",
            "grpo.variant", "group", "prompts_per_step", "mini_batch", "token_budget", "logprob.micro_batch",
            "logprob.token_budget", "logprob.source", "logprob.entropy", "logprob.chunk",
            "shard_size", "engine.version", "engine.fraction", "engine.kv_bytes", "engine.tp", "engine.max_seqs",
            "engine.max_batched_tokens", "engine.max_len", "engine.eager", "engine.sleep", "engine.count",
            "engine.sync_bucket_bytes", "quant.kind", "quant.bits", "quant.group",
        ),
        _ANY,
    ),
    "algorithm": tuple(ALGORITHMS),
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


_COPIED = ("model", "quant.")
"""what a role cannot have for itself yet: its model and how that is packed are the policy's"""

_LAYOUT = ("shard", "shard_size", "replicas", "reshard", "wrap", "buckets")
"""what frameworks do to a model on one GPU too, if they are told to: values that are not modelled are refused there"""


def not_modelled(
    asked: Mapping[str, Fact],
    filled: Mapping[str, Fact],
    settings: Settings,
    warnings: list[str],
    mistakes: Mistakes,
    also: Also = NOTHING_MORE,
    *,
    alone: bool = False,
) -> None:
    """Refuse what the user set, warn of what a framework set; neither where the job has nothing for a path. `alone`:
    FSDP wraps a model on one GPU too."""
    algorithms = (*(_KNOWN["algorithm"] or ()), *also.get("algorithm", ()))
    for name, fact in filled.items():
        role, path = find(name)
        if role == "policy":
            mistakes.add(f"{name}: what is the policy's has no prefix", **{"from": str(fact.origin), "use": path.name})
            continue
        if settings.algorithm not in algorithms and (role or name).split(".")[0] in ("critic", "reward"):
            continue  # the algorithm that brings the role is refused, and one cause is said once
        known = known_values(name, path, settings, also)
        if known is None or fact.value in (*known, path.default):
            continue
        if path.name not in _LAYOUT and absent(name, settings, alone=alone):
            continue
        text = f"{name} = {show_value(fact.value)} is not modelled yet"
        if name in asked:
            why = refused().get(str(fact.value), "") if path.name == "optimizer" else ""
            context = {"from": str(fact.origin), "why": why, "modelled": ", ".join(map(show_value, known))}
            mistakes.add(text, **context, help=_HELP.get(path.name, ""))
        else:
            warnings.append(f"{text} ({fact.origin}): its effect is left out")


def known_values(name: str, path: Path, settings: Settings, also: Also = NOTHING_MORE) -> tuple[Any, ...] | None:
    """Values of a path that are modelled beside its default; None: any."""
    if is_of_role(name) and path.name.startswith(_COPIED):
        return (getattr(settings, path.attribute),)
    known = _KNOWN.get(path.name, (path.default,))
    return None if known is None else (*known, *also.get(path.name, ()))
