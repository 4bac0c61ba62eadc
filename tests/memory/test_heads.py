"""Heads of frameworks and versions, beside fake-tensor traces of their functions (torch 2.13): peaks in MiB, without
the allocator's rounding."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs
from tests.random_jobs import Values, said

from vramcast.algorithms.table import POLICY
from vramcast.estimate import forecast, resolve
from vramcast.estimate.seats import Seats
from vramcast.memory.passes import new_tape

MIB = 1 << 20
GRPO: Values = {
    "model": "Qwen/Qwen3-0.6B", "algorithm": "grpo", "gpu": "a100-sxm-80gb", "accumulation": 4, "engine.kind": "none",
    "reference.kind": "none", "recompute": "none", "attention": "flash", "optimizer": "adamw",
}  # fmt: skip
LORA: Values = {
    **GRPO, "weights_dtype": "bf16", "compute_dtype": "bf16", "autocast": True, "tuning": "lora", "lora.rank": 8,
    "lora.targets": ["all-linear"], "lora.dropout": 0.05, "micro_batch": 8, "prompt_len": 512, "response_len": 96,
    "recompute": "full",
}  # fmt: skip


def verl_head(tokens: int, **changes: Any) -> tuple[float, float]:
    """(most alive in forward, in forward and backward) of verl's fused head alone, above the hidden states."""
    job = resolve(
        said({"model": "Qwen/Qwen2.5-0.5B", "algorithm": "grpo", "framework": "verl", "gpus": 8, "loss": "fused",
              "gpu": "h100-sxm-80gb", "prompt_len": 512, "response_len": 512})
    )  # fmt: skip
    work = {"state": "backward", "phase": "backward", "sequences": 1, "seq_len": tokens, **changes}
    ops = new_tape(structs.replace(Seats(job, POLICY).base, **work), records=True)
    hidden = ops.hidden("hidden states")
    ops.tape.hold(hidden)
    start = len(ops.tape.steps)
    loss = ops.fused_loss(hidden)
    forward = ops.tape.peak(start)
    ops.tape.backward(loss, ops.tape.like(loss, "gradient"))
    return forward / MIB, ops.tape.peak(start) / MIB


def test_verl_fused_head_is_that_of_its_trace() -> None:
    """FusedLinearForPPO on 1,300 tokens: 1,481.2 MiB with the weight, the states and one workspace (262.2 + 32), and
    2,332.4 with two (262.2 + 64)."""
    forward, backward = verl_head(1300)
    assert forward == pytest.approx(1481.2 - 262.2 - 32, abs=0.3)
    assert backward == pytest.approx(2332.4 - 262.2 - 64, abs=0.3)


def test_verl_fused_head_grows_with_a_chunk_and_not_with_the_batch() -> None:
    """20 bytes a logit of 512 tokens; beyond two chunks only hidden states and vectors grow."""
    assert verl_head(256)[1] < verl_head(512)[1] < verl_head(1024)[1]
    assert verl_head(64 * 1024)[1] - verl_head(1024)[1] < 2 * 64 * 1024 * 896 * 2 / MIB
    assert verl_head(512)[1] > 20 * 512 * 151_936 / MIB


def test_verl_fused_head_of_adapters_still_makes_gradients_of_the_head() -> None:
    """It makes them for each chunk and throws them away; only the sum is missing."""
    whole = 151_936 * 896 * 2 / MIB
    assert verl_head(1300)[1] - verl_head(1300, tuning="lora")[1] == pytest.approx(whole, abs=0.1)


# (TRL, most until the loss is there, most of its backward), of the first step
SCORED = [("0.15.0", 2151.9, 2817.3), ("1.9.2", 2594.8, 3267.1), ("1.12.0", 2594.8, 2812.6)]


@pytest.mark.parametrize(("version", "forward", "backward"), SCORED)
def test_grpo_scores_the_completion_as_its_version_does(version: str, forward: float, backward: float) -> None:
    """Logits of 96 + 1 of 608 tokens. 1.0 to 1.9 divide them in place: in backward one copy more."""
    answer = forecast(said({**LORA, "framework": f"trl=={version}"}), cards=False)
    peaks = {
        phase.name: sum(one.allocated_bytes for one in phase.processes) / MIB
        for phase in answer.groups[0].phases
        if phase.when == "first" and phase.instant in ("head", "loss")
    }
    assert peaks["loss"] == pytest.approx(forward, rel=0.005)
    assert peaks["backward"] == pytest.approx(backward, rel=0.005)


