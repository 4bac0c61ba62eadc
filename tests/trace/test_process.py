"""The child process as the parent sees it, with a small program in its place; and the real one's pipes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.cli.cases import answer
from tests.trace.traced import question

from vramcast.errors import Refused
from vramcast.trace import process
from vramcast.trace.process import Child
from vramcast.trace.question import OwnStep
from vramcast.trace.wire import Progress

STAND_IN = """
import os, signal, sys
import msgspec
from vramcast.trace.question import Asked
from vramcast.trace.recording import Recording
from vramcast.trace.wire import Failed, Progress, Recorded, Wrong, send

out = sys.stdout.buffer
for line in sys.stdin.buffer:
    target = msgspec.json.decode(line, type=Asked).target
    print("asked for", target, file=sys.stderr, flush=True)
    if target == "wrong":
        send(out, Wrong([("first mistake", {"at": "here"}), ("second mistake", {})]))
    elif target == "failed":
        send(out, Progress("building"))
        send(out, Failed("it did not work", {"at": "model.py:3"}))
    elif target == "silent":
        os._exit(0)
    elif target == "dies":
        print("first words\\nlast words", file=sys.stderr, flush=True)
        os._exit(3)
    elif target == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif target == "half a frame":
        out.write((100).to_bytes(8, "big") + b"half")
        out.flush()
        os._exit(1)
    else:
        for done in range(3):
            send(out, Progress("running the step", done, 3))
        pid = str(os.getpid())
        send(out, Recorded(Recording(versions={"pid": pid}, patches=[], names=[], storages=[], events=[], marks=[])))
"""


def ask(target: str) -> OwnStep:
    return OwnStep(target=target, folder="", attention="flash", capability="8.0", cublas_bytes=0, cublaslt_bytes=0)


@pytest.fixture
def child() -> Iterator[Child]:
    with Child([sys.executable, "-c", STAND_IN]) as child:
        yield child


def refusal(child: Child, target: str) -> str:
    with pytest.raises(Refused) as caught:
        child.record(ask(target))
    return str(caught.value)


# --- frames -----------------------------------------------------------------------------------------------------------


def test_progress_comes_before_the_recording(child: Child) -> None:
    seen: list[Progress] = []
    assert child.record(ask("works"), seen.append).versions.keys() == {"pid"}
    assert seen == [Progress("running the step", done, 3) for done in range(3)]


def test_one_process_answers_all_questions(child: Child) -> None:
    first = child.record(ask("works"))
    refusal(child, "wrong")
    refusal(child, "failed")
    assert child.record(ask("works")) == first


def test_a_wrong_question_is_refused_with_all_mistakes(child: Child) -> None:
    assert refusal(child, "wrong") == "error: first mistake\n  at  here\nerror: second mistake"


def test_a_trace_that_failed_is_refused_with_its_place(child: Child) -> None:
    assert refusal(child, "failed") == "error: it did not work\n  at  model.py:3"


# --- the end of a process ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("dies", "ended with code 3\n  said  last words"),
        ("killed", "ended with SIGKILL\n  said  asked for killed"),
        ("half a frame", "ended with code 1\n  said  asked for half a frame"),
    ],
)
def test_a_process_that_ends_is_told_with_its_last_words(child: Child, target: str, text: str) -> None:
    assert refusal(child, target) == f"error: the process that traces {text}"


def test_the_next_question_gets_a_new_process(child: Child) -> None:
    """Which does not say what the one before has said."""
    first = child.record(ask("works"))
    refusal(child, "dies")
    assert child.record(ask("works")) != first
    assert "asked for silent" in refusal(child, "silent")
    assert refusal(child, "dies").endswith("last words")


def test_a_process_that_does_not_listen() -> None:
    """The pipe breaks while a question larger than it is written."""
    deaf = [sys.executable, "-c", "import sys; sys.exit('not today')"]
    with Child(deaf) as child, pytest.raises(Refused, match=r"ended with code 1\n  said  not today"):
        child.record(question(config={"x": "x" * 1_000_000}))


def test_the_end_of_the_block_ends_the_process() -> None:
    with Child([sys.executable, "-c", STAND_IN]) as child:
        pid = int(child.record(ask("works")).versions["pid"])
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


# --- the real child ---------------------------------------------------------------------------------------------------

PIPES = """
from vramcast.trace.child.__main__ import _own_pipes
questions, out = _own_pipes()
print("printed")
try:
    input()
except EOFError:
    print("nothing to read")
out.write(b"frame " + questions.read())
"""


def test_what_a_step_prints_or_reads_does_not_meet_the_frames() -> None:
    ran = subprocess.run([sys.executable, "-c", PIPES], input=b"question", capture_output=True, check=True)
    assert ran.stdout == b"frame question"
    assert ran.stderr == b"printed\nnothing to read\n"


def test_a_torch_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so: cannot open', name='torch')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    with Child(process.COMMAND) as child, pytest.raises(Refused) as caught:
        child.record(ask("train:step"))
    assert str(caught.value) == (
        "error: the trace cannot import torch\n"
        "  why      libtorch.so: cannot open\n"
        "  install  pip install 'vramcast[trace]'"
    )


def test_without_the_extra_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "find_spec", lambda name: None if name in ("torch", "trl") else find_spec("msgspec"))
    for command in ("trace examples/trl_sft.yaml", "check examples/trl_sft.yaml --method trace", "trace --step a:b"):
        ran = answer(f"{command} --gpu a100-sxm-80gb")
        assert (ran.exit, ran.stdout) == (2, "")
        assert ran.stderr == (
            "error: the trace needs torch, trl\n  install  pip install 'vramcast[trace]' (the CPU's torch is enough)\n"
        )
