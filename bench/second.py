"""How long a second forecast of the same model and modes takes, with other sizes.

    PYTHONPATH=src python bench/second.py

Exits with 1 above the limits: 2 ms for a fine-tuning, 6 ms for a GRPO job.
"""

from __future__ import annotations

import sys
from statistics import median
from time import perf_counter
from typing import Any

from vramcast.estimate import forecast
from vramcast.types.job import Fact, Origin, Understanding, check_value

SFT = {"model": "Qwen/Qwen2.5-7B", "gpu": "h100-sxm-80gb", "algorithm": "sft", "framework": "trl==1.16.0"}
GRPO = {
    "model": "Qwen/Qwen2.5-7B", "gpu": "h100-sxm-80gb", "algorithm": "grpo", "framework": "trl==1.16.0",
    "prompt_len": 512, "response_len": 512, "group": 8, "engine.kind": "vllm", "gpus": 8, "shard": "fsdp2",
}  # fmt: skip
LIMITS = {"sft": (SFT, 2.0), "grpo": (GRPO, 6.0)}
LAYOUTS = 100


def said(values: dict[str, Any]) -> Understanding:
    """The job as a user says it."""
    origin = Origin("bench/second.py")
    return Understanding([Fact(path, check_value(path, value, origin), origin) for path, value in values.items()])


def milliseconds(values: dict[str, Any]) -> float:
    """The median over layouts; the first forecast is not counted."""
    found: list[float] = []
    for micro_batch in range(1, LAYOUTS + 2):
        job = said({**values, "micro_batch": micro_batch})
        start = perf_counter()
        forecast(job, cards=False)
        found.append(1000 * (perf_counter() - start))
    return median(found[1:])


def main() -> int:
    slow = 0
    for name, (values, limit) in LIMITS.items():
        took = milliseconds(values)
        slow += took > limit
        print(f"{name:<5} {took:.2f} ms a forecast, at most {limit:g}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
