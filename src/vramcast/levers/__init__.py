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
from vramcast.types.result import Forecast, LeverResult, Price, gets_through

_PRICES: tuple[Price, ...] = ("free", "slower", "numerics", "quality")


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
    Lever("fused-loss", "free", edits.fused_loss, native_only=True),
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

    A job to which `check` does not answer yes: first what makes it a yes, then what nearly does. A tight one that gets
    through: first what makes it fit. Otherwise, and within these, by price and in the order of `LEVERS`; savings below
    a hundredth last.
    """
    return helping(pull_all(said, answer), answer)


def helping(found: Iterable[Pulled], answer: Forecast) -> list[LeverResult]:
    """What lowers the peak, of levers that were pulled; their order stays."""
    return [pulled.result for pulled in found if pulled.result is not None and _helps(pulled, answer)]


def pull_all(said: Understanding, answer: Forecast) -> list[Pulled]:
    """Every lever, applied or not: the best first, those that do not apply last. Where none alone is enough, or only at
    a high price, cheaper pairs that are enough are among them."""
    job = resolve(said)
    found = [_pulled(lever, job, said, answer) for lever in LEVERS]
    pairs = _pairs(found, said, answer) if _level(answer) > _YES else []
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
    for step in ladder if _level(answer) else ladder[:1]:
        tried.append(_step(lever, job, said, answer, step))
        if tried[-1].result is None or _enough(tried[-1], answer):
            break
    return min(tried, key=_nearest)


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
        gets_through=gets_through(after.verdict, after.peak),
    )
    return Pulled(lever, result, after, "")


def _nearest(pulled: Pulled) -> tuple[int, int]:
    """Of several steps of one lever: what answers best, the first of them; of those that do not fit the lowest peak."""
    if pulled.after is None:
        return _NO + 1, 0
    level = _level(pulled.after)
    return level, pulled.after.peak.bytes if level == _NO else 0


_TRIES, _PAIRS = 8, 3
"""pairs that are tried at each price, and how many are shown"""


def _pairs(singles: list[Pulled], said: Understanding, answer: Forecast) -> list[Pulled]:
    """Two levers that together make the job fit, the second pulled on the job with the first: the cheapest pairs, and
    only such as cost less than the cheapest lever that is enough alone.

    The first helps alone; the second may not, or not apply, before the first is pulled. Of each price, those are tried
    that would leave least if what they take off the high end added up, in the listed order.
    """
    high = answer.peak.needs_high_bytes
    saves = {
        pulled.lever.name: high - pulled.after.peak.needs_high_bytes for pulled in singles if pulled.after is not None
    }
    order = {lever.name: at for at, lever in enumerate(LEVERS)}
    pairs = [(first, lever) for first in singles if _helps(first, answer) for lever in _seconds(first, singles, answer)]
    pairs.sort(key=lambda pair: -saves[pair[0].lever.name] - saves.get(pair[1].name, 0))
    found: list[Pulled] = []
    alone = min((_price(pulled.lever) for pulled in singles if _enough(pulled, answer)), default=len(_PRICES))
    for price in range(alone):
        priced = [pair for pair in pairs if max(map(_price, (pair[0].lever, pair[1]))) == price][:_TRIES]
        priced.sort(key=lambda pair: (order[pair[1].name], order[pair[0].lever.name]))
        together = (_together(first, lever, said, answer) for first, lever in priced)
        found += [pulled for pulled in together if pulled is not None and _enough(pulled, answer)]
        if len(found) >= _PAIRS:
            break
    return found[:_PAIRS]


def _seconds(first: Pulled, singles: list[Pulled], answer: Forecast) -> Iterator[Lever]:
    """What may be pulled after a lever: each pair once, but for levers that do not help alone."""
    order = {lever.name: at for at, lever in enumerate(LEVERS)}
    for pulled in singles:
        helps = _helps(pulled, answer)
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


_YES, _NO = 1, 3


def _level(answer: Forecast) -> int:
    """How near a job is to fitting: 0 it does (or no card is named), 1 it is tight and gets through, 2 tight, 3 it does
    not."""
    if answer.verdict is None or answer.verdict == "fits":
        return 0
    if answer.verdict == "does_not_fit":
        return _NO
    return _YES if gets_through(answer.verdict, answer.peak) else 2


def _enough(pulled: Pulled, answer: Forecast) -> bool:
    """It makes a yes of a no, or lets a job fit that only gets through."""
    level = _level(answer)
    return pulled.after is not None and level > 0 and _level(pulled.after) <= min(level - 1, _YES)


def _helps(pulled: Pulled, answer: Forecast) -> bool:
    """It lowers the peak, or is enough."""
    return pulled.result is not None and (pulled.result.saves_bytes > 0 or _enough(pulled, answer))


def _rank(pulled: Pulled, answer: Forecast) -> tuple[bool, int, bool, int]:
    """The order of people: what helps, what is enough; what saves next to nothing last; then by price, as listed."""
    assert pulled.result is not None
    assert pulled.after is not None
    enough = _enough(pulled, answer)
    near = 0 if enough or not _level(answer) else 1 + _level(pulled.after)
    small = pulled.result.saves_bytes * 100 < answer.peak.bytes and not enough
    return not _helps(pulled, answer), near, small, _price(pulled.lever)


def in_articles(article: str) -> Iterator[tuple[str, Lever]]:
    """(place, lever) of one article's list (A or B), in its order."""
    places = sorted({place for lever in LEVERS for place in lever.articles if place.startswith(article)})
    for place in places:
        yield from ((place, lever) for lever in LEVERS if place in lever.articles)
