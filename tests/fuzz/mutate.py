"""Seeded mutations that know the structure of what they change, and the promises that every input must keep.

Each fuzz test makes its inputs with a `random.Random` of a fixed seed, so a failure is the same on every machine. The
message of a failure holds the input.
"""

from __future__ import annotations

import copy
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from random import Random
from typing import Any, NamedTuple

from vramcast.cli import main

LONGEST_LINE = 2000
"""characters: no message echoes a value of any length"""
NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 7, 128, 2**31 - 1, 2**31, 2**40, 2**63 - 1, 2**63, 10**30, 0.5, -0.0, 1e-9, 1e308,
    float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
WORDS: tuple[str, ...] = (
    "", " ", "x", "0", "-1", "1e9", "nan", "null", "None", "none", "true", "False", "auto", "~", "a.b.c", "a,b",
    "[1,2]", "{}", "[", "$X", "${X}", "!!int x", "×", "\u202e", "\x1b[31m", "\udcff", "\x00", "9" * 5000, "a" * 5000,
    "(.*)*X",
)  # fmt: skip
PIECES = tuple("\n\t '\"\\$`{}[]:,=#&*!%|-")


class Outcome(NamedTuple):
    """What a command line in this process gave."""

    code: int
    out: str
    err: str


def amount(usual: int) -> int:
    """How many inputs a test tries: a tenth of `usual`, or `usual` times VRAMCAST_FUZZ (`make fuzz`)."""
    return max(1, int(usual * float(os.environ.get("VRAMCAST_FUZZ") or 0.1)))


def called(*argv: str, stdin: str = "") -> Outcome:
    """Run the command line in this process; an exception that it does not mean is the test's failure."""
    out, err, before = io.StringIO(), io.StringIO(), sys.stdin
    sys.stdin = io.StringIO(stdin)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main(argv)
    except SystemExit as end:  # argparse
        code = int(end.code or 0)
    finally:
        sys.stdin = before
    return Outcome(code, out.getvalue(), err.getvalue())


def answers(*argv: str, stdin: str = "", shown: object = None) -> Outcome:
    """Run, and hold what every input is promised: an exit code that means something, an error that says so in lines of
    bounded length, and no exception. `shown`: what a failure prints beside the command."""
    try:
        outcome = called(*argv, stdin=stdin)
    except BaseException as error:
        error.add_note(f"vramcast {argv!r}\n{shown!r}"[:4000])
        raise
    what = f"vramcast {argv!r}\n{shown!r}"[:4000]
    assert outcome.code in (0, 1, 2), what
    if outcome.code == 2:
        assert outcome.err.startswith(("error: ", "usage: ")), f"{outcome.err[:400]}\n{what}"
        assert not outcome.out, what
    longest = max((outcome.out + "\n" + outcome.err).split("\n"), key=len)
    assert "--json" in argv or len(longest) <= LONGEST_LINE, f"{len(longest)} characters: {longest[:200]}\n{what}"
    return outcome


def scalar(random: Random) -> Any:
    """A value that nobody means."""
    return random.choice((*NUMBERS, *WORDS, None, True, False))


def value(random: Random, depth: int = 2) -> Any:
    """A scalar, or a small list or object of them."""
    kind = random.randrange(4) if depth else 0
    if kind == 2:
        return [value(random, depth - 1) for _ in range(random.randrange(4))]
    if kind == 3:
        return {str(scalar(random)): value(random, depth - 1) for _ in range(random.randrange(3))}
    return scalar(random)


def tree(random: Random, content: Mapping[str, Any], changes: int = 2, fresh: Callable[[Random], Any] = value) -> Any:
    """A copy of a JSON-like object with up to `changes` of its places changed: another value (`fresh`), the value of a
    sibling, the key gone, the key misspelt, the value wrapped."""
    found: Any = copy.deepcopy(dict(content))
    for _ in range(random.randint(1, changes)):
        homes = _homes(found)
        if not homes:
            break
        home, key = random.choice(homes)
        match random.randrange(6):
            case 0 | 1 | 2:
                home[key] = fresh(random)
            case 3:
                home[key] = [home[key]] if random.random() < 0.5 else {"x": home[key]}
            case 4 if isinstance(home, dict):
                home[word(random, str(key))] = home.pop(key)
            case 5:
                other, theirs = random.choice(homes)
                home[key] = copy.deepcopy(other[theirs])
            case _:
                del home[key]
    return found


def _homes(content: Any) -> list[tuple[Any, Any]]:
    """(container, key or index) of every value."""
    keys: Sequence[Any] = (
        list(content) if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ()
    )
    return [pair for key in keys for pair in ((content, key), *_homes(content[key]))]


def word(random: Random, text: str) -> str:
    """A slip of the pen: one character gone, doubled, exchanged or strange."""
    at = random.randrange(len(text) + 1)
    middle = random.choice(("", text[at : at + 1] * 2, random.choice(PIECES), random.choice("abcxyz019_.-é")))
    return text[:at] + middle + text[at + 1 :]


def text(random: Random, content: str, changes: int = 3, pieces: Sequence[str] = (*PIECES, *WORDS)) -> str:
    """A text with up to `changes` lines or spans lost, doubled, moved, cut short or broken by one of `pieces`."""
    for _ in range(random.randint(1, changes)):
        match random.randrange(6):
            case 0:
                content = word(random, content)
            case 1:
                at = random.randrange(len(content) + 1)
                content = content[:at] + random.choice(pieces) + content[at:]
            case 2:
                start = random.randrange(len(content) + 1)
                content = content[:start] + content[start + random.randrange(1, 40) :]
            case 3:
                lines = content.split("\n")
                lines.insert(random.randrange(len(lines) + 1), random.choice(lines))
                content = "\n".join(lines)
            case 4:
                lines = content.split("\n")
                line = lines.pop(random.randrange(len(lines)))
                lines.insert(random.randrange(len(lines) + 1), line)
                content = "\n".join(lines)
            case _:
                content = content[: random.randrange(len(content) + 1)] if random.random() < 0.2 else content + "\n"
    return content
