"""The parts both answers have in common: which terms of a forecast stand beside which lines of the rules."""

from __future__ import annotations

from vramcast.rules_of_thumb.rules import ACTIVATIONS, ADAPTERS, CACHE, GRADIENTS, WEIGHTS
from vramcast.types.result import PhaseBytes, TermBytes

OPTIMIZER, REFERENCE, REWARD, CRITIC = "optimizer", "reference", "reward model", "critic"
COPIES, ENGINE, ENGINE_REST, LOGITS = "copies for the forward", "engine weights", "rest of the engine", "logits"
RUNTIME = "runtime and allocator"

PARTS = (
    WEIGHTS, COPIES, ADAPTERS, GRADIENTS, OPTIMIZER, CRITIC, REFERENCE, REWARD, CACHE, ACTIVATIONS, LOGITS, ENGINE,
    ENGINE_REST, RUNTIME,
)  # fmt: skip
"""In the order of a table."""

_TERMS = {
    "weights": WEIGHTS,
    "autocast.weights": COPIES,
    "fsdp.gathered": COPIES,
    "sync.bucket": COPIES,
    "sync.gathered": COPIES,
    "adapters": ADAPTERS,
    "gradients": GRADIENTS,
    "gradients.unsharded": GRADIENTS,
    "fsdp.reduce": GRADIENTS,
    "ddp.buckets": GRADIENTS,
    "kv_cache": CACHE,
    "kv_cache.grow": CACHE,
    "engine.kv": CACHE,
    "inputs": ACTIVATIONS,
    "logits": LOGITS,
    "engine.weights": ENGINE,
}
_STARTS = {"optimizer": OPTIMIZER, "activations": ACTIVATIONS, "engine": ENGINE_REST}
_ROLES = {"reference": REFERENCE, "reward": REWARD, "critic": CRITIC}


def part_of_line(part: str, role: str) -> str:
    """The part that a line of the rules belongs to."""
    if part == CACHE or role == "policy":
        return OPTIMIZER if part.startswith("optimizer") else part
    return _ROLES[role]


def part_of_term(term: TermBytes) -> str:
    """The part that a term of a forecast belongs to."""
    part = _TERMS.get(term.name) or _STARTS.get(term.name.partition(".")[0], RUNTIME)
    return _ROLES.get(term.role, part) if part == WEIGHTS else part


def held(phase: PhaseBytes) -> dict[str, int]:
    """Part → bytes at an instant. Their sum is the instant's."""
    sums: dict[str, int] = {}
    for term in phase.terms:
        part = part_of_term(term)
        sums[part] = sums.get(part, 0) + term.bytes
    return sums


def largest(phases: list[PhaseBytes]) -> dict[str, PhaseBytes]:
    """Part → the instant at which it is largest."""
    best: dict[str, tuple[int, PhaseBytes]] = {}
    for phase in phases:
        for part, size in held(phase).items():
            if size > best.get(part, (0, phase))[0]:
                best[part] = (size, phase)
    return {part: phase for part, (_, phase) in best.items()}
