"""Group-relative policy optimisation: a policy generates groups of responses, is scored, and learns from them.

All roles live on one group of GPUs, but for an engine that has its own: of that only the weights it is sent are here.
Without an engine (`engine.kind=none`) responses come from elsewhere.
Rewards come from rules: they hold no GPU memory and have no phase here.
"""

from __future__ import annotations

from collections.abc import Iterator

from vramcast.algorithms.table import (
    LEARNING,
    LOAD,
    POLICY,
    REFERENCE,
    ROLLOUT,
    Algorithm,
    Instant,
    Modes,
    Phase,
    Role,
    generation,
    scoring,
    training,
)


def _roles(modes: Modes) -> tuple[Role, ...]:
    reference = (REFERENCE,) if modes.reference == "copy" else ()
    rollout = (ROLLOUT,) if modes.has_engine and not modes.apart else ()
    return (POLICY, *reference, *rollout)


def _phases(modes: Modes) -> Iterator[Phase]:
    yield LOAD
    if modes.engine == "hf":
        yield generation(POLICY)
    elif modes.has_engine and modes.apart:  # somebody else generates
        yield Phase("sync", (Instant("weights", {}),))
    elif modes.has_engine:
        yield Phase("engine.start", (Instant("profiled", {"rollout": "infer"}),), when=("first",))
        yield Phase("sync", (Instant("weights", {"rollout": "held"}),))
        yield Phase("generate", (Instant("rollout", {"rollout": "generate"}),))
    if modes.old_logprobs:
        yield scoring("score.old", POLICY)
    if modes.reference in ("copy", "adapter_off"):
        yield scoring("score.reference", REFERENCE if modes.reference == "copy" else POLICY)
    yield from training(POLICY, modes)


_PATHS = (
    "group", "prompts_per_step", "mini_batch", "prompt_len", "response_len", "logprob.micro_batch", "token_budget",
    "logprob.token_budget", "logprob.source", "logprob.entropy", "logprob.chunk", "shard", "shard_size", "wrap",
    "offload.weights", "offload.optimizer", "reference.kind", "reference.offload.weights", "reference.weights_dtype",
    "reward.kind", "engine.kind", "engine.process",
    "engine.fraction", "engine.tp", "engine.dtype", "engine.max_seqs", "engine.max_batched_tokens", "engine.max_len",
    "engine.eager", "engine.sleep", "engine.sync_bucket_bytes",
)  # fmt: skip

GRPO = Algorithm(
    name="grpo",
    about="generate groups of responses, score them, learn from their relative reward",
    roles=_roles,
    phases=lambda modes: tuple(_phases(modes)),
    paths=(*LEARNING, *_PATHS),
    generates=True,
    grouped=True,
)
