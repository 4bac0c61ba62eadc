"""Ten questions of a newcomer: each ends in an answer, or in a sentence that says it is not there yet."""

from __future__ import annotations

import pytest
from tests.cli.cases import answer, run

from vramcast.cli.questions import QUESTIONS

SFT = "--model Qwen/Qwen2.5-7B --set algorithm=sft --set framework=trl==1.16.0"
VERL = "examples/verl_grpo.sh --gpu h100-sxm-80gb --gpus 8"
BATCH = f"{SFT} --set weights_dtype=bf16 --set loss=full --set micro_batch=48 --set seq_len=2048"

# question → the command that is tried, and what its answer says
ANSWERED = {
    "does it fit?": (f"check {SFT} --gpu a100-sxm-80gb", "DOES NOT FIT: 114.59 GiB of 79.15 GiB on 1 × a100-sxm-80gb"),
    "on which card?": (f"check {SFT} --set tuning=lora", "does not fit t4-16gb, "),
    "on how many GPUs?": (f"check {SFT} --gpu a100-sxm-80gb --gpus 4 --set shard=fsdp2", "on 4 × a100-sxm-80gb"),
    "which micro-batch?": (f"levers {BATCH} --gpu a100-sxm-80gb", "per_device_train_batch_size: "),
    "which length?": (f"check {SFT} --gpu a100-sxm-80gb --set seq_len=8k", "sequences of 8,192 tokens"),
    "which engine share?": (f"check {VERL}", "engine.fraction works from "),
    "what does its cache hold?": (f"check {VERL}", "of the longest at once"),
    "why out of memory?": (f"check {SFT} --gpu a100-sxm-80gb", "why the largest term is optimizer.state, 56.74 GiB"),
    "what costs least?": (f"levers {SFT} --gpu a100-sxm-80gb", "saves price then peak moves to bf16-weights"),
}
# verbs that people try, and the question each is
ABSENT = {
    "solve micro_batch": "no verb searches for the largest value that fits",
    "plan examples/trl_sft.yaml": "no verb searches for the cheapest layout or cards",
    "diagnose train.log": "no verb reads the log of a run that failed",
    "time examples/trl_sft.yaml": "memory is forecast, time is not",
    "diff a.toml b.toml": "no verb compares two jobs",
    "compare a.toml --measured 71GiB": "no verb puts one measurement beside a job",
    "serve": "there is no web page",
}


def test_there_are_ten_and_the_help_has_them() -> None:
    printed = run("--help").stdout
    assert len(QUESTIONS) == 10
    for question, end in QUESTIONS:
        assert f"  {question}" in printed
        assert end in printed
    assert [line for line in printed.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("question", [question for question, _ in QUESTIONS])
def test_a_question_ends_in_an_answer(question: str) -> None:
    if question not in ANSWERED:
        assert dict(QUESTIONS)[question] == "not there yet: memory is forecast, time is not"
        return
    command, says = ANSWERED[question]
    found = answer(command)
    assert found.exit in (0, 1), found.stderr
    assert says in " ".join(found.stdout.split())


@pytest.mark.parametrize("command", ABSENT)
def test_a_verb_that_is_not_there_says_so(command: str) -> None:
    found = run(command)
    assert (found.exit, found.stdout) == (2, "")
    verb = command.split()[0]
    assert found.stderr.startswith(f"error: `{verb}` is not there yet: {ABSENT[command]}\n  use  vramcast ")


def test_another_wrong_word_is_not_taken_for_a_verb() -> None:
    assert "not there yet" not in run("list solve").stderr
    assert "not there yet" not in run("check --method plan").stderr
