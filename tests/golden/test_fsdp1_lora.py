"""LoRA under FSDP 1 with reentrant recompute: what it holds on to until backward ends."""

from __future__ import annotations

from typing import Any

from tests.jobs import Instant, check, phases

# Qwen2.5-7B: hidden states of 2 x 4096 tokens, 3584 wide, in bf16
HIDDEN = 2 * 4096 * 3584 * 2
LAYERS = 28
JOB = (
    "--model Qwen/Qwen2.5-7B --gpu a100-sxm-80gb --gpus 2 --set framework=transformers --set algorithm=sft "
    "--set shard=fsdp1 --set tuning=lora --set weights_dtype=bf16 --set compute_dtype=bf16 --set autocast=false "
    "--set micro_batch=2 --set seq_len=4096 --set recompute=full --set loss=full"
).split()
LAST: Instant = ("backward", "last block", "steady")
EMBEDDING: Instant = ("backward", "embedding", "steady")


def held(answer: dict[str, Any]) -> dict[Instant, int]:
    found = phases(answer)
    return {
        instant: term["bytes"]
        for instant, phase in found.items()
        for term in phase["terms"]
        if term["name"] == "fsdp.held_inputs" and instant[2] == "steady"
    }


def test_inputs_and_gradients_of_finished_blocks_stay() -> None:
    """The last block of backward has its own input, and its output's gradient is that of the next block's input: 27
    inputs and 26 gradients are beside it. Behind it all 28 inputs are there, and 27 gradients beside the one that the
    embedding gets."""
    answer = check(*JOB, "--set", "recompute.reentrant=true")
    assert HIDDEN == 58_720_256
    assert held(answer) == {LAST: (27 + 26) * HIDDEN, EMBEDDING: (28 + 27) * HIDDEN}
    assert (27 + 26) * HIDDEN == 3_112_173_568


def test_only_fsdp1_with_frozen_blocks_and_leaves_holds_them() -> None:
    for edit in ("recompute.reentrant=false", "shard=fsdp2", "tuning=full", "recompute=none", "gpus=1"):
        assert held(check(*JOB, "--set", "recompute.reentrant=true", "--set", edit)) == {}, edit
    unwrapped = ("--set", "wrap=none", "--set", "lora.dtype=bf16")
    assert held(check(*JOB, "--set", "recompute.reentrant=true", *unwrapped)) == {}


def test_the_recomputed_output_stays_in_a_reentrant_backward() -> None:
    """One hidden state more than what the block needs, on one GPU: adapters everywhere, so nothing else differs."""
    single = [*JOB, "--set", "gpus=1", "--set", "lora.targets=q_proj", "--set", "lora.dropout=0"]
    block = {
        kind: next(
            term["bytes"]
            for term in phases(check(*single, "--set", f"recompute.reentrant={kind}"))[LAST]["terms"]
            if term["name"] == "activations.block"
        )
        for kind in ("true", "false")
    }
    assert block["true"] - block["false"] == HIDDEN
