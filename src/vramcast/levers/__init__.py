"""Levers: edits of a job that lower its peak. What one saves is always the job estimated again, never a formula."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct, structs

from vramcast.errors import Refused
from vramcast.estimate import Resolved, edited, forecast, resolve
from vramcast.levers import edits
from vramcast.levers.edits import Edits, Ladder
from vramcast.readers import native_keys
from vramcast.types.job import Understanding
from vramcast.types.paths import Value
from vramcast.types.result import Forecast, LeverResult, Price, Verdict, gets_through

_PRICES: tuple[Price, ...] = ("free", "slower", "numerics", "quality")
_NEAR: tuple[Verdict | None, ...] = ("fits", "tight", "does_not_fit", None)


class Lever(Struct, frozen=True):
    """A named edit and its price. `articles` says where the founding articles list it: A1 to A4, B1 to B7."""

    name: str
    price: Price
    edit: Callable[[Resolved, Forecast], Edits | Ladder | str]
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
    Lever("double-quantisation", "numerics", edits.double_quantise),
    Lever("no-reference", "quality", edits.no_reference, articles=("A1",)),
    Lever("shorter-sequences", "quality", edits.shorter, articles=("B3",)),
    Lever("smaller-group", "quality", edits.smaller_group, articles=("A4",)),
    Lever("lower-rank", "quality", edits.lower_rank),
    Lever("lora", "quality", edits.lora, articles=("A2", "B1")),
    Lever("quantisation", "quality", edits.quantise, articles=("B6",)),
)
"""All levers, the cheapest prices first, and within a price the smallest change."""


class Pulled(NamedTuple):
    """A lever on a job: what came of it, or why it does not apply."""

    lever: Lever
    result: LeverResult | None
    after: Forecast | None
    why: str


def pull(said: Understanding, answer: Forecast) -> list[LeverResult]:
    """Every lever that lowers the peak of the job, in the order in which people accept them.

    A job that may not fit: first what makes it fit, then what nearly does. Otherwise, and within these, by price and in
    the order of `LEVERS`; savings below a hundredth last.
    """
    return helping(pull_all(said, answer), answer)


def helping(found: Iterable[Pulled], answer: Forecast) -> list[LeverResult]:
    """What lowers the peak, of levers that were pulled; their order stays."""
    return [pulled.result for pulled in found if pulled.result is not None and _helps(pulled, answer)]


def pull_all(said: Understanding, answer: Forecast) -> list[Pulled]:
    """Every lever, applied or not: the best first, those that do not apply last. Where none alone makes the job fit, or
    only at a high price, cheaper pairs that do are among them."""
    job = resolve(said)
    found = [_pulled(lever, job, said, answer) for lever in LEVERS]
    pairs = _pairs(found, said, answer) if _stuck(answer) else []
    applied = [pulled for pulled in (*found, *pairs) if pulled.result is not None]
    applied.sort(key=lambda pulled: _rank(pulled, answer))
    return [*applied, *(pulled for pulled in found if pulled.result is None)]


def _pulled(lever: Lever, job: Resolved, said: Understanding, answer: Forecast) -> Pulled:
    edit = lever.edit(job, answer)
    if isinstance(edit, str):
        return Pulled(lever, None, None, edit)
    ladder = edit if isinstance(edit, list) else [edit]
    if lever.native_only and not _native(job, ladder[0]):
        return Pulled(lever, None, None, f"{job.framework} has no key for it")
    tried: list[Pulled] = []
    for step in ladder if _stuck(answer) else ladder[:1]:
        tried.append(_step(lever, job, said, answer, step))
        if tried[-1].result is None or _solves(tried[-1], answer):
            break
    return min(tried, key=lambda pulled: _nearest(pulled, answer))


def _step(lever: Lever, job: Resolved, said: Understanding, answer: Forecast, edit: Edits) -> Pulled:
    """The job asked again with one edit."""
    try:
        after = forecast(edited(said, dict(edit), f"lever {lever.name}"), cards=False)
    except Refused as refused:
        return Pulled(lever, None, None, "; ".join(mistake.fact for mistake in refused.mistakes))
    result = LeverResult(
        name=lever.name,
        set=edit,
        native=_native(job, edit),
        peak_bytes=after.peak.bytes,
        saves_bytes=answer.peak.bytes - after.peak.bytes,
        price=lever.price,
        verdict=after.verdict,
    )
    return Pulled(lever, result, after, "")


def _nearest(pulled: Pulled, answer: Forecast) -> tuple[bool, int, int]:
    """Of several steps of one lever: what fits, else what is tight, the first of them; else the lowest peak."""
    if pulled.result is None:
        return True, 0, 0
    near = _near(pulled, answer)
    return False, near, pulled.result.peak_bytes if near == len(_NEAR) - 1 else 0


_TRIES, _PAIRS = 5, 3
"""pairs that are tried at each price, and how many are shown"""


def _pairs(singles: list[Pulled], said: Understanding, answer: Forecast) -> list[Pulled]:
    """Two levers that together make the job fit, the second pulled on the job with the first: the cheapest pairs, and
    only such as cost less than the cheapest lever that is enough alone.

    The first helps alone; the second may not, or not apply, before the first is pulled. Of each price, those are tried
    first that would be enough if what they take off the high end added up, in the listed order; then by that sum.
    """
    high = answer.peak.needs_high_bytes
    saves = {
        pulled.lever.name: high - pulled.after.peak.needs_high_bytes for pulled in singles if pulled.after is not None
    }
    order = {lever.name: at for at, lever in enumerate(LEVERS)}

    def promise(pair: tuple[Pulled, Lever]) -> tuple[bool, int, int]:
        first, second = pair[0].lever.name, pair[1].name
        left = high - saves[first] - saves.get(second, 0) - (answer.peak.capacity_bytes or 0)
        return (True, left, 0) if left > 0 else (False, order[second], order[first])

    firsts = [pulled for pulled in singles if pulled.result is not None and _helps(pulled, answer)]
    pairs = [(first, lever) for first in firsts for lever in _seconds(first, singles, answer)]
    pairs.sort(key=promise)
    found: list[Pulled] = []
    alone = min((_price(pulled.lever) for pulled in singles if _solves(pulled, answer)), default=len(_PRICES))
    for price in range(alone):
        priced = [pair for pair in pairs if max(map(_price, (pair[0].lever, pair[1]))) == price]
        together = (_together(first, lever, said, answer) for first, lever in priced[:_TRIES])
        found += [pulled for pulled in together if pulled is not None and _solves(pulled, answer)]
        if len(found) >= _PAIRS:
            break
    return found[:_PAIRS]


def _seconds(first: Pulled, singles: list[Pulled], answer: Forecast) -> Iterator[Lever]:
    """What may be pulled after a lever: each pair once, but for levers that do not help alone."""
    order = {lever.name: at for at, lever in enumerate(LEVERS)}
    for pulled in singles:
        helps = pulled.result is not None and _helps(pulled, answer)
        refused = pulled.result is None and "not modelled" in pulled.why
        after = order[pulled.lever.name] > order[first.lever.name]
        if not refused and (after or not helps) and pulled.lever is not first.lever:
            yield pulled.lever


def _price(lever: Lever) -> int:
    return _PRICES.index(lever.price)


def _together(first: Pulled, lever: Lever, said: Understanding, answer: Forecast) -> Pulled | None:
    """A lever on the job that the first made; None where both speak of one path."""
    assert first.result is not None
    assert first.after is not None
    changed = edited(said, dict(first.result.set), f"lever {first.lever.name}")
    job = resolve(changed)
    pulled = _pulled(lever, job, changed, first.after)
    if pulled.result is None or pulled.result.set.keys() & first.result.set.keys():
        return None
    name, price = f"{first.lever.name} + {lever.name}", _PRICES[max(_price(first.lever), _price(lever))]
    both: Edits = {**first.result.set, **pulled.result.set}
    result = structs.replace(pulled.result, name=name, price=price, set=both, native=_native(job, both),
                             saves_bytes=answer.peak.bytes - pulled.result.peak_bytes)  # fmt: skip
    return Pulled(Lever(name, price, lever.edit), result, pulled.after, "")


def _native(job: Resolved, edit: Edits) -> dict[str, Value]:
    """The edit in the framework's keys; empty unless all of it can be said in them."""
    parts = [native_keys(job.framework, {path: value}) for path, value in edit.items()]
    return {key: value for part in parts for key, value in part.items()} if all(parts) else {}


