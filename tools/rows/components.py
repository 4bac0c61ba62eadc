"""Single operators, as benchmarks of kernels measure them: a head with its loss, a layer of experts.

The rows are Liger's benchmarks. What such a process holds beside the component is stated here: the weights of all
candidates, and for the pairwise losses what functions compiled before have kept. The latter has no source: it is what
plain torch's readings leave, where nothing else is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tools.operators.component import Component
from tools.rows.jobs import Skip

from vramcast.units import MIB


class Card(NamedTuple):
    """What kernels depend on."""

    capability: str
    cublas_bytes: int


_CARDS = {"A100": Card("8.0", 8_519_680), "H100": Card("9.0", 32 * MIB)}
_PAIRS = ("orpo", "cpo", "simpo")


def component_of(row: Mapping[str, Any]) -> Component | None:
    """The component of a published row, or None if it is something else."""
    if not str(row.get("workload", "")).startswith("component:") and row.get("scope") != "loss-head component":
        return None
    if not isinstance(row.get("model"), dict):
        return None  # a row of our own, which was skipped
    try:
        return _component(row, row["model"].get("config") or {})
    except KeyError as missing:
        raise Skip(f"the source leaves out what the value depends on: {missing.args[0]}") from None


def _component(row: Mapping[str, Any], config: Mapping[str, Any]) -> Component | None:
    card = next((known for name, known in _CARDS.items() if name in (row["gpu"] or "")), None)
    if card is None:
        return None
    workload = row["workload"].removeprefix("component:")
    code = "liger" if "-liger-" in row["id"] else "megatron" if "-megatron-v" in row["id"] else "torch"
    if workload in ("cross_entropy", "megatron_cross_entropy"):
        return _logits(workload, code, config, card)
    if workload == "fused_moe":
        return Component(
            kind="moe", code=code, sequences=1, length=config["T"], hidden=config["H"], experts=config["E"],
            chosen=config["K"], intermediate=config["intermediate_dim"], capability=card.capability,
            cublas_bytes=card.cublas_bytes,
        )  # fmt: skip
    if workload == "fused_linear_cross_entropy":
        return _head("linear_cross_entropy", code, _version(row), 1, config["BT"], config["H"], config["V"], card)
    if workload == "fused_linear_orpo_loss":
        return _head("orpo", code, _version(row), config["B"], config["T"], config["H"], config["V"], card)
    if row.get("scope") == "loss-head component":
        return _head(workload, code, _version(row), row["batch"], row["seq"], row["hidden"], row["vocab"], card)
    return None


def _version(row: Mapping[str, Any]) -> str:
    return str(row.get("engine_version") or row["notes"].rstrip(".")).rpartition("liger ")[2]


def _logits(workload: str, code: Any, config: Mapping[str, Any], card: Card) -> Component:
    """A loss on logits that exist: no matrix is multiplied, so there is no handle of cuBLAS."""
    plain = workload == "cross_entropy"
    return Component(
        kind="cross_entropy" if plain else "vocab_parallel_cross_entropy", code=code,
        sequences=config["B"] if plain else config["S"], length=config["T"] if plain else config["B"],
        vocab=config["V"], dtype="fp32" if plain else "bf16", keeps_gradients=plain, capability=card.capability,
    )  # fmt: skip


def _head(
    kind: Any, code: Any, version: str, sequences: int, length: int, hidden: int, vocab: int, card: Card
) -> Component:
    head, row = 2 * vocab * hidden, 2 * hidden
    left = 5 * head + 15 * length * row if kind == "kto" else 2 * head + 10 * length * row if kind in _PAIRS else 0
    return Component(
        kind=kind, code=code, version=version, sequences=sequences, length=length, hidden=hidden, vocab=vocab,
        unused_heads=2 if kind in ("kto", "grpo", "dpo") else 1, left_bytes=left, input_learns=kind != "kto",
        capability=card.capability, cublas_bytes=card.cublas_bytes,
    )  # fmt: skip
