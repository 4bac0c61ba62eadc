"""What we answer: the JSON of `check`, schema 1. Every byte count is an `int`."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from vramcast.types.paths import Value

SCHEMA = 1
Verdict: TypeAlias = Literal["fits", "tight", "does_not_fit"]
Price: TypeAlias = Literal["free", "slower", "numerics", "quality"]
When: TypeAlias = Literal["first", "steady"]


class TermBytes(Struct, frozen=True, kw_only=True):
    """One named sum at one instant."""

    name: str
    role: str
    process: str
    bytes: int
    low_bytes: int
    high_bytes: int
    counter: Literal["allocated", "cached", "outside"]
    elastic: bool
    formula: str
    figures: str
    basis: Literal["exact", "derived", "calibrated"]
    source: str


class ProcessBytes(Struct, frozen=True, kw_only=True):
    """One CUDA context on a GPU: reserved = allocated + cached; device bytes = reserved + other."""

    name: str
    allocated_bytes: int
    reserved_bytes: int
    other_bytes: int


class PhaseBytes(Struct, frozen=True, kw_only=True):
    """One instant of a phase. Σ terms = bytes = Σ processes (reserved + other)."""

    name: str
    instant: str
    rank: str
    when: When
    states: dict[str, str]
    bytes: int
    low_bytes: int
    high_bytes: int
    processes: list[ProcessBytes]
    terms: list[TermBytes]


class EngineBytes(Struct, frozen=True, kw_only=True):
    """What an inference engine takes and what that is good for."""

    role: str
    pool_bytes: int
    kv_bytes: int
    kv_bytes_per_token: int
    """of a token that every layer still sees: inside the windows"""
    kv_tokens: int
    kv_least_bytes: int
    """the pool that one sequence of the engine's length needs"""
    max_concurrency: int
    waves: int
    fraction_low: float | None
    fraction_high: float | None


class Group(Struct, frozen=True, kw_only=True):
    """GPUs on which roles live together."""

    name: str
    roles: list[str]
    gpu: str | None
    gpus: int
    capacity_bytes: int | None
    phases: list[PhaseBytes]
    engines: list[EngineBytes]


class NodePhase(Struct, frozen=True, kw_only=True):
    """Host memory of one machine in one phase."""

    name: str
    phase: str
    host_bytes: int
    host_pinned_bytes: int
    host_capacity_bytes: int | None
    terms: list[TermBytes]


class Peak(Struct, frozen=True, kw_only=True):
    """The instant with the least room; bytes are the demand there, low and high the group's largest."""

    bytes: int
    low_bytes: int
    high_bytes: int
    capacity_bytes: int | None
    margin_bytes: int | None
    needs_high_bytes: int
    """the largest high without cached blocks that fit nothing: PyTorch gives those back before an allocation fails"""
    resource: Literal["gpu", "host"]
    group: str
    phase: str
    instant: str
    rank: str
    when: When


_FAR_PERCENT = 10


def is_yes(verdict: Verdict, *, needs_high: int, capacity: int, inside: bool) -> bool:
    """Whether a verdict is a yes: the job fits, or it is tight, its point is `inside` the card, and the high end of
    what it needs is at most a tenth above the card. An end that is far above has a cause that nobody has ruled out."""
    if verdict != "tight":
        return verdict == "fits"
    return inside and needs_high * 100 <= capacity * (100 + _FAR_PERCENT)


def gets_through(verdict: Verdict | None, peak: Peak) -> bool:
    """Whether an answer is a yes; without a card: no."""
    if verdict is None or peak.capacity_bytes is None:
        return False
    inside = peak.bytes <= peak.capacity_bytes
    return is_yes(verdict, needs_high=peak.needs_high_bytes, capacity=peak.capacity_bytes, inside=inside)


class Assumption(Struct, frozen=True):
    """A value nobody said, and whose it is."""

    path: str
    value: Value
    origin: str


class UnreadKey(Struct, frozen=True):
    """A key that was found and not understood."""

    key: str
    where: str


class Ignored(Struct, frozen=True):
    """A value that lost to another."""

    path: str
    value: Value
    origin: str
    winner: Value
    winner_origin: str


class Ineffective(Struct, frozen=True):
    """A value that was set and changes nothing in this job."""

    path: str
    value: Value
    why: str


class Priced(Struct, frozen=True, kw_only=True):
    """Whose code was priced: `trl==1.16.0`, and how the version is known; `assumed`: nobody said it."""

    value: str
    origin: str
    assumed: bool


class LeverResult(Struct, frozen=True, kw_only=True):
    """An edit of the job, and the job estimated again with it."""

    name: str
    set: dict[str, Value]
    native: dict[str, Value]
    peak_bytes: int
    saves_bytes: int
    price: Price
    verdict: Verdict | None
    gets_through: bool
    """with it, `check` answers yes"""


class Card(Struct, frozen=True):
    """A card of the catalogue, asked whether the job fits."""

    gpu: str
    capacity_bytes: int
    peak_bytes: int
    verdict: Verdict


class Forecast(Struct, frozen=True, kw_only=True):
    """The whole answer. Without a card named, `verdict` is null and `cards` lists the catalogue."""

    schema: int
    version: str
    predictions: int
    verdict: Verdict | None
    framework: Priced
    job: dict[str, Value]
    peak: Peak
    groups: list[Group]
    nodes: list[NodePhase]
    cards: list[Card]
    assumptions: list[Assumption]
    unread: list[UnreadKey]
    ignored: list[Ignored]
    ineffective: list[Ineffective]
    warnings: list[str]
    levers: list[LeverResult]
    fits_up_to_tokens: int | None = None
    """of a padding-free job that may not fit at full length: with at most so many tokens in a micro-batch it does"""
