"""verl on one GPU: it wraps the model in FSDP all the same, so its mixed precision and its units are there.

FSDP 1 over one rank makes a bf16 copy of a unit for its forward and lets go of it afterwards, as if it had gathered it:
measured with torch 2.13 on one CPU process, the forward's peak is the root's and one block's copy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.golden.grpo import ask
from tests.jobs import phases

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "verl_grpo.sh")
SMALL = ("--model", "Qwen/Qwen2.5-0.5B", "--gpu", "h100-sxm-80gb", "--set", "engine.tp=1")
ROOT = 151936 * 896 + 896  # embedding and head are one; the final norm
BLOCK = (2 * 896 * 896 + 2 * 896 * 128 + 896 + 2 * 128) + 3 * 896 * 4864 + 2 * 896


def terms(found: Any, *where: str) -> dict[str, int]:
    return {term["name"]: term["bytes"] for term in found[where]["terms"] if term["role"] == "policy"}


def test_units_are_there_on_one_gpu() -> None:
    alone = phases(ask(EXAMPLE, *SMALL, "--gpus", "1"))
    assert terms(alone, "forward", "last block", "steady")["fsdp.gathered"] == 2 * (ROOT + BLOCK)
    assert "nccl" not in terms(alone, "forward", "last block", "steady")


@pytest.mark.parametrize("phase", [("forward", "last block"), ("loss", "head"), ("score.old", "head")])
def test_hidden_states_and_logits_are_those_of_two_gpus(phase: tuple[str, str]) -> None:
    """They are bf16 in both: what differs is the share of the parameters."""
    found = [terms(phases(ask(EXAMPLE, *SMALL, "--gpus", gpus)), *phase, "steady") for gpus in ("1", "2")]
    for name in ("activations", "logits", "fsdp.gathered", "checkpoints"):
        assert found[0].get(name) == found[1].get(name), name
    assert found[0]["weights"] == 4 * (ROOT + 24 * BLOCK)


def test_the_sharding_is_said_on_one_gpu() -> None:
    answer = ask(EXAMPLE, *SMALL, "--gpus", "1", "--set", "shard=fsdp2")
    assert [item["path"] for item in answer["ineffective"] if item["path"] in ("shard", "wrap")] == []


def test_an_offloaded_reference_stays_on_the_host_at_the_weight_sync() -> None:
    job = "algorithm=grpo framework=trl reference.kind=copy reference.offload.weights=cpu prompt_len=512"
    sets = [word for pair in job.split() for word in ("--set", pair)]
    found = phases(ask(*SMALL, *sets, "--set", "engine.kind=vllm", "--set", "engine.fraction=0.3",
                       "--set", "response_len=512"))  # fmt: skip
    where = {
        name for name, phase in found.items() for term in phase["terms"]
        if (term["name"], term["role"]) == ("weights", "reference")
    }  # fmt: skip
    assert {name for name, *_ in where} == {"score.reference"}
