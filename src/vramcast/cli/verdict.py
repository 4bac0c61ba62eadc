"""The exit code of a verdict: one rule for `check`, its `--method trace` and `--compare`, and `trace`."""

from __future__ import annotations

import sys

from vramcast.types.result import Forecast, Verdict, is_yes
from vramcast.units import gib


def exit_of(answer: Forecast, *, strict: bool = False, failed: bool = False) -> int:
    """0 for yes. `failed`: it was seen to run out of memory. Without a card: one of the usual ones fits."""
    peak = answer.peak
    capacity = peak.capacity_bytes
    if answer.verdict is None or capacity is None:
        return int(bool(answer.cards) and all(card.verdict != "fits" for card in answer.cards))
    starts = all(engine.max_concurrency for group in answer.groups for engine in group.engines)
    return exit_code(
        answer.verdict,
        high=peak.needs_high_bytes,
        capacity=capacity,
        inside=peak.bytes <= capacity and starts and not failed,
        strict=strict,
    )


def exit_code(verdict: Verdict, *, high: int, capacity: int, inside: bool, strict: bool = False) -> int:
    """The rule of `is_yes`, and TIGHT is never a yes under `--strict`; why not is said on standard error."""
    if verdict != "tight":
        return int(verdict != "fits")
    if not inside:
        return 1
    if not is_yes(verdict, needs_high=high, capacity=capacity, inside=inside):
        print(f"tight, and no yes: what it needs ends up to {gib(high - capacity)} above the card", file=sys.stderr)
        return 1
    if strict:
        print("tight, and no yes under --strict", file=sys.stderr)
    return int(strict)
