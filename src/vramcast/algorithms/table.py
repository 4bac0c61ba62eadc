"""The words of a phase table."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

State: TypeAlias = Literal["absent", "rest", "held", "infer", "generate", "forward", "loss", "backward", "step"]
When: TypeAlias = Literal["first", "steady"]


class Instant(Struct, frozen=True):
    """A moment inside a phase at which a peak can stand; a role that is not named rests."""

    name: str
    states: dict[str, State]


class Phase(Struct, frozen=True):
    """A step of an algorithm. `when` says in which runs of the loop it happens."""

    name: str
    instants: tuple[Instant, ...]
    when: tuple[When, ...] = ("first", "steady")


class Algorithm(Struct, frozen=True):
    """Phases in their order. `about` is the manual's sentence."""

    name: str
    about: str
    roles: tuple[str, ...]
    phases: tuple[Phase, ...]


LOAD = Phase("load", (Instant("built", {}),), when=("first",))


def training(role: str) -> tuple[Phase, ...]:
    """Forward, loss, backward and step of one role."""
    return (
        Phase("forward", (Instant("last block", {role: "forward"}),)),
        Phase("loss", (Instant("head", {role: "loss"}),)),
        Phase(
            "backward",
            tuple(Instant(name, {role: "backward"}) for name in ("loss", "first block", "last block", "embedding")),
        ),
        Phase("step", (Instant("update", {role: "step"}),)),
    )
