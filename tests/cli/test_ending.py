"""How the process ends when there is no answer: one line, and a code that is neither yes nor no."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.cases import ROOT

ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("PYTHONUNBUFFERED", "NO_COLOR")}
ENVIRONMENT["PYTHONPATH"] = str(ROOT / "src")
JOB = "check --model Qwen/Qwen2.5-0.5B --gpu l4"
FAULTY = """
import sys
from vramcast import cli
def said(options):
    print("half of an answer")
    raise {fault}
cli.said = said
cli.run()
"""


def shell(command: str, **more: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of `vramcast` in a shell's words; `$V` is the command."""
    words = ["bash", "-c", command.replace("$V", f"{sys.executable} -m vramcast")]
    found = subprocess.run(words, capture_output=True, cwd=ROOT, env={**ENVIRONMENT, **more}, timeout=60)
    return found.returncode, found.stdout.decode("utf-8", "replace"), found.stderr.decode("utf-8", "replace")


def faulty(fault: str, *words: str) -> tuple[int, str, str]:
    found = subprocess.run(
        [sys.executable, "-c", FAULTY.format(fault=fault), *words], capture_output=True, text=True, env=ENVIRONMENT
    )
    return found.returncode, found.stdout, found.stderr


@pytest.mark.parametrize("fault", ["ZeroDivisionError('by zero')", "RecursionError()", "OSError(5, 'x' * 9000)"])
def test_an_internal_fault_is_one_line_and_no_answer(fault: str) -> None:
    code, out, err = faulty(fault, *JOB.split())
    assert (code, out, err.count("\n")) == (70, "", 1)
    assert err.startswith(f"internal fault: {fault.partition('(')[0]}: ")
    assert all(word in err for word in ("issue tracker", "version", "command", "--debug", "<string>:6"))
    assert len(err) < 1000


@pytest.mark.parametrize("words", [(*JOB.split(), "--debug"), ("--debug", *JOB.split()), ("read", "--debug")])
def test_debug_shows_the_traceback(words: tuple[str, ...]) -> None:
    code, out, err = faulty("KeyError('a')", *words)
    assert (code, out) == (70, "")
    assert "Traceback (most recent call last)" in err
    assert err.rstrip().splitlines()[-1].startswith("internal fault: KeyError")


def test_every_verb_takes_debug() -> None:
    from vramcast.cli import _parser

    for words in (["check"], ["levers"], ["explain"], ["read"], ["trace"], ["bench"], ["list", "gpus"]):
        assert _parser().parse_args([*words, "--debug"]).debug


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (f"$V {JOB} > /dev/full", "No space left on device"),
        (f"$V {JOB} >&-", "standard output is closed"),
        ("$V list paths --json > /dev/full", "No space left on device"),
        ("$V --help > /dev/full", "No space left on device"),
        (f"$V {JOB} >&- <&-", "standard output is closed"),
    ],
)
def test_an_answer_that_cannot_be_written(command: str, reason: str) -> None:
    assert shell(command) == (74, "", f"error: the answer cannot be written: {reason}\n")


def test_closed_errors_change_no_answer() -> None:
    code, out, err = shell(f"$V {JOB} --json 2>&-")
    assert (code, json.loads(out)["schema"], err) == (0, 1, "")
    assert shell(f"$V {JOB} --set a=1 2>&-")[:2] == (2, "")


def test_the_exit_code_stands_where_the_reader_has_seen_enough() -> None:
    code, out, err = shell("$V check --model Qwen/Qwen2.5-72B --gpu l4 | head -c 12; exit ${PIPESTATUS[0]}")
    assert (code, out, err) == (1, "DOES NOT FIT", "")


def test_an_output_without_our_characters_is_printed_plainly() -> None:
    code, out, _ = shell(f"$V explain {JOB.partition(' ')[2]}", PYTHONIOENCODING="ascii")
    usual = shell(f"$V explain {JOB.partition(' ')[2]}")[1]
    assert (code, out.isascii()) == (0, True)
    assert len(out.splitlines()) == len(usual.splitlines())
    assert "×" in usual
    assert "×" not in out
    assert " x " in out
    code, _, err = shell("$V check --model é --gpu l4", PYTHONIOENCODING="ascii")
    assert (code, err.splitlines()[0]) == (2, "error: unknown model '\\xe9'")


@pytest.mark.parametrize("verb", ["read", "check", "levers"])
def test_names_that_are_not_utf8(tmp_path: Path, verb: str) -> None:
    name = os.fsencode(tmp_path) + b"/job\xff.toml"
    Path(os.fsdecode(name)).write_text('model = "Qwen/Qwen2.5-0.5B"\ngpu = "l4"\n')
    for more in ((), ("--json",), ("--set", b"engine.version=\xff", "--json")):
        found = subprocess.run(
            [sys.executable, "-m", "vramcast", verb, name, *more], capture_output=True, env=ENVIRONMENT, timeout=60
        )
        assert (found.returncode, found.stderr) == (0, b"")
        if more:
            json.loads(found.stdout.decode())


@pytest.mark.parametrize("words", [["check", "-"], ["read", "-", "--json"]])
def test_ctrl_c_is_one_line(words: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "vramcast", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env=ENVIRONMENT,
    )  # fmt: skip
    while not _reads(process.pid):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"interrupted\n")


def _reads(pid: int) -> bool:
    """It sleeps, and has opened its last import: it waits for standard input."""
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "S" and "_msgspec" in Path(f"/proc/{pid}/maps").read_text().replace("msgspec/_core", "_msgspec")


def test_ctrl_c_while_it_imports() -> None:
    code = "import sys; sys.modules['vramcast.cli'] = None\n" + (
        "import builtins; real = builtins.__import__\n"
        "def stop(name, *rest):\n"
        "    if name == 'vramcast': raise KeyboardInterrupt\n"
        "    return real(name, *rest)\n"
        "from vramcast import __main__\n"
        "builtins.__import__ = stop\n"
        "__main__.run()"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT)
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize(("more", "plain"), [({}, False), ({"NO_COLOR": "1"}, True), ({"TERM": "dumb"}, True)])
def test_colour_is_for_terminals_that_want_it(more: dict[str, str], plain: bool) -> None:
    ours, theirs = pty.openpty()
    environment = {**ENVIRONMENT, "TERM": "xterm-256color", **more}
    subprocess.run([sys.executable, "-m", "vramcast", *JOB.split()], stdout=theirs, env=environment, timeout=60)
    os.close(theirs)
    shown = b""
    while part := _read(ours):
        shown += part
    os.close(ours)
    assert (b"\x1b[" not in shown) == plain
    assert b"FITS" in shown


def _read(handle: int) -> bytes:
    try:
        return os.read(handle, 1 << 16)
    except OSError:  # Linux, at the end of a terminal
        return b""
