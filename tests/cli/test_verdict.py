"""What a verdict exits with: a range that ends far above the card is no yes, whichever verb says it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import structs
from tests.cli.cases import run

from vramcast.cli.verdict import exit_code, exit_of
from vramcast.estimate import forecast
from vramcast.types.job import Fact, Origin, Understanding

TIGHT: dict[str, Any] = {"verdict": "tight", "capacity": 1000, "inside": True}


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"verdict": "fits", "high": 1000}, 0),
        ({"verdict": "fits", "high": 1000, "strict": True}, 0),
        ({"verdict": "does_not_fit", "high": 5000, "inside": False}, 1),
        ({"high": 1001}, 0),
        ({"high": 1100}, 0),
        ({"high": 1101}, 1),
        ({"high": 1001, "inside": False}, 1),
        ({"high": 1001, "strict": True}, 1),
    ],
)
def test_the_rule(asked: dict[str, Any], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(**{**TIGHT, **asked}) == code
    said = capsys.readouterr()
    assert said.out == ""
    explained = asked.get("verdict") is None and code and asked.get("inside", True)
    assert said.err.startswith("tight, and no yes") == bool(explained)


def test_the_same_rule_for_a_whole_answer() -> None:
    facts = [Fact("model", "Qwen/Qwen2.5-0.5B", Origin("x")), Fact("gpu", "l4", Origin("x"))]
    answer = forecast(Understanding(facts))
    assert (answer.verdict, exit_of(answer), exit_of(answer, strict=True)) == ("fits", 0, 0)
    capacity = answer.peak.capacity_bytes
    assert capacity is not None
    for share, code in ((101, 0), (110, 0), (111, 1)):
        peak = structs.replace(answer.peak, needs_high_bytes=capacity * share // 100)
        tight = structs.replace(answer, verdict="tight", peak=peak)
        assert exit_of(tight) == code
        assert exit_of(tight, strict=True) == exit_of(tight, failed=True) == 1


def test_an_engine_that_holds_no_sequence_is_no_yes() -> None:
    """The card has room beside it, and it will not start."""
    job = "--model Qwen/Qwen2.5-7B --gpu a100-sxm-80gb --set algorithm=grpo --set tuning=lora --set engine.kind=vllm"
    seen = 0
    for fraction in range(200, 260, 5):
        found = run(f"check {job} --set engine.fraction=0.{fraction} --set engine.max_len=32k --json")
        answer = json.loads(found.stdout)
        if not answer["groups"][0]["engines"][0]["max_concurrency"]:
            assert answer["peak"]["margin_bytes"] > 0
            assert found.exit == 1
            seen += answer["verdict"] == "tight"
    assert seen


def test_json_and_markdown_are_two_answers() -> None:
    for verb in ("check --model Qwen/Qwen2.5-0.5B", "bench"):
        found = run(f"{verb} --json --markdown")
        assert (found.exit, found.stdout) == (2, "")
        assert found.stderr.startswith("error: argument --markdown: not allowed with argument --json\n")
