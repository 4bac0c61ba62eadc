"""What was said and changes nothing. Each said value is taken away once and the job answered again: what leaves the
answer as it is, is listed with the cause, or with the value that does as well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest

from msgspec import structs

from vramcast.catalog.gpus import Gpu
from vramcast.errors import Refused
from vramcast.estimate.causes import absent, cause
from vramcast.estimate.host import nodes
from vramcast.estimate.modelled import NOTHING_MORE, Also
from vramcast.estimate.pools import Pool, describe
from vramcast.estimate.resolve import Resolved, resolve
from vramcast.estimate.timeline import after_each_other, instants
from vramcast.types.job import Fact, Understanding
from vramcast.types.paths import Value, find, show_value
from vramcast.types.result import Ineffective, PhaseBytes

_PACKED = ("quant.double", "quant.storage", "quant.bits", "quant.group")


def ineffective(said: Understanding, job: Resolved, paths: Iterable[str] = ()) -> list[Ineffective]:
    """Values that the user set and that leave the answer of the formulas as it is; of `paths` only, if there are any.

    A value that the job has anyway is none of them. One key of a configuration may say several paths: it has an effect
    if one of them has, and then only those of a known cause are listed.
    """
    others = _without_each(said, job, [*paths] or [*said.winners()])
    changed = [(fact, other, _same_answer(job, other)) for fact, other in others]
    effective = {fact.origin for fact, _, same in changed if not same}
    causes = [(fact, other, _cause(fact.path, job)) for fact, other, same in changed if same]
    found = [
        Ineffective(fact.path, fact.value, why or _replaced(fact.path, other))
        for fact, other, why in causes
        if why or not (fact.origin.key and fact.origin in effective)
    ]
    return [*found, *_idle(said)]


def untouched(said: Understanding, job: Resolved, also: Also) -> list[Ineffective]:
    """Those of them whose cause is known, for another method than the formulas, which knows more values (`also`)."""
    others = _without_each(said, job, [*said.winners()], also)
    found = [(fact, absent(fact.path, job.settings)) for fact, _ in others]
    return [*(Ineffective(fact.path, fact.value, why) for fact, why in found if why), *_idle(said)]


def _idle(said: Understanding) -> list[Ineffective]:
    """Keys of a configuration that its reader knows to change nothing."""
    return [Ineffective(item.key, item.value, item.why) for item in said.idle]


def _without_each(
    said: Understanding, job: Resolved, paths: Iterable[str], also: Also | None = None
) -> Iterator[tuple[Fact, Resolved]]:
    """Every value that was said, and the job without it, where that is another job. One that the job cannot do without
    has an effect."""
    facts = said.winners()
    for path in paths:
        fact = facts[path]
        if fact.origin.is_default:
            continue
        rest = structs.replace(said, facts=[other for other in said.facts if other.path != path])
        try:
            other = resolve(rest, also or NOTHING_MORE, programs=also is None)
        except Refused:
            continue
        if not _same_job(path, job, other) or _value(path, job) != fact.value:
            yield fact, other


def _cause(path: str, job: Resolved) -> str:
    if job.quantisation is not None and path in _PACKED:
        return f"the checkpoint is packed already: {job.quantisation.label}"
    return cause(path, job.settings)


def _same_job(path: str, one: Resolved, other: Resolved) -> bool:
    if (one.arch, one.gpu, one.card_named, one.recipe) != (other.arch, other.gpu, other.card_named, other.recipe):
        return False
    role, _ = find(path)
    return all(one.role(name) == other.role(name) for name in {"policy", "reference", role or "policy"})


def _same_answer(one: Resolved, other: Resolved) -> bool:
    """The same bytes in every term of every instant, on the same card; the same engine and the same host memory."""
    try:
        return _card(one) == _card(other) and nodes(one) == nodes(other) and _same_timeline(one, other)
    except Refused:  # a traced model that was saved has no answer to the other job
        return False


def _same_timeline(one: Resolved, other: Resolved) -> bool:
    phases: list[PhaseBytes] = []
    pools: tuple[Pool | None, Pool | None] = (None, None)
    for ours, theirs in zip_longest(instants(one), instants(other)):
        if ours is None or theirs is None or ours[0] != theirs[0]:
            return False
        phases.append(ours[0])
        pools = ours[1], theirs[1]
    if after_each_other(one, phases) != after_each_other(other, phases):
        return False
    mine, its = pools
    return mine is None or its is None or describe(one, mine, phases) == describe(other, its, phases)


def _card(job: Resolved) -> tuple[Gpu, bool, int]:
    """The card, and what decides how much of it there is."""
    return job.gpu, job.card_named, job.settings.busy_bytes


def _value(path: str, job: Resolved) -> Value:
    role, known = find(path)
    return getattr(job.role(role or "policy"), known.attribute)


def _replaced(path: str, other: Resolved) -> str:
    """Without a known cause: what does as well."""
    value = _value(path, other)
    return f"the answer is the same with {show_value(value)}" if value is not None else "the answer is the same without"
