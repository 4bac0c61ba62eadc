"""Algorithms as phase tables: which phases run in which order, and what every role does at each of their instants."""

from __future__ import annotations

from vramcast.algorithms.grpo import GRPO
from vramcast.algorithms.inference import INFERENCE
from vramcast.algorithms.sft import SFT
from vramcast.algorithms.table import Algorithm

ALGORITHMS: dict[str, Algorithm] = {algorithm.name: algorithm for algorithm in (INFERENCE, SFT, GRPO)}
"""The algorithms that are modelled, by name."""
