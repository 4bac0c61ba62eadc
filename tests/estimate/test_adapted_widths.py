"""How wide an adapter may be: as what goes into the layers that it is on, and not as any other layer of the model."""

from __future__ import annotations

import pytest
from tests.random_jobs import said

from vramcast.errors import Refused
from vramcast.estimate import resolve

JOB = {
    "model": "Qwen/Qwen1.5-MoE-A2.7B", "gpu": "h200-sxm-141gb", "tuning": "lora", "lora.dropout": 0.0,
}  # fmt: skip


@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], ["all-linear"]])
def test_a_gate_of_one_output_is_no_limit(targets: list[str]) -> None:
    """Its shared expert's gate is a linear layer of 2048 × 1, which PEFT adapts at any rank."""
    resolve(said({**JOB, "lora.targets": targets, "lora.rank": 16}))


def test_the_width_that_goes_in_is_the_limit() -> None:
    with pytest.raises(Refused, match=r"lora.rank = 2049 is above the width of a layer it adapts \(2048\)"):
        resolve(said({**JOB, "lora.targets": ["q_proj"], "lora.rank": 2049}))
