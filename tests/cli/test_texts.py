"""What the commands print, line by line, and what they refuse, word by word."""

from __future__ import annotations

import pytest
from tests.cli.cases import ANSWERS, EXPECTED, REFUSALS, answer, refusal, run

AGAIN = "python -m tests.cli.regenerate writes what is printed now"


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_pinned(name: str) -> None:
    expected = (EXPECTED / f"{name}.txt").read_text(encoding="utf-8")
    assert answer(ANSWERS[name]).text(ANSWERS[name]).splitlines() == expected.splitlines(), AGAIN


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_pinned(name: str) -> None:
    found = refusal(REFUSALS[name])
    assert found.exit == 2
    assert found.stdout == ""
    assert "Traceback" not in found.stderr
    assert found.stderr.startswith("error: ")
    expected = (EXPECTED / f"refused_{name}.txt").read_text(encoding="utf-8")
    assert found.text(REFUSALS[name]).splitlines() == expected.splitlines(), AGAIN


def test_nothing_else_is_pinned() -> None:
    names = {*ANSWERS, *(f"refused_{name}" for name in REFUSALS)}
    assert {file.stem for file in EXPECTED.glob("*.txt")} == names


@pytest.mark.parametrize("flags", ["", " --full"])
@pytest.mark.parametrize("name", ["sft", "lora", "inference"])
def test_a_report_is_80_columns_wide(name: str, flags: str) -> None:
    """A bar of `--full` has a line for its legend, however many letters it has."""
    lines = answer(f"{ANSWERS[name]}{flags}").stdout.splitlines()
    assert [line for line in lines if len(line) > 80 and not line.endswith(". other")] == []


@pytest.mark.parametrize("name", [name for name, command in REFUSALS.items() if command.startswith("check")])
def test_a_refusal_in_json_prints_no_json(name: str) -> None:
    """stdout is the answer, and there is none."""
    found = refusal(f"{REFUSALS[name]} --json")
    assert (found.exit, found.stdout) == (2, "")
    assert found.stderr == refusal(REFUSALS[name]).stderr


@pytest.mark.parametrize("command", ["list cards", "", "chek", "check --gpu", "read --job ini"])
def test_argparse_refuses_alike(command: str) -> None:
    found = run(command)
    assert (found.exit, found.stdout) == (2, "")
    assert found.stderr.startswith("error: ")
