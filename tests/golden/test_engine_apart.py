"""An engine on GPUs of its own: the trainer's cards hold nothing of it but a communicator for new weights."""

from __future__ import annotations

from typing import Any

import pytest
from tests.jobs import Instant, check, phases, terms

JOB = (
    "--model Qwen/Qwen2.5-3B-Instruct --gpu rtx-5090 --set algorithm=grpo --set tuning=lora --set quant.kind=nf4 "
    "--set lora.rank=64 --set lora.targets=all-linear --set weights_dtype=bf16 --set autocast=true "
    "--set compute_dtype=bf16 --set micro_batch=8 --set group=8 --set prompt_len=256 --set response_len=512 "
    "--set recompute=full --set engine.kind=vllm"
).split()
SYNC: Instant = ("sync", "weights", "steady")
ENGINE = {"engine.weights", "engine.kv", "engine.graphs", "engine.runtime", "engine.activation"}
NCCL = 570_425_344
"""544 MiB: a communicator of two ranks (measured)"""


def names(answer: dict[str, Any]) -> set[str]:
    return {name for phase in phases(answer).values() for name in terms(phase)}


def ask(version: str, *more: str) -> dict[str, Any]:
    return check(*JOB, "--set", f"framework=trl=={version}", *more)


def test_older_trl_takes_another_gpu() -> None:
    """Found by use (trl#2864): the trainer's part of 41.02 GiB, which were priced with the engine on its card. That was
    16.25 with logits of prompts too; of the completions and one token more it is 12.78."""
    answer = ask("0.15.0")
    assert answer["verdict"] != "does_not_fit"
    assert round(answer["peak"]["bytes"] / 2**30, 2) == 12.78
    assert not ENGINE & names(answer)
    assert answer["groups"][0]["roles"] == ["policy"]
    assert any("the engine has GPUs of its own, which are not forecast here" in line for line in answer["warnings"])
    process = next(one for one in answer["assumptions"] if one["path"] == "engine.process")
    assert process["value"] == "server"
    assert "vllm_device" in process["origin"]


@pytest.mark.parametrize(("version", "there"), [("0.14.0", False), ("0.15.2", False), ("0.16.1", True), ("0.18", True)])
def test_a_server_is_reached_through_a_communicator(version: str, there: bool) -> None:
    answer = ask(version)
    assert not ENGINE & names(answer)
    assert terms(phases(answer)[SYNC]).get("sync.communicator", 0) == (NCCL if there else 0)


def test_where_the_engine_is_can_be_said() -> None:
    beside, apart = (ask(version, "--set", f"engine.process={where}") for version, where in
                     (("0.15.0", "trainer"), ("1.16.0", "server")))  # fmt: skip
    assert names(beside) >= ENGINE
    assert not ENGINE & names(apart)
    assert "sync.communicator" in names(apart)


def test_a_server_asks_for_no_share_and_no_divisor() -> None:
    """TRL 0.16 and 0.17 have no default of a share; two GPUs of a server are no divisor of the trainer's one."""
    answer = ask("0.16.0", "--set", "engine.tp=2")
    assert answer["verdict"] != "does_not_fit"
    assert terms(phases(answer)[SYNC])["sync.communicator"] > NCCL
