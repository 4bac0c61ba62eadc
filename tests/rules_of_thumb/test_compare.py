"""`check --compare`: both answers in one table; a job without an exact answer says why and keeps the article's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests.jobs import check, settings

from vramcast.cli import main

GRPO = settings(
    algorithm="grpo", tuning="lora", weights_dtype="bf16", micro_batch=16, prompt_len=1024, response_len=1024,
    engine__kind="vllm", engine__fraction=0.4, engine__sleep=2,
)  # fmt: skip
CARD = ("--gpu", "h100-sxm-80gb")
JOB = ("--model", "Qwen2.5-7B", *CARD, *GRPO)
JOBS = {
    "grpo": JOB,
    "sft": ("--model", "Qwen2.5-7B", *CARD),
    "inference": ("--model", "Llama-3.1-8B", *CARD, *settings(algorithm="inference")),
    "shares": ("--model", "Qwen2.5-7B", *CARD, "--gpus", "2", *settings(shard="fsdp2")),
    "ddp": ("--model", "Qwen2.5-7B", *CARD, "--gpus", "2", *settings(weights_dtype="bf16")),
    "refused": ("--model", "Qwen2.5-7B", *settings(algorithm="ppo")),
    "round": ("--model", "article/7b", *settings(tuning="lora")),
}


def compared(*arguments: str) -> dict[str, Any]:
    return check("--compare", *arguments)


def rows(phase: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {part["part"]: part for part in phase["parts"]}


@pytest.mark.parametrize("name", JOBS)
def test_json_is_valid_and_sums_are_sums(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["list", "schema"])
    schema = json.loads(capsys.readouterr().out)
    answer = compared(*JOBS[name])
    Draft202012Validator(schema["check --compare"]).validate(answer)
    Draft202012Validator(schema["check --rules article"]).validate(answer["article"])
    for phase in answer["phases"]:
        *parts, total = phase["parts"]
        assert total["part"] == "total"
        assert sum(part["article_bytes"] or 0 for part in parts) == pytest.approx(
            total["article_bytes"], abs=len(parts)
        )
        if total["exact_bytes"] is not None:
            assert sum(part["exact_bytes"] for part in parts) == total["exact_bytes"]
            assert all(part["reason"] for part in parts), "every difference has a reason"


def test_both_answer_the_same_question() -> None:
    answer = compared(*JOB)
    plain = check(*JOB)
    assert answer["peak"] == plain["peak"]
    assert answer["verdict"] == plain["verdict"]
    generation, training = answer["phases"]
    assert generation["instant"] == "generate · rollout (every later step)"
    assert training["instant"] == "backward · first block (every later step)"
    assert rows(generation)["weights"]["reason"] == "the same"
    assert rows(generation)["engine weights"]["article_gb"] is None
    assert "need 1.75 GiB" in rows(generation)["KV cache"]["reason"]
    assert rows(training)["logits"]["reason"].startswith("not alive at this instant: at most")


def test_lengths_come_from_the_same_job() -> None:
    """The exact job assumes a prompt; the rules take the same length."""
    answer = compared("--model", "Qwen2.5-7B", *settings(algorithm="grpo", tuning="lora", response_len=512))
    read = {item["path"]: item["value"] for item in answer["article"]["inputs"]}
    assert read["prompt_len"] + read["response_len"] == 1024


def test_dtypes_of_a_framework_are_a_difference() -> None:
    answer = compared("--model", "Qwen2.5-7B")
    weights = rows(answer["phases"][0])["weights"]
    assert weights["exact_bytes"] == 2 * weights["article_bytes"]
    assert "4 bytes a parameter" in weights["reason"]


@pytest.mark.parametrize(("name", "why"), [("refused", "not modelled yet"), ("round", "is a round model")])
def test_without_an_exact_answer(name: str, why: str) -> None:
    answer = compared(*JOBS[name])
    assert why in answer["refused"][0]
    assert answer["peak"] is None
    for phase in answer["phases"]:
        assert all(part["exact_bytes"] is None for part in phase["parts"])
        assert phase["parts"][-1]["article_bytes"] > 0


@pytest.mark.parametrize("name", JOBS)
def test_text_is_80_columns(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for flags in (("--compare",), ("--rules", "article")):
        assert main(["check", *flags, *JOBS[name]]) in (0, 1)
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("RULES OF THUMB: ")
        assert [line for line in lines if len(line) > 80] == []


@pytest.mark.parametrize("flags", [("--compare",), ("--rules", "article")])
def test_markdown(flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", *flags, "--markdown", *JOB])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("**RULES OF THUMB: ")
    tables = [line for line in lines if line.startswith("|")]
    assert len({line.count("|") for line in tables}) == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--rules", "article", "--model", "article/7b", "--gpu", "h100-sxm-80gb", *settings(tuning="lora")), 0),
        (("--rules", "article", "--model", "article/72b", "--gpu", "h100-sxm-80gb"), 1),
        (("--rules", "article", "--model", "article/72b"), 0),
        (("--compare", *JOB), 0),
        (("--compare", "--model", "Qwen2.5-72B", "--gpu", "h100-sxm-80gb"), 1),
    ],
)
def test_exit_codes(arguments: tuple[str, ...], code: int) -> None:
    assert main(["check", *arguments]) == code


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--model", "article/7b"), "error: article/7b is a round model of the articles' rules"),
        (("--rules", "article", "--model", "article/8b"), "error: unknown model 'article/8b'"),
        (("--rules", "article"), "error: no model given"),
        (("--rules", "article", "--model", "nothing"), "error: unknown model 'nothing'"),
        (("--rules", "article", "--model", "article/7b", *settings(algorithm="dpo")),
         "error: the articles have no rule for algorithm = dpo"),
        (("--rules", "article", "--model", "article/7b", *settings(optimizer="lion")),
         "error: the articles give no bytes for optimizer = lion"),
        (("--rules", "article", "--model", "article/7b", *settings(recompute="selective")),
         "error: the articles have no rule for recompute = selective"),
        (("--rules", "article", "--model", "article/7b", *settings(algorithm="inference", weights_dtype="fp8")),
         "error: the articles give no bytes for fp8"),
        (("--rules", "article", "--model", "article/7b", "--gpus", "4", *settings(tp=3)),
         "error: tp × pp = 3 does not divide gpus = 4"),
        (("--rules", "article", "--model", "article/7b", *settings(token_budget=8192)),
         "error: the rules count sequences"),
        (("--rules", "article", "--model", "article/7b", "--set", "bogus=1"), "error: unknown path 'bogus'"),
    ],
)  # fmt: skip
def test_questions_without_a_rule(arguments: tuple[str, ...], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *arguments]) == 2
    assert capsys.readouterr().err.startswith(error)
