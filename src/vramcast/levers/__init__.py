"""Levers: edits of a job that lower its peak. What one saves is always the job estimated again, never a formula."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct

from vramcast.errors import Refused
from vramcast.estimate import Resolved, edited, forecast, resolve
from vramcast.levers import edits
from vramcast.levers.edits import Edits
from vramcast.readers import native_keys
from vramcast.types.job import Understanding
from vramcast.types.paths import Value
from vramcast.types.result import Forecast, LeverResult, Price

_PRICES: tuple[Price, ...] = ("free", "slower", "numerics", "quality")


class Lever(Struct, frozen=True):
    """A named edit and its price. `articles` says where the founding articles list it: A1 to A4, B1 to B7."""

    name: str
    price: Price
    edit: Callable[[Resolved, Forecast], Edits | str]
    native_only: bool = False
    """applies only where the framework has a key for it"""
    articles: tuple[str, ...] = ()

    @property
    def manual(self) -> str:
        """What the lever does."""
        from inspect import cleandoc  # slow to import, and only the manual needs it

        return cleandoc(self.edit.__doc__ or "")


LEVERS = (
    Lever("fused-step", "free", edits.fused_step),
    Lever("attention-kernel", "free", edits.attention_kernel),
    Lever("expandable-segments", "free", edits.expandable),
    Lever("non-reentrant", "free", edits.non_reentrant),
    Lever("engine-fraction", "free", edits.fraction),
    Lever("recompute", "slower", edits.recompute, articles=("B2",)),
    Lever("smaller-micro-batch", "slower", edits.smaller_batch, articles=("B3",)),
    Lever("smaller-token-budget", "slower", edits.smaller_budget, articles=("B3",)),
    Lever("smaller-scoring-batch", "slower", edits.smaller_scoring),
    Lever("shard", "slower", edits.shard, articles=("A3",)),
    Lever("zero3", "slower", edits.zero, articles=("A3",)),
    Lever("tensor-parallel", "slower", edits.tensor_parallel, articles=("B5",)),
    Lever("engine-sleep", "slower", edits.sleep),
    Lever("engine", "slower", edits.engine, articles=("B4",)),
    Lever("offload-reference", "slower", edits.offload_reference, native_only=True, articles=("A1",)),
    Lever("offload-optimizer", "slower", edits.offload_optimizer, native_only=True, articles=("A3", "B7")),
    Lever("offload-weights", "slower", edits.offload_weights, native_only=True, articles=("B7",)),
    Lever("bf16-weights", "numerics", edits.bf16_weights, articles=("A2", "B6")),
    Lever("8-bit-optimizer", "numerics", edits.eight_bit_optimizer),
    Lever("engine-quantisation", "numerics", edits.engine_quant, articles=("A2", "B6")),
    Lever("kv-dtype", "numerics", edits.kv_dtype, articles=("A2",)),
    Lever("quantisation", "numerics", edits.quantise, articles=("B6",)),
    Lever("double-quantisation", "numerics", edits.double_quantise),
    Lever("no-reference", "quality", edits.no_reference, articles=("A1",)),
    Lever("lora", "quality", edits.lora, articles=("A2", "B1")),
    Lever("lower-rank", "quality", edits.lower_rank),
    Lever("smaller-group", "quality", edits.smaller_group, articles=("A4",)),
    Lever("shorter-sequences", "quality", edits.shorter, articles=("B3",)),
)
"""All levers, the cheapest prices first."""


class Pulled(NamedTuple):
    """A lever on a job: what came of it, or why it does not apply."""

    lever: Lever
    result: LeverResult | None
    after: Forecast | None
    why: str


def pull(said: Understanding, answer: Forecast) -> list[LeverResult]:
    """Every lever that lowers the peak of the job, the best first.

    A job that does not fit: first what makes it fit, by price, then what saves most. A job that fits: by price, savings
    below a hundredth last.
    """
    return helping(pull_all(said, answer), answer)


def helping(found: Iterable[Pulled], answer: Forecast) -> list[LeverResult]:
    """What lowers the peak, of levers that were pulled; their order stays."""
    return [pulled.result for pulled in found if pulled.result is not None and _helps(pulled, answer)]


def pull_all(said: Understanding, answer: Forecast) -> list[Pulled]:
    """Every lever, applied or not: the best first, those that do not apply last."""
    job = resolve(said)
    found = [_pulled(lever, job, said, answer) for lever in LEVERS]
    applied = [pulled for pulled in found if pulled.result is not None]
    applied.sort(key=lambda pulled: _rank(pulled, answer))
    return [*applied, *(pulled for pulled in found if pulled.result is None)]


def _pulled(lever: Lever, job: Resolved, said: Understanding, answer: Forecast) -> Pulled:
    edit = lever.edit(job, answer)
    if isinstance(edit, str):
        return Pulled(lever, None, None, edit)
    native = _native(job, edit)
    if lever.native_only and not native:
        return Pulled(lever, None, None, f"{job.framework} has no key for it")
    try:
        after = forecast(edited(said, dict(edit), f"lever {lever.name}"), cards=False)
    except Refused as refused:
        return Pulled(lever, None, None, "; ".join(mistake.fact for mistake in refused.mistakes))
    result = LeverResult(
        name=lever.name,
        set=edit,
        native=native,
        peak_bytes=after.peak.bytes,
        saves_bytes=answer.peak.bytes - after.peak.bytes,
        price=lever.price,
        verdict=after.verdict,
    )
    return Pulled(lever, result, after, "")


def _native(job: Resolved, edit: Edits) -> dict[str, Value]:
    """The edit in the framework's keys; empty unless all of it can be said in them."""
    parts = [native_keys(job.framework, {path: value}) for path, value in edit.items()]
    return {key: value for part in parts for key, value in part.items()} if all(parts) else {}


def _helps(pulled: Pulled, answer: Forecast) -> bool:
    """It lowers the peak, or makes a job fit that did not."""
    result = pulled.result
    assert result is not None
    return result.saves_bytes > 0 or (answer.verdict == "does_not_fit" and result.verdict == "fits")


def _rank(pulled: Pulled, answer: Forecast) -> tuple[bool, bool, bool, int, int]:
    result = pulled.result
    assert result is not None
    stuck = answer.verdict in ("does_not_fit", "tight")
    rescues = not stuck or result.verdict == "fits"
    small = result.saves_bytes * 100 < answer.peak.bytes
    return (
        not _helps(pulled, answer),
        not rescues,
        small and not (stuck and rescues),
        _PRICES.index(result.price) if rescues else 0,
        -result.saves_bytes,
    )


def in_articles(article: str) -> Iterator[tuple[str, Lever]]:
    """(place, lever) of one article's list (A or B), in its order."""
    places = sorted({place for lever in LEVERS for place in lever.articles if place.startswith(article)})
    for place in places:
        yield from ((place, lever) for lever in LEVERS if place in lever.articles)
