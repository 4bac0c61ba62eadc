"""The child process: `python -m vramcast.trace.child`. Questions come in on standard input, frames go out.

It is a process of its own because patches change frameworks for all that runs beside them, and because a wrong device
string aborts the interpreter.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import BinaryIO

import msgspec

from vramcast.errors import Refused
from vramcast.trace.question import Asked, OwnStep
from vramcast.trace.wire import Failed, Frame, Progress, Recorded, Wrong, send


def main() -> None:
    """Answer one question after the other until there are no more."""
    out = _own_output()
    for line in sys.stdin.buffer:
        send(out, answer(msgspec.json.decode(line, type=Asked), out))
        gc.collect()


def _own_output() -> BinaryIO:
    """Standard output for frames alone: what frameworks print goes to standard error."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return out


def answer(question: Asked, out: BinaryIO) -> Frame:
    """The frame that answers a question."""

    def tell(what: str, done: int = 0, of: int = 0) -> None:
        send(out, Progress(what, done, of))

    try:
        tell("importing torch, transformers")
        from vramcast.trace.child.patches import Moved
        from vramcast.trace.child.own import run_own
        from vramcast.trace.child.step import run
    except ImportError as error:
        return Failed(f"the trace cannot import {error.name or error}", {"install": "pip install 'vramcast[trace]'"})
    try:
        return Recorded(run_own(question, tell) if isinstance(question, OwnStep) else run(question, tell))
    except Refused as refused:
        return Wrong([(mistake.fact, mistake.context) for mistake in refused.mistakes])
    except Moved as moved:
        return Failed(f"a patch of the trace did not apply: {moved}", {"why": "the installed version has other internals"})
    except Exception as error:  # whatever a framework raises: it becomes an answer, and the process goes on
        return Failed(f"the traced step failed: {type(error).__name__}: {error}", {"at": _place(error)})


def _place(error: BaseException) -> str:
    """File and line where it was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else ""


if __name__ == "__main__":
    main()
