"""What `levers` prints: every edit with its peak before and after, and why the others do not apply."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from vramcast.levers import LEVERS, Pulled, in_articles
from vramcast.report.why import verdict_line
from vramcast.report.words import edits, wrapped
from vramcast.types.result import SCHEMA, Forecast, LeverResult, Peak
from vramcast.units import GIB, gib

_WORDS = {"fits": "fits", "tight": "tight", "does_not_fit": "does not fit", None: ""}
_TITLES = {"A": "the four levers of article A, in its order", "B": "the seven tips of article B, in its order"}


class Applied(Struct, frozen=True):
    """A lever that applies, and where the peak stands after it."""

    lever: LeverResult
    peak: Peak


class Idle(Struct, frozen=True):
    """A lever that does not apply, and why."""

    name: str
    why: str


class Levers(Struct, frozen=True, kw_only=True):
    """The JSON of `levers`: the peak now, the edits that apply (best first), and those that do not."""

    schema: int
    before: Peak
    levers: list[Applied]
    idle: list[Idle]


def levers_of(answer: Forecast, pulled: list[Pulled]) -> Levers:
    """All levers of a job."""
    return Levers(
        schema=SCHEMA,
        before=answer.peak,
        levers=[Applied(item.result, item.after.peak) for item in pulled if item.result and item.after],
        idle=[Idle(item.lever.name, item.why) for item in pulled if item.result is None],
    )


def show_levers(answer: Forecast, pulled: list[Pulled]) -> str:
    """Ranked edits, re-estimated; then the articles' own lists; then what does not apply."""
    blocks = [
        [verdict_line(answer), f"peak   {answer.peak.phase} · {answer.peak.instant}"],
        list(_applied(pulled)),
        *(list(_article(article, title, pulled)) for article, title in _TITLES.items()),
        list(_idle(pulled)),
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def _applied(pulled: list[Pulled]) -> Iterator[str]:
    applied = [(item.result, item.after) for item in pulled if item.result is not None and item.after is not None]
    name = max((len(result.name) for result, _ in applied), default=0)
    yield f"{'lever':<{name + 2}}{'peak GiB':>9}{'saves':>9}  {'price':<9} {'then':<13} peak moves to"
    for result, after in applied:
        then = "gets through" if result.verdict == "tight" and result.gets_through else _WORDS[result.verdict]
        yield (
            f"  {result.name:<{name}}{result.peak_bytes / GIB:>9,.2f}{result.saves_bytes / GIB:>9,.2f}  "
            f"{result.price:<9} {then:<13} {after.peak.phase} · {after.peak.instant}"
        )
        yield from wrapped(edits(result), indent=" " * 6, hanging=" " * 8)


def _article(article: str, title: str, pulled: list[Pulled]) -> Iterator[str]:
    found = {item.lever.name: item for item in pulled}
    yield title
    for place, lever in in_articles(article):
        item = found[lever.name]
        outcome = _outcome(item.result) if item.result else item.why
        yield f"  {place[1:]} {lever.name:<22}{outcome}"


def _outcome(result: LeverResult) -> str:
    saved = result.saves_bytes
    return f"saves {gib(saved)}" if saved >= 0 else f"costs {gib(-saved)} more"


def _idle(pulled: list[Pulled]) -> Iterator[str]:
    idle = [item for item in pulled if item.result is None]
    if idle:
        yield "do not apply"
    for item in idle:
        yield f"  {item.lever.name:<24}{item.why}"


def lever_rows() -> list[dict[str, object]]:
    """The rows of `list levers`."""
    return [
        {
            "lever": lever.name,
            "price": lever.price,
            "articles": list(lever.articles),
            "what": lever.manual.split("\n")[0],
        }
        for lever in LEVERS
    ]
