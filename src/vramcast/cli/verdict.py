"""The exit code of a verdict: one rule for `check`, its `--method trace` and `--compare`, and `trace`."""

from __future__ import annotations

import sys

from vramcast.types.result import Forecast, Verdict
from vramcast.units import gib

FAR = 10
"""percent of the card: a range that ends further above it than that is no yes"""


def exit_of(answer: Forecast, *, strict: bool = False, failed: bool = False) -> int:
    """0 for yes. `failed`: it was seen to run out of memory. Without a card: one of the usual ones fits."""
    peak = answer.peak
    capacity = peak.capacity_bytes
    if answer.verdict is None or capacity is None:
        return int(bool(answer.cards) and all(card.verdict != "fits" for card in answer.cards))
    starts = all(engine.max_concurrency for group in answer.groups for engine in group.engines)
    return exit_code(
        answer.verdict,
        high=peak.high_bytes,
        capacity=capacity,
        inside=peak.bytes <= capacity and starts and not failed,
        strict=strict,
    )


def exit_code(verdict: Verdict, *, high: int, capacity: int, inside: bool, strict: bool = False) -> int:
    """FITS is yes. TIGHT is yes if the point value is inside and the high end at most `FAR` percent above the card, and
    never under `--strict`; why not is said on standard error."""
    if verdict != "tight":
        return int(verdict != "fits")
    if not inside:
        return 1
    if high * 100 > capacity * (100 + FAR):
        print(f"tight, and no yes: the range ends {gib(high - capacity)} above the card", file=sys.stderr)
        return 1
    if strict:
        print("tight, and no yes under --strict", file=sys.stderr)
    return int(strict)
