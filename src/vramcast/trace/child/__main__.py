"""The child process: `python -m vramcast.trace.child`. Questions come in on standard input, frames go out.

It is a process of its own because patches change frameworks for all that runs beside them, and because a wrong device
string aborts the interpreter.
"""

from __future__ import annotations

import gc
import os
from typing import BinaryIO

import msgspec

from vramcast.errors import Refused
from vramcast.trace.question import AdapterQuestion, Asked, ClassQuestion, OwnStep
from vramcast.trace.wire import Failed, Frame, Progress, Recorded, Wrong, send


def main() -> None:
    """Answer one question after the other until there are no more."""
    questions, out = _own_pipes()
    for line in questions:
        send(out, answer(msgspec.json.decode(line, type=Asked), out))
        gc.collect()


def _own_pipes() -> tuple[BinaryIO, BinaryIO]:
    """The pipes for questions and frames alone: frameworks print to standard error, and read nothing."""
    questions, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return questions, out


def answer(question: Asked, out: BinaryIO) -> Frame:
    """The frame that answers a question."""

    def tell(what: str, done: int = 0, of: int = 0) -> None:
        send(out, Progress(what, done, of))

    try:
        tell("importing torch, transformers")
        from vramcast.trace.child.adapters import count as count_adapter
        from vramcast.trace.child.classes import count
        from vramcast.trace.child.own import run_own
        from vramcast.trace.child.patches import Moved
        from vramcast.trace.child.step import run
    except ImportError as error:
        why = str(error) if error.name else ""
        return Failed(
            f"the trace cannot import {error.name or error}", {"why": why, "install": "pip install 'vramcast[trace]'"}
        )
    try:
        match question:
            case OwnStep():
                return Recorded(run_own(question, tell))
            case ClassQuestion():
                return count(question)
            case AdapterQuestion():
                return count_adapter(question)
            case _:
                return Recorded(run(question, tell))
    except Refused as refused:
        return Wrong([(mistake.fact, mistake.context) for mistake in refused.mistakes])
    except Moved as moved:
        why = "the installed version has other internals"
        return Failed(f"a patch of the trace did not apply: {moved}", {"why": why})
    except (Exception, SystemExit) as error:  # whatever a framework raises becomes an answer, and the process goes on
        lines = [line for line in str(error).splitlines() if line.strip()]
        what = "building the class" if isinstance(question, (ClassQuestion, AdapterQuestion)) else "the traced step"
        fact = f"{what} failed: {type(error).__name__}: {lines[0].strip() if lines else 'without a word'}"
        return Failed(fact, {"at": _place(error, of_user=isinstance(question, OwnStep))})


def _place(error: BaseException, *, of_user: bool) -> str:
    """File and line where it was raised, or from where a user's step called it."""
    from vramcast.trace.child.patches.values import place_of_error

    if of_user and (place := place_of_error(error)):
        return place
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""


if __name__ == "__main__":
    main()
