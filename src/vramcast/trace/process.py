"""The child process as the parent sees it: asked one question after the other, imports paid once."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from tempfile import TemporaryFile
from typing import Self

import msgspec

from vramcast.errors import Mistake, Refused, refuse
from vramcast.models.adapters.adapter import AdapterCount
from vramcast.models.counted import ClassCount
from vramcast.trace.question import AdapterQuestion, Asked, ClassQuestion
from vramcast.trace.recording import Recording
from vramcast.trace.wire import Answer, Failed, Progress, Recorded, Wrong, receive

NEEDED = ("torch", "transformers", "peft", "accelerate", "trl")
COMMAND = (sys.executable, "-P", "-W", "ignore", "-m", "vramcast.trace.child")
"""-P: what lies in the folder where a job is traced is not taken for a library"""
Tell = Callable[[Progress], None]


class Child:
    """A child process; starts with the first question, ends with the block. `command`: another one than the trace's.

    Raises:
        Refused: the extra `trace` is not installed.
    """

    def __init__(self, command: Sequence[str] | None = None) -> None:
        missing = [name for name in NEEDED if find_spec(name) is None]
        if missing and command is None:
            raise refuse(
                f"the trace needs {', '.join(missing)}",
                install="pip install 'vramcast[trace]' (the CPU's torch is enough)",
            )
        self._command = command or COMMAND
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._said = TemporaryFile()  # noqa: SIM115 it is open as long as the child runs
        except OSError as error:
            raise refuse(f"the trace needs a temporary file: {error.strerror}", help="TMPDIR names a folder") from None
        """what the child prints: the last line is shown if it ends"""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._end(self._process)
        self._said.close()

    def record(self, question: Asked, tell: Tell = lambda progress: None) -> Recording:
        """Run the step of a question.

        Raises:
            Refused: the question is wrong, a patch did not apply, or the traced code failed.
        """
        answer = self._answer(question, tell)
        assert isinstance(answer, Recorded)
        return answer.recording

    def count(self, question: ClassQuestion, tell: Tell = lambda progress: None) -> ClassCount:
        """Count the parameters of a class.

        Raises:
            Refused: Transformers has no such class, or it cannot be built from that config.
        """
        answer = self._answer(question, tell)
        assert isinstance(answer, ClassCount)
        return answer

    def adapt(self, question: AdapterQuestion) -> AdapterCount:
        """Count what an adapter trains in a class.

        Raises:
            Refused: Transformers has no such class, or PEFT refuses the adapter.
        """
        answer = self._answer(question, lambda progress: None)
        assert isinstance(answer, AdapterCount)
        return answer

    def _answer(self, question: Asked, tell: Tell) -> Answer:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(question) + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise self._gone(process) from None
        while True:
            match receive(process.stdout):
                case Progress() as progress:
                    tell(progress)
                case Recorded() | ClassCount() | AdapterCount() as answer:
                    return answer
                case Wrong(mistakes):
                    raise Refused([Mistake(fact, **context) for fact, context in mistakes])
                case Failed(fact, context):
                    raise refuse(fact, **context)
                case None:
                    raise self._gone(process)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._said.truncate(0)
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said
            )
        return self._process

    def _gone(self, process: subprocess.Popen[bytes]) -> Refused:
        """The next question gets a new process."""
        code = self._end(process)
        self._process = None
        self._said.seek(0)
        last = self._said.read().decode(errors="replace").strip().rpartition("\n")[2]
        how = f"code {code}" if code >= 0 else signal.Signals(-code).name
        return refuse(f"the process that traces ended with {how}", said=last)

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> int:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # what was not written yet
                    pipe.close()
        return process.wait()
