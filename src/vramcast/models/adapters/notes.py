"""Mistakes of an adapter: collected over all modules, each said once with the module it was found in first."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager

from vramcast.errors import Mistakes, near


class Unfit(Exception):
    """A module that the method cannot adapt; `help` is what the user can do."""

    def __init__(self, fact: str, help: str = "") -> None:
        super().__init__(fact)
        self.fact = fact
        self.help = help


class Notes:
    """Everything that is wrong with an adapter on a model."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.mistakes = Mistakes()
        self.unfit: dict[tuple[str, str], dict[str, None]] = {}

    def wrong(self, fact: str, **context: str) -> None:
        self.mistakes.add(fact, **{"from": self.source, **context})

    def unknown(self, fact: str, name: str, names: Iterable[str], **context: str) -> None:
        """A name that nothing has: with the near ones and all there are."""
        known = list(dict.fromkeys(names))
        shown = ", ".join(known[:_SHOWN]) + (f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else "")
        self.wrong(fact, near=near(name, known), allowed=shown, **context)

    @contextmanager
    def fits(self, module: str) -> Generator[None]:
        """Note that a module cannot be adapted, and go on with the next."""
        try:
            yield
        except Unfit as reason:
            self.unfit.setdefault((reason.fact, reason.help), {})[module] = None

    def done(self) -> None:
        """Raise what was found.

        Raises:
            Refused: all mistakes together.
        """
        for (fact, text), modules in self.unfit.items():
            more = f" and {len(modules) - 1} more" if len(modules) > 1 else ""
            self.wrong(f"{fact}: {next(iter(modules))}{more}", help=text)
        self.unfit = {}
        self.mistakes.done()


_SHOWN = 40
