"""FSDP's mixed precision: fp32 shards are gathered and computed with in 16 bits, with or without autocast."""

from __future__ import annotations

from typing import Any

from tests.jobs import Instant, check, phases, terms

# Llama-3.1-8B, one sequence of 8192 tokens
PARAMS = 8_030_261_248
ROOT = 2 * 128_256 * 4096 + 4096
BLOCK = (PARAMS - ROOT) // 32
JOB = (
    "--model meta-llama/Llama-3.1-8B --gpu gh200-96gb --gpus 8 --set framework=loop --set algorithm=sft "
    "--set micro_batch=1 --set seq_len=8192 --set weights_dtype=fp32 --set autocast=false --set attention=flash "
    "--set recompute=none"
).split()
MIXED = ("--set", "compute_dtype=bf16", "--set", "shard=fsdp2")
LOSS: Instant = ("backward", "loss", "steady")


def at(answer: dict[str, Any], instant: Instant) -> dict[str, int]:
    return terms(phases(answer)[instant])


def test_a_public_run() -> None:
    """77.3 GiB reserved (pytorch PR 129721, torchtitan): context and NCCL are not part of that."""
    answer = check(*JOB, *MIXED)
    assert answer["verdict"] == "tight"  # blocks that stay reserved
    peak = next(phase for phase in answer["groups"][0]["phases"] if phase["bytes"] == answer["peak"]["bytes"])
    (process,) = peak["processes"]
    assert 0.98 < process["reserved_bytes"] / (77.3 * 2**30) < 1.0


def test_what_is_computed_is_as_with_bf16_weights() -> None:
    mixed, plain = at(check(*JOB, *MIXED), LOSS), at(check(*JOB, *MIXED, "--set", "weights_dtype=bf16"), LOSS)
    assert mixed["fsdp.gathered"] == (ROOT + BLOCK) * 2
    assert mixed["weights"] == PARAMS // 8 * 4 == 2 * plain["weights"]
    for name in ("activations.saved", "logits", "fsdp.gathered", "gradients.unsharded"):
        assert mixed[name] == plain[name], name


def test_without_fsdp_products_run_in_the_dtype_of_the_weights() -> None:
    alone = [*JOB, "--set", "shard=none"]
    assert check(*alone, "--set", "compute_dtype=bf16")["peak"] == check(*alone)["peak"]


def test_adapters_are_gathered_in_the_computed_dtype() -> None:
    lora = (*JOB, "--set", "tuning=lora", "--set", "shard=fsdp2", "--set", "recompute=full", "--set", "lora.rank=8")
    first: Instant = ("backward", "first block", "steady")
    whole = {dtype: at(check(*lora, "--set", f"compute_dtype={dtype}"), first) for dtype in ("fp32", "bf16")}
    assert whole["fp32"]["gradients.unsharded"] == 2 * whole["bf16"]["gradients.unsharded"] > 0
