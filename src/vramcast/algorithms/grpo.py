"""Group-relative policy optimisation: a policy generates groups of responses, is scored, and learns from them.

All roles live on one group of GPUs, but for an engine that has its own: of that only the weights it is sent are here.
Without an engine (`engine.kind=none`) responses come from elsewhere.
Rewards come from rules: they hold no GPU memory and have no phase here.
"""

from __future__ import annotations

from collections.abc import Iterator

from vramcast.algorithms.table import LOAD, Algorithm, Instant, Modes, Phase, generation, scoring, training


def _roles(modes: Modes) -> tuple[str, ...]:
    reference = ("reference",) if modes.reference == "copy" else ()
    rollout = ("rollout",) if modes.has_engine and not modes.apart else ()
    return ("policy", *reference, *rollout)


def _phases(modes: Modes) -> Iterator[Phase]:
    yield LOAD
    if modes.engine == "hf":
        yield generation("policy")
    elif modes.has_engine and modes.apart:  # somebody else generates
        yield Phase("sync", (Instant("weights", {}),))
    elif modes.has_engine:
        yield Phase("engine.start", (Instant("profiled", {"rollout": "infer"}),), when=("first",))
        yield Phase("sync", (Instant("weights", {"rollout": "held"}),))
        yield Phase("generate", (Instant("rollout", {"rollout": "generate"}),))
    if modes.old_logprobs:
        yield scoring("score.old", "policy")
    if modes.reference in ("copy", "adapter_off"):
        yield scoring("score.reference", "reference" if modes.reference == "copy" else "policy")
    yield from training("policy", modes)


GRPO = Algorithm(
    name="grpo",
    about="generate groups of responses, score them, learn from their relative reward",
    roles=_roles,
    phases=lambda modes: tuple(_phases(modes)),
)
