"""Algorithms as phase tables: which phases run in which order, and what every role does at each of their instants."""

from __future__ import annotations

from vramcast.algorithms.grpo import GRPO
from vramcast.algorithms.inference import INFERENCE
from vramcast.algorithms.sft import PRETRAIN, SFT
from vramcast.algorithms.table import Algorithm
from vramcast.types.settings import Settings

ALGORITHMS: dict[str, Algorithm] = {algorithm.name: algorithm for algorithm in (INFERENCE, SFT, PRETRAIN, GRPO)}
"""The algorithms that are modelled, by name."""


def algorithm_of(name: str) -> Algorithm:
    """The table of an algorithm; of one that is not modelled, and so refused, what all trainings have."""
    return ALGORITHMS.get(name) or Algorithm(name=name, about="", roles=lambda modes: (), phases=lambda modes: ())


def learns(job: Settings) -> bool:
    """A policy is trained."""
    return algorithm_of(job.algorithm).learns


def generates(job: Settings) -> bool:
    """Responses are made."""
    return algorithm_of(job.algorithm).generates


def is_grouped(job: Settings) -> bool:
    """Sequences are prompts and groups of responses."""
    return algorithm_of(job.algorithm).grouped


def serves(job: Settings) -> bool:
    """Inference by an engine, which has the GPU for itself."""
    return not learns(job) and job.engine_kind not in ("none", "hf")


def is_apart(job: Settings) -> bool:
    """An engine on other GPUs generates for a trainer."""
    return is_grouped(job) and job.engine_process == "server"
