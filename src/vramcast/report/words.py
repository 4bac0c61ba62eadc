"""Words that the reports share: values, edits, moments, and sums that add up as they are printed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from vramcast.types.paths import Value
from vramcast.types.result import LeverResult, Peak, PhaseBytes, TermBytes
from vramcast.units import GIB

WIDTH = 80
VERDICTS = {"fits": "FITS", "tight": "TIGHT", "does_not_fit": "DOES NOT FIT", None: "NEEDS"}
_NARROWEST, _WIDEST = 40, 120


class Page(NamedTuple):
    """What is printed on: `bars` are for a terminal only."""

    width: int = WIDTH
    bars: bool = False


def page() -> Page:
    """The terminal that stdout is, or a page of 80 columns; COLUMNS says another width."""
    terminal = sys.stdout.isatty()
    if not terminal and not os.environ.get("COLUMNS", ""):
        return Page()
    from shutil import get_terminal_size  # slow to import

    return Page(min(max(get_terminal_size((WIDTH, 24)).columns, _NARROWEST), _WIDEST), terminal and _draws())


def _draws() -> bool:
    try:
        "█▓░".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def value(raw: Value) -> str:
    """A path's value as a user writes it."""
    if isinstance(raw, bool) or raw is None:
        return str(raw).lower()
    if isinstance(raw, list):
        return ",".join(str(part) for part in raw)
    if isinstance(raw, dict):
        return "{" + ", ".join(f"{key}: {value(part)}" for key, part in raw.items()) + "}"
    return str(raw)


def edits(lever: LeverResult) -> str:
    """The edit in the user's own keys where they have any, else in paths."""
    chosen = lever.native or lever.set
    return ", ".join(f"{key}: {value(raw)}" if lever.native else f"--set {key}={value(raw)}"
                     for key, raw in chosen.items())  # fmt: skip


def moment(phase: PhaseBytes | Peak, name: str) -> str:
    """`backward · first block (every later step)`."""
    run = "first step" if phase.when == "first" else "every later step"
    return f"{name} · {phase.instant} ({run})"


def owned(term: TermBytes) -> str:
    """The term's name, with its role where it is not the policy's and not said by the name."""
    plain = term.role == "policy" or term.name.startswith("engine.")
    return term.name if plain else f"{term.name} ({term.role})"


def in_gib(sizes: Sequence[int], total: int, places: int, *, rest: bool = False) -> list[str]:
    """Sizes in GiB with so many decimals, whose printed sum is the printed `total`, the sum of the sizes.

    What rounding leaves goes into the last size if that is a `rest`; else the sizes with the largest remainders are
    rounded up.
    """
    unit = 10**places
    whole, cells = round(total * unit / GIB), [round(size * unit / GIB) for size in sizes]
    if rest and cells[-1] + whole - sum(cells) >= 0:
        cells[-1] += whole - sum(cells)
    else:
        cells = [size * unit // GIB for size in sizes]
        by_remainder = sorted(range(len(sizes)), key=lambda at: -(sizes[at] * unit % GIB))
        for at in by_remainder[: whole - sum(cells)]:
            cells[at] += 1
    return [f"{cell / unit:,.{places}f}" for cell in cells]


def wrapped(line: str, width: int = WIDTH, indent: str = "  ", hanging: str = "      ") -> Iterator[str]:
    """A line in pieces of at most `width`, cut at blanks."""
    while len(line) > width - len(indent):
        cut = line.rfind(" ", 1, width - len(indent) + 1)
        if cut <= 0:
            break
        yield indent + line[:cut].rstrip()
        line, indent = line[cut + 1 :], hanging
    yield indent + line
