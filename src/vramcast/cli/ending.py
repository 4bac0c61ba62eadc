"""How the process ends: whatever is no answer is one line on standard error, with an exit code of its own."""

from __future__ import annotations

import codecs
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import TextIO, cast

from vramcast import __version__
from vramcast.errors import bounded

INTERNAL, OUTPUT, INTERRUPTED = 70, 74, 130
"""EX_SOFTWARE and EX_IOERR of sysexits.h; 128 + SIGINT"""
_ANSWER_BYTES = 16 << 20
"""an answer is written when it is whole: what fails before that is no answer, what fails then is the output"""
_PLAIN = {"·": "-", "×": "x", "–": "-", "—": "-", "→": "->", "÷": "/", "…": "...", "⌈": "ceil(", "⌉": ")",
          "⌊": "floor(", "⌋": ")", "Σ": "sum of ", "²": "^2", "³": "^3", "─": "-", "└": "`", "✗": "x"}  # fmt: skip


def ended(main: Callable[[], int]) -> int:
    """The exit code of `main`, whatever happens inside it or while its answer is written."""
    try:
        return _ended(main)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return _stopped("interrupted", INTERRUPTED)


def _ended(main: Callable[[], int]) -> int:
    if not _streams():
        return _stopped("error: the answer cannot be written: standard output is closed", OUTPUT)
    try:
        try:
            code = main()
        except SystemExit as end:  # argparse: --help, --version
            code = end.code if isinstance(end.code, int) else 0
    except Exception as fault:
        return _stopped(_told(fault), INTERNAL)
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of a pipe has seen enough: the answer stands
        _close()
    except OSError as error:
        return _stopped(f"error: the answer cannot be written: {error.strerror}", OUTPUT)
    return code


def _streams() -> bool:
    """Make standard output and error such that any text can be printed; false where there is no standard output."""
    codecs.register_error("vramcast", _plainly)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # closed: no file that is opened later may take its number
            with suppress(OSError):
                os.fstat(number)
                continue
            os.open(os.devnull, os.O_RDWR)
    errors, out = cast("list[TextIO | None]", [sys.stderr, sys.stdout])
    if errors is None:  # print(file=None) would be standard output
        errors = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (errors, out):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="vramcast")
    if isinstance(out, TextIOWrapper) and not out.isatty():
        buffer = BufferedWriter(FileIO(out.fileno(), "w", closefd=False), _ANSWER_BYTES)
        sys.stdout = TextIOWrapper(buffer, encoding=out.encoding, errors="vramcast")
    return out is not None


def _plainly(error: UnicodeError) -> tuple[str, int]:
    """What stands for characters that an output cannot encode."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    return "".join(_PLAIN.get(one) or one.encode("unicode_escape").decode() for one in text), error.end


def _told(fault: Exception) -> str:
    """An internal fault in one line, and how to report it; with `--debug` the traceback before it."""
    if "--debug" in sys.argv[1:]:
        traceback.print_exception(fault)
        how = "what is printed above"
    else:
        how = "what it prints with --debug"
    steps = traceback.extract_tb(fault.__traceback__)
    where = f" ({os.path.basename(steps[-1].filename)}:{steps[-1].lineno})" if steps else ""
    return bounded(
        f"internal fault: {type(fault).__name__}: {fault}{where}. This is a defect of vramcast and no answer. Please "
        f"report it in the issue tracker, with the version ({__version__}), the command, its files, and {how}."
    )


def _stopped(line: str, code: int) -> int:
    """Say why there is no answer, and drop what was printed of it."""
    _close()
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)
    return code


def _close() -> None:
    """Python writes what is left of standard output once more at its end: that goes nowhere."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
