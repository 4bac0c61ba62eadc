"""The rules' answer to a job: phases of lines, their sums in the articles' own GB, and what that says of a card."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from msgspec import Struct

from vramcast import __version__
from vramcast.catalog.gpus import find_gpu
from vramcast.rules_of_thumb.lines import DECIMAL, Line, decimal, whole_bytes
from vramcast.rules_of_thumb.question import Question, generated, lengths, question
from vramcast.rules_of_thumb.rules import activations, cache, frozen, share, trained
from vramcast.rules_of_thumb.shapes import Shape
from vramcast.types.job import Understanding
from vramcast.types.paths import Value

ARTICLE_SCHEMA = 1
GENERATION, TRAINING, EVERYTHING = "generation", "training", "everything"


class ArticleTerm(Struct, frozen=True, kw_only=True):
    """One rule applied. `gb` is in the unit that `unit` names; `bound`: the article only says "less"."""

    rule: int
    name: str
    role: str
    formula: str
    figures: str
    bytes: int
    gb: Decimal
    unit: str
    bound: bool
    note: str


class ArticlePhase(Struct, frozen=True, kw_only=True):
    """What the rules add up. Σ gb of the terms is `gb`, although their units differ: so do the articles."""

    name: str
    gb: Decimal
    bound: bool
    """a term is a bound, so the sum is one"""
    terms: list[ArticleTerm]


class ArticleInput(Struct, frozen=True):
    """A value that a rule reads, and who said it."""

    path: str
    value: Value
    origin: str


class ArticleForecast(Struct, frozen=True, kw_only=True):
    """What the rules of the two articles say of one GPU. `fits` is null without a card."""

    schema: int
    version: str
    model: Shape
    inputs: list[ArticleInput]
    phases: list[ArticlePhase]
    peak_phase: str
    peak_gb: Decimal
    gpu: str | None
    capacity_gb: Decimal | None
    fits: bool | None
    unread: list[str]


class Sum(NamedTuple):
    """A phase before it is rounded for printing."""

    name: str
    lines: list[Line]

    @property
    def gb(self) -> Fraction:
        return sum((line.gb for line in self.lines), Fraction(0))


def by_rules(said: Understanding) -> ArticleForecast:
    """Rules 1 to 13 on a job.

    Raises:
        Refused: a job that the rules do not cover.
    """
    return answer(question(said))


def answer(asked: Question) -> ArticleForecast:
    """The whole answer to a question."""
    sums = sums_of(asked)
    peak = max(sums, key=lambda found: found.gb)
    card = asked.role("policy").gpu
    gpu = find_gpu(card) if card else None
    capacity = Fraction(gpu.vendor_bytes.value, 10**9) if gpu else None
    return ArticleForecast(
        schema=ARTICLE_SCHEMA,
        version=__version__,
        model=asked.shape(),
        inputs=[ArticleInput(*found) for found in asked.inputs()],
        phases=[_phase(found) for found in sums],
        peak_phase=peak.name,
        peak_gb=decimal(peak.gb),
        gpu=gpu.id if gpu else None,
        capacity_gb=None if capacity is None else decimal(capacity),
        fits=None if capacity is None else peak.gb <= capacity,
        unread=asked.unread,
    )


def _phase(found: Sum) -> ArticlePhase:
    bound = any(line.bound for line in found.lines)
    return ArticlePhase(name=found.name, gb=decimal(found.gb), bound=bound, terms=_terms(found))


def _terms(found: Sum) -> list[ArticleTerm]:
    return [
        ArticleTerm(
            rule=line.rule,
            name=line.part,
            role=line.role,
            formula=line.formula,
            figures=line.figures,
            bytes=whole_bytes(line.size),
            gb=decimal(line.gb),
            unit=line.unit,
            bound=line.bound,
            note=line.note,
        )
        for line in found.lines
    ]


def sums_of(asked: Question) -> list[Sum]:
    """The phases that the articles add up.

    Inference (rule 4) and SFT (rule 5) are one sum each. GRPO with adapters is the larger of two (rule 6). Everything
    else is added up as if nothing were ever freed (rules 1 to 3, as A does).
    """
    settings, shape = asked.role("policy"), asked.shape()
    kv = cache(shape, settings, generated(settings), lengths(settings))
    if settings.algorithm == "inference":
        return [Sum(GENERATION, share([frozen(shape, settings, "policy", 4), kv], settings, "policy"))]
    policy = share(trained(shape, settings, "policy"), settings, "policy")
    graph = share([activations(shape, settings, settings.micro_batch, lengths(settings))], settings, "policy")
    if settings.algorithm == "sft":
        return [Sum(TRAINING, [*policy, *graph])]
    reference, reward = _reference(asked), _reward(asked)
    if settings.tuning in ("lora", "qlora") and settings.algorithm == "grpo":
        again = [_second_cache(asked)] if any(line.size for line in reward) else []
        return [
            Sum(GENERATION, [*policy, *reference, *reward, kv, *again]),
            Sum(TRAINING, [*policy, *reference, *graph]),
        ]
    return [Sum(EVERYTHING, [*policy, *_critic(asked), *reference, *reward, kv, *graph])]


def _reference(asked: Question) -> list[Line]:
    """Rule 2. No copy, no bytes: the base under switched-off adapters, a KL coefficient of 0."""
    settings = asked.role("reference")
    match settings.reference_kind:
        case "copy" | "swapped":
            weights = frozen(asked.shape("reference"), settings, "reference")
            own = asked.facts.get("reference.offload.weights")
            offloaded = settings.reference_kind == "swapped" or (own is not None and own.value != "none")
            return share([weights.moved("on the host") if offloaded else weights], settings, "reference")
        case kind:
            return [_nothing(2, "reference", f"reference.kind = {kind}")] if kind != "none" else []


def _reward(asked: Question) -> list[Line]:
    """Rule 2: a neural reward model is a frozen copy; a verifier made of rules holds nothing."""
    settings = asked.role("reward")
    if settings.reward_kind == "model":
        return share([frozen(asked.shape("reward"), settings, "reward")], settings, "reward")
    return [_nothing(2, "reward", f"reward.kind = {settings.reward_kind}")] if settings.reward_kind != "none" else []


def _critic(asked: Question) -> list[Line]:
    """Rule 3: PPO trains a value model as large as the policy; GRPO has none."""
    settings = asked.role("critic")
    if settings.critic_kind == "none":
        return []
    return share(trained(asked.shape("critic"), settings, "critic"), settings, "critic")


def _second_cache(asked: Question) -> Line:
    """Rule 7: B counts a second cache, for the reward model."""
    settings = asked.role("policy")
    return cache(asked.shape("reward"), settings, generated(settings), lengths(settings), "reward")


def _nothing(rule: int, role: str, why: str) -> Line:
    return Line(rule, "weights", role, "0", "0", Fraction(0), DECIMAL, note=why)