MIXED: Values = {
    "model": "Qwen/Qwen2.5-0.5B", "gpu": "a100-sxm-80gb", "weights_dtype": "fp16", "compute_dtype": "bf16",
    "autocast": True, "algorithm": "sft", "accumulation": 1, "loss": "full", "optimizer": "adamw",
}  # fmt: skip
# (job, instant of the first step, traced without rounding): blocks add bf16 to fp16, and get fp32 from then on
WIDENED: list[tuple[Values, tuple[str, str], float]] = [
    ({**MIXED, "framework": "trl==0.29.0", "tuning": "full", "micro_batch": 2, "seq_len": 386, "recompute": "none",
      "attention": "flash"}, ("forward", "last block"), 2842.3 - 31.7),
    ({**MIXED, "framework": "transformers", "tuning": "lora", "lora.targets": ["all-linear"], "micro_batch": 1,
      "seq_len": 700, "recompute": "full", "attention": "efficient"}, ("forward", "last block"), 1110.7 - 20.5),
    ({**MIXED, "framework": "transformers", "tuning": "lora", "lora.targets": ["all-linear"], "micro_batch": 1,
      "seq_len": 700, "recompute": "full", "attention": "efficient"}, ("backward", "first block"), 1170.5 - 22.5),
]  # fmt: skip


COPY: Values = {
    "model": "Qwen/Qwen2.5-0.5B", "gpu": "a100-sxm-80gb", "framework": "trl==1.12.0", "algorithm": "grpo",
    "weights_dtype": "fp32", "compute_dtype": "bf16", "autocast": True, "tuning": "full", "micro_batch": 2,
    "accumulation": 1, "recompute": "full", "attention": "flash", "optimizer": "adamw", "loss": "full",
    "reference.kind": "copy", "prompt_len": 64, "response_len": 257, "engine.kind": "none", "group": 1,
}  # fmt: skip
# autocast keeps copies of a reference that is not frozen, and lets go of all where the model's forward ends
AUTOCAST: list[tuple[Values, tuple[str, str], float]] = [
    (COPY, ("score.reference", "last block"), 4499.5 - 20.2),
    (COPY, ("score.reference", "head"), 4893.3 - 20.2),
    (COPY, ("loss", "head"), 4948.6 - 18.3),
]
# rotary positions in fp16 make fp32 keys of bf16 ones, which a loop that keeps its outputs keeps
CACHED: Values = {
    **MIXED, "model": "HuggingFaceTB/SmolLM2-360M", "framework": "loop", "tuning": "lora", "micro_batch": 2,
    "lora.targets": ["q_proj", "v_proj"], "recompute": "none", "attention": "eager", "optimizer": "adamw_8bit",
    "seq_len": 2048,
}  # fmt: skip
KEYS = [(CACHED, ("step", "update"), 1357.9 - 19.1)]


@pytest.mark.parametrize(("how", "instant", "traced"), [*WIDENED, *AUTOCAST, *KEYS])
def test_an_instant_is_that_of_the_trace(how: Values, instant: tuple[str, str], traced: float) -> None:
    answer = forecast(said(how), cards=False)
    phase = next(
        phase for phase in answer.groups[0].phases if (phase.name, phase.instant, phase.when) == (*instant, "first")
    )
    left_out = ("allocator.rounding", "allocator.cached", "cuda.context")
    assert sum(term.bytes for term in phase.terms if term.name not in left_out) / MIB == pytest.approx(traced, rel=2e-3)


def test_ends_of_saved_tensors_are_counted() -> None:
    """Traced: 31.7 MiB of ends in the last block of the forward, nearly all of them behind what blocks have saved."""
    (how, _, _), *_ = WIDENED
    phases = forecast(said(how), cards=False).groups[0].phases
    phase = next(one for one in phases if (one.name, one.instant, one.when) == ("forward", "last block", "first"))
    (rounding,) = (term.bytes for term in phase.terms if term.name == "allocator.rounding")
    assert rounding / MIB == pytest.approx(31.7, rel=0.05)
