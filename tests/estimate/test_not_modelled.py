"""What a forecast refuses and another verb answers: the refusal names it, and it does."""

from __future__ import annotations

import json

import pytest
from tests.cli.cases import run

LORA = "--model Qwen/Qwen2.5-7B --set tuning=lora --set lora.targets=q_proj,v_proj"
PLAIN = 28 * 16 * ((3584 + 3584) + (3584 + 512))  # rank 16 on q_proj and v_proj of 28 layers


@pytest.mark.parametrize(
    ("path", "value", "shown", "modelled", "trainable"),
    [
        ("lora.dora", "true", "true", "false", PLAIN + 28 * (3584 + 512)),  # a magnitude for every output
        ("lora.rank_pattern", "q_proj=4", "{'q_proj': 4}", "none", PLAIN - 28 * 12 * (3584 + 3584)),
        ("lora.save_modules", "lm_head", "['lm_head']", "none", PLAIN + 152064 * 3584),
    ],
)
def test_an_adapter_that_is_not_forecast_is_counted(
    path: str, value: str, shown: str, modelled: str, trainable: int
) -> None:
    words = f"{LORA} --set {path}={value}"
    found = run(f"check {words} --set algorithm=sft")
    assert (found.exit, found.stdout) == (2, "")
    assert found.stderr == (
        f"error: {path} = {shown} is not modelled yet\n"
        "  from      --set\n"
        f"  modelled  {modelled}\n"
        "  help      `vramcast explain --arch` counts the adapter's parameters exactly\n"
    )
    assert json.loads(run(f"explain --arch {words} --json").stdout)["adapter"]["trainable"] == trainable
