"""What a patch is, and how one replaces a function of a framework."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from vramcast.trace.child.tracker import Stand, Temporary, Tracker
from vramcast.trace.question import Asked


class Moved(Exception):
    """A patch did not apply: the framework's internals are not where they were. No number is given."""


class Replacement(NamedTuple):
    """`owner.name` becomes what `make` makes of the old one."""

    owner: Any
    name: str
    make: Callable[[Any], Any]


class Patch(NamedTuple):
    """One way in which a fake step on the CPU would differ from the real one on a GPU, and its cure."""

    name: str
    why: str
    source: str
    applies: Callable[[Any], bool] = lambda question: True
    replaces: Callable[[Any, Tracker], list[Replacement]] | None = None
    """functions of frameworks"""
    stands: Callable[[Any], dict[Any, Stand]] | None = None
    """operators that are answered"""
    temporaries: Callable[[Any], dict[Any, Temporary]] | None = None
    """operators whose kernels take more than their outputs"""


@contextmanager
def installed(patches: list[Patch], question: Asked, tracker: Tracker) -> Generator[list[str]]:
    """Apply the patches of a question; gives their names.

    Raises:
        Moved: what a patch replaces is not there.
    """
    with ExitStack() as undo:
        for patch in patches:
            try:
                if patch.stands is not None:
                    tracker.stands |= patch.stands(question)
                if patch.temporaries is not None:
                    tracker.temporaries |= patch.temporaries(question)
                for owner, name, make in patch.replaces(question, tracker) if patch.replaces is not None else ():
                    old = getattr(owner, name)
                    setattr(owner, name, make(old))
                    undo.callback(setattr, owner, name, old)
            except (AttributeError, ImportError) as error:
                raise Moved(f"{patch.name}: {error}") from error
        yield [patch.name for patch in patches]
