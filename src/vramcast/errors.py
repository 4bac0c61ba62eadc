"""What a user did wrong, as facts: raised below, given context at the border, all of a job's mistakes at once.

VramcastError
└── Refused          one or more `Mistake`s; the command line prints them and exits with 2
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TypeAlias

Text: TypeAlias = "str | Callable[[], str]"
"""a line of context; a function where it costs something and may never be shown"""
SHOWN, LINES = 20, 100
"""how many mistakes, and lines of context of one, are printed"""
_WORD, _TEXT = 200, 1500
"""characters of one word and of one line"""
_LONG_WORD = re.compile(rf"\S{{{_WORD + 1},}}")


class VramcastError(Exception):
    """Base class of every error that this package raises on purpose."""


class Mistake:
    """One wrong thing: a one-line fact and labelled lines of context (its origin, what is allowed, what to do)."""

    def __init__(self, fact: str, /, **context: Text) -> None:
        self.fact = bounded(fact)
        self.said: dict[str, Text] = context

    @property
    def context(self) -> dict[str, str]:
        """Label → text, of what has one."""
        texts = {label: text if isinstance(text, str) else text() for label, text in self.said.items()}
        return {bounded(label): bounded(text) for label, text in texts.items() if text}

    def __str__(self) -> str:
        context = list(self.context.items())
        width = max((len(label) for label, _ in context[:LINES]), default=0)
        lines = [f"  {label:<{width}}  {text}" for label, text in context[:LINES]]
        if len(context) > LINES:
            lines.append(f"  and {len(context) - LINES:,} more")
        return "\n".join([f"error: {self.fact}", *lines])


class Refused(VramcastError):
    """The question was wrong: holds every mistake that was found, so that none has to be found one run at a time."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = list(mistakes)
        super().__init__(self.mistakes)

    def __str__(self) -> str:
        shown = [str(mistake) for mistake in self.mistakes[:SHOWN]]
        if more := len(self.mistakes) - len(shown):
            shown.append(f"error: and {more:,} more")
        return "\n".join(shown)


def refuse(fact: str, /, **context: Text) -> Refused:
    """A refusal with a single mistake, to be raised."""
    return Refused([Mistake(fact, **context)])


class Mistakes:
    """Collects mistakes over several steps; `done()` raises them together."""

    def __init__(self, found: Iterable[Mistake] = ()) -> None:
        self.found = list(found)

    def add(self, fact: str, /, **context: Text) -> None:
        self.found.append(Mistake(fact, **context))

    @contextmanager
    def collect(self) -> Generator[None]:
        """Go on after a refusal inside the block and keep its mistakes."""
        try:
            yield
        except Refused as refused:
            self.found.extend(refused.mistakes)

    def done(self) -> None:
        if self.found:
            raise Refused(self.found)


def bounded(text: str) -> str:
    """A line that can be shown, whatever a user put into it: long words and lines lose their middle, and characters
    that move the cursor, or that no output can encode, are written as escapes."""
    if len(text) > _WORD:
        text = _LONG_WORD.sub(lambda word: _ends(word[0], _WORD), text)
        text = _ends(text, _TEXT) if len(text) > _TEXT else text
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _ends(text: str, limit: int) -> str:
    """The beginning and the end of a text, `limit` characters without what says how long it is."""
    return f"{text[: limit * 3 // 4]}...({len(text):,} characters)...{text[len(text) - limit // 4 :]}"


def near(name: str, names: Iterable[str]) -> str:
    """The closest of `names`, as text for a "did you mean" line; empty when none is close."""
    from difflib import get_close_matches  # only a mistake needs it

    lowered = {known.lower(): known for known in names}
    found = get_close_matches(name.lower(), lowered, n=3, cutoff=0.5)
    return ", ".join(lowered[key] for key in found)
