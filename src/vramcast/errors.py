"""What a user did wrong, as facts: raised below, given context at the border, all of a job's mistakes at once.

VramcastError
└── Refused          one or more `Mistake`s; the command line prints them and exits with 2
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager


class VramcastError(Exception):
    """Base class of every error that this package raises on purpose."""


class Mistake:
    """One wrong thing: a one-line fact and labelled lines of context (its origin, what is allowed, what to do)."""

    def __init__(self, fact: str, /, **context: str) -> None:
        self.fact = fact
        self.context = context

    def __str__(self) -> str:
        context = {label: text for label, text in self.context.items() if text}
        width = max(map(len, context), default=0)
        lines = [f"  {label:<{width}}  {text}" for label, text in context.items()]
        return "\n".join([f"error: {self.fact}", *lines])


class Refused(VramcastError):
    """The question was wrong: holds every mistake that was found, so that none has to be found one run at a time."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = list(mistakes)
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


def refuse(fact: str, /, **context: str) -> Refused:
    """A refusal with a single mistake, to be raised."""
    return Refused([Mistake(fact, **context)])


class Mistakes:
    """Collects mistakes over several steps; `done()` raises them together."""

    def __init__(self, found: Iterable[Mistake] = ()) -> None:
        self.found = list(found)

    def add(self, fact: str, /, **context: str) -> None:
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


def near(name: str, names: Iterable[str]) -> str:
    """The closest of `names`, as text for a "did you mean" line; empty when none is close."""
    from difflib import get_close_matches  # only a mistake needs it

    lowered = {known.lower(): known for known in names}
    found = get_close_matches(name.lower(), lowered, n=3, cutoff=0.5)
    return ", ".join(lowered[key] for key in found)