def _stuck(answer: Forecast) -> bool:
    return answer.verdict in ("tight", "does_not_fit")


def _near(pulled: Pulled, answer: Forecast) -> int:
    """How near a lever brings the job to what is wanted: 0 where it fits, or gets through and did not before."""
    after = pulled.after
    if after is None:
        return len(_NEAR)
    return 0 if not _through(answer) and _through(after) else _NEAR.index(after.verdict)


def _through(answer: Forecast) -> bool:
    return gets_through(answer.verdict, answer.peak)


def _solves(pulled: Pulled, answer: Forecast) -> bool:
    return _near(pulled, answer) == 0


def _helps(pulled: Pulled, answer: Forecast) -> bool:
    """It lowers the peak, or makes a job fit that might not."""
    result = pulled.result
    assert result is not None
    return result.saves_bytes > 0 or (_stuck(answer) and _solves(pulled, answer))


def _rank(pulled: Pulled, answer: Forecast) -> tuple[bool, int, bool, int]:
    """The order of people: what helps, what makes it fit; what saves next to nothing last; then by price, as listed."""
    result = pulled.result
    assert result is not None
    near = _near(pulled, answer) if _stuck(answer) else 0
    small = result.saves_bytes * 100 < answer.peak.bytes and not (_stuck(answer) and _solves(pulled, answer))
    return not _helps(pulled, answer), near, small, _PRICES.index(result.price)


def in_articles(article: str) -> Iterator[tuple[str, Lever]]:
    """(place, lever) of one article's list (A or B), in its order."""
    places = sorted({place for lever in LEVERS for place in lever.articles if place.startswith(article)})
    for place in places:
        yield from ((place, lever) for lever in LEVERS if place in lever.articles)
