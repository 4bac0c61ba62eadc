"""What the memory model knows so far. A value it does not know is refused when the user set it, and a warning when it
is a framework's default. Each step of the project takes entries away."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vramcast.algorithms import ALGORITHMS
from vramcast.errors import Mistakes
from vramcast.types.job import Fact
from vramcast.types.paths import PATHS, Value, find
from vramcast.types.result import Ineffective
from vramcast.types.settings import Settings

_TRAINING = (
    "tuning", "weights_dtype", "compute_dtype", "autocast", "optimizer", "optimizer.impl", "micro_batch",
    "accumulation", "seq_len", "packing", "padding", "labelled_frac", "attention", "recompute", "recompute.reentrant",
    "loss", "gpus", "lora.rank", "lora.targets", "lora.dtype", "lora.dropout", "framework", "algorithm",
)  # fmt: skip
USED: dict[str, tuple[str, ...]] = {
    "sft": _TRAINING,
    "pretrain": _TRAINING,
    "inference": (
        "framework", "algorithm", "weights_dtype", "micro_batch", "seq_len", "prompt_len", "attention", "engine.kind",
        "gpus",
    ),
}  # fmt: skip
"""Paths that an algorithm's forecast reads: the ones listed as assumptions."""

_ANY: tuple[Any, ...] | None = None
_KNOWN: dict[str, tuple[Any, ...] | None] = {
    **dict.fromkeys(
        (
            "framework", "model", "lora.rank", "lora.targets", "lora.dropout", "micro_batch", "accumulation", "seq_len",
            "prompt_len", "response_len", "packing", "padding", "labelled_frac", "autocast", "optimizer.impl",
            "recompute.reentrant", "gpu", "gpus_per_node", "busy_bytes", "allocator", "host_bytes", "grpo.variant",
        ),
        _ANY,
    ),
    "algorithm": (*ALGORITHMS, "pretrain"),
    "tuning": ("full", "lora", "frozen"),
    "weights_dtype": ("fp32", "bf16", "fp16"),
    "compute_dtype": ("fp32", "bf16", "fp16"),
    "state_dtype": (None, "fp32", "bf16"),
    "lora.dtype": ("fp32", "bf16", "fp16"),
    "optimizer": ("adamw",),
    "attention": (None, "flash", "efficient"),
    "recompute": ("none", "full"),
    "loss": ("full", "fused"),
    "engine.kind": ("none", "hf"),
}  # fmt: skip
"""Values that are modelled, by path; a path that is missing here is modelled at its default only."""


def is_modelled(path: str, value: Value) -> bool:
    known = _KNOWN.get(path, (PATHS[path].default,))
    return known is None or value in known or value == PATHS[path].default


def not_modelled(
    asked: Mapping[str, Fact], filled: Mapping[str, Fact], warnings: list[str], mistakes: Mistakes
) -> None:
    """Refuse what the user set, warn of what a framework set."""
    for name, fact in filled.items():
        role, path = find(name)
        if is_modelled(path.name, fact.value) and not role:
            continue
        text = f"{name} = {_shown(fact.value)} is not modelled yet"
        if name in asked:
            mistakes.add(text, **{"from": str(fact.origin), "modelled": _modelled_values(path.name)})
        else:
            warnings.append(f"{text} ({fact.origin}): its effect is left out")


def _modelled_values(path: str) -> str:
    known = _KNOWN.get(path, (PATHS[path].default,)) or ()
    return ", ".join(_shown(value) for value in known)


def _shown(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


_WITHOUT_LORA = "only with tuning=lora"
_NO_TRAINING = "nothing trains in inference"
_OF_TRAINING = (
    "optimizer", "accumulation", "recompute", "loss", "tuning", "labelled_frac", "state_dtype", "autocast", "packing",
    "padding", "lora",
)  # fmt: skip
_RULES: tuple[tuple[Callable[[str], bool], Callable[[Settings], bool], str], ...] = (
    (lambda path: path.startswith("lora."), lambda job: job.tuning != "lora", _WITHOUT_LORA),
    (
        lambda path: path.partition(".")[0] in _OF_TRAINING,
        lambda job: job.algorithm == "inference",
        _NO_TRAINING,
    ),
    (
        lambda path: path.startswith("engine."),
        lambda job: job.algorithm != "inference",
        "this algorithm does not generate",
    ),
    (
        lambda path: path in ("prompt_len", "response_len", "group", "prompts_per_step", "grpo.variant"),
        lambda job: job.algorithm != "inference",
        "this algorithm does not generate",
    ),
    (lambda path: path in ("host_bytes", "gpus_per_node"), lambda job: True, "nothing of this job is on the host"),
)  # fmt: skip


def ineffective(asked: Mapping[str, Fact], settings: Settings) -> list[Ineffective]:
    """Values the user set that change nothing in this job."""
    changed = [(name, fact) for name, fact in asked.items() if fact.value != find(name)[1].default]
    return [
        Ineffective(name, fact.value, why)
        for name, fact in changed
        if (why := without_effect(find(name)[1].name, settings))
    ]


def without_effect(path: str, settings: Settings) -> str:
    """Why a path changes nothing in this job; empty when it does."""
    return next((why for concerns, applies, why in _RULES if concerns(path) and applies(settings)), "")
