"""Regular expressions that a user's file holds: matched by Python, as the libraries do that read such files, and never
without end.

An expression that can go back and forth (a repeat, and another or an alternative) has a second of this process in all;
after that it is refused. The clock works in the main thread, and where the system has one.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable
from functools import lru_cache
from time import process_time

from vramcast.errors import refuse

SECONDS = 1.0
_QUICK = 0.01
"""a match that is faster is not counted: a long-lived process asks for many"""


class _TimeUp(Exception):
    pass


class _Pattern:
    def __init__(self, text: str) -> None:
        self.text = text
        self.left = SECONDS
        repeats = sum(text.count(mark) for mark in "*+{")
        self.plain = not repeats or repeats + text.count("|") < 2
        try:
            self.compiled = re.compile(text)
        except (RecursionError, OverflowError) as error:
            raise re.error(str(error)) from None

    def run(self, find: Callable[[str], re.Match[str] | None], name: str) -> re.Match[str] | None:
        if self.plain or threading.current_thread() is not threading.main_thread():
            return find(name)
        if self.left <= 0:
            raise self.refusal(name)
        began = process_time()
        before = signal.signal(signal.SIGVTALRM, _stop)
        signal.setitimer(signal.ITIMER_VIRTUAL, self.left)
        try:
            return find(name)
        except _TimeUp:
            self.left = 0.0
            raise self.refusal(name) from None
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, before)
            took = process_time() - began
            self.left -= took if took > _QUICK else 0

    def refusal(self, name: str) -> Exception:
        return refuse(
            f"the regular expression {self.text!r} takes too long",
            on=name,
            help="one repeat inside another, or many in a row, try every way to cut a name",
        )


def _stop(*_: object) -> None:
    raise _TimeUp


@lru_cache(1024)
def _pattern(text: str) -> _Pattern:
    return _Pattern(text)


def check(text: str) -> None:
    """Raises:
    re.error: it is no regular expression.
    """
    _pattern(text)


def match(text: str, name: str) -> re.Match[str] | None:
    """`re.match`.

    Raises:
        re.error: it is no regular expression.
        Refused: it takes too long.
    """
    pattern = _pattern(text)
    return pattern.run(pattern.compiled.match, name)


def fullmatch(text: str, name: str) -> re.Match[str] | None:
    """`re.fullmatch`; raises as `match`."""
    pattern = _pattern(text)
    return pattern.run(pattern.compiled.fullmatch, name)


def search(text: str, name: str) -> re.Match[str] | None:
    """`re.search`; raises as `match`."""
    pattern = _pattern(text)
    return pattern.run(pattern.compiled.search, name)
