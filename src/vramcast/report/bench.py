"""What `bench` prints: a line a quantity, then every reading that is not exact, with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from vramcast.bench import Bench, Reading, is_exact

_REASONS_SHOWN = 12


def show_bench(answer: Bench) -> str:
    """The summary, the wrong readings one by one, and the reasons of the skipped ones."""
    return "\n".join(_lines(answer))


def _lines(answer: Bench) -> Iterator[str]:
    yield f"{'quantity':<28}{'readings':>9}{'exact':>9}{'wrong':>9}{'skipped':>9}"
    for row in answer.summary:
        yield f"  {row.quantity:<26}{row.readings:>9,}{row.exact:>9,}{row.wrong:>9,}{row.skipped:>9,}"
    yield from _wrong([row for row in answer.rows if not row.skipped_reason and not is_exact(row)])
    yield from _skipped([row for row in answer.rows if row.skipped_reason])


def _wrong(found: list[Reading]) -> Iterator[str]:
    if found:
        yield "wrong"
    for row in found:
        yield f"  {row.id}: {row.quantity} {row.predicted:,}, measured {row.measured:,}"


def _skipped(found: list[Reading]) -> Iterator[str]:
    if found:
        yield "skipped"
    reasons = Counter(str(row.skipped_reason) for row in found)
    for reason, count in reasons.most_common(_REASONS_SHOWN):
        first = next(row.id for row in found if row.skipped_reason == reason)
        others = f" and {count - 1:,} more" if count > 1 else ""
        yield f"  {first}{others}: {reason}"
    if len(reasons) > _REASONS_SHOWN:
        yield f"  {len(reasons) - _REASONS_SHOWN} more reasons: --json has them all"
