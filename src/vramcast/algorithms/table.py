"""The words of a phase table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from msgspec import Struct

State: TypeAlias = Literal["absent", "rest", "held", "infer", "generate", "forward", "loss", "backward", "step"]
When: TypeAlias = Literal["first", "steady"]


class Modes(Struct, frozen=True, kw_only=True):
    """The choices of a job that decide which roles and phases an algorithm has."""

    reference: str = "none"
    engine: str = "none"
    """what generates: nothing on these GPUs (none), the trained model itself (hf), or an engine of its own"""
    apart: bool = False
    """the engine has GPUs of its own, which are no part of the group"""
    sharded: bool = False
    mixed: bool = False
    """the model that learns has layers of several kinds"""
    old_logprobs: bool = False
    """the trainer recomputes log-probabilities under the policy that generated"""

    @property
    def has_engine(self) -> bool:
        return self.engine not in ("none", "hf")


class Role(Struct, frozen=True, kw_only=True):
    """One model of a job: what it is for. Its settings are the paths under its name."""

    name: str
    trains: bool = False
    """it has parameters that learn"""
    leads: bool = False
    """it carries what the trainer's process has once"""
    engine: bool = False
    """an inference engine runs it"""


class Instant(Struct, frozen=True):
    """A moment inside a phase at which a peak can stand; a role that is not named rests."""

    name: str
    states: dict[str, State]


class Phase(Struct, frozen=True):
    """A step of an algorithm. `when` says in which runs of the loop it happens."""

    name: str
    instants: tuple[Instant, ...]
    when: tuple[When, ...] = ("first", "steady")


class Algorithm(Struct, frozen=True, kw_only=True):
    """Phases in their order. `about` is the manual's sentence; `roles` and `phases` follow from a job's modes."""

    name: str
    about: str
    roles: Callable[[Modes], tuple[Role, ...]]
    phases: Callable[[Modes], tuple[Phase, ...]]
    paths: tuple[str, ...] = ()
    """what its forecast reads: listed as assumptions where nobody says it"""
    learns: bool = True
    """a policy is trained"""
    generates: bool = False
    """responses are made here, or come from an engine"""
    grouped: bool = False
    """sequences are a prompt and one of a group of responses, whose every token is scored"""


LEARNING = (
    "tuning", "weights_dtype", "compute_dtype", "autocast", "optimizer", "optimizer.impl", "micro_batch",
    "accumulation", "seq_len", "packing", "padding", "labelled_frac", "image_tokens", "attention", "recompute",
    "recompute.reentrant", "loss", "gpus", "quant.kind", "quant.double", "quant.compute_dtype", "quant.rest_dtype",
    "lora.rank", "lora.targets", "lora.dtype", "lora.dropout", "framework", "algorithm",
)  # fmt: skip
"""paths that every training reads"""
POLICY = Role(name="policy", trains=True, leads=True)
GENERATOR = Role(name="policy", leads=True)
"""a model that only generates"""
REFERENCE = Role(name="reference")
ROLLOUT = Role(name="rollout", engine=True)
LOAD = Phase("load", (Instant("built", {"rollout": "absent"}),), when=("first",))


def training(role: Role, modes: Modes) -> tuple[Phase, ...]:
    """Forward, loss, backward and step of one role. FSDP's first block is a moment of its own: the root unit is there
    twice. Where layers differ, the worst of those between the first and the last is one too ("blocks")."""
    blocks = ("first block", "last block") if modes.sharded else ("last block",)
    inner = ("blocks",) if modes.mixed else ()
    return (
        Phase("forward", tuple(Instant(name, {role.name: "forward"}) for name in blocks)),
        Phase("loss", (Instant("head", {role.name: "loss"}),)),
        Phase(
            "backward",
            tuple(
                Instant(name, {role.name: "backward"})
                for name in ("loss", "first block", *inner, "last block", "embedding")
            ),
        ),
        Phase("step", (Instant("update", {role.name: "step"}),)),
    )


def scoring(name: str, role: Role) -> Phase:
    """A forward-only pass of one role."""
    return Phase(name, tuple(Instant(instant, {role.name: "infer"}) for instant in ("last block", "head")))


def generation(role: Role, when: tuple[When, ...] = ("first", "steady")) -> Phase:
    """Generation with the model's own code: the prompts in one pass, then token by token."""
    return Phase(
        "generate", tuple(Instant(name, {role.name: "generate"}) for name in ("prefill", "first token", "decode")), when
    )
