"""What the card shows beyond the tensors: the measured spread of reserved memory is in the high end, and says so."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from tests.jobs import check, phases, settings

from vramcast.catalog.spread import kind_of, spreads
from vramcast.types.result import Peak, Verdict, gets_through

JOB = {"algorithm": "sft", "model": "Qwen/Qwen2.5-7B", "weights_dtype": "bf16", "micro_batch": 4, "seq_len": 2048}
LORA = {**JOB, "tuning": "lora", "autocast": "true", "recompute": "full"}
GIB = 1 << 30


def _ask(**values: object) -> dict[str, Any]:
    return check(*settings(gpu="h100-sxm-80gb", **values))


def _high(phase: dict[str, Any], name: str = "allocator.fragmented") -> int:
    return sum(term["high_bytes"] for term in phase["terms"] if term["name"] == name)


def _allocated(phase: dict[str, Any]) -> int:
    return sum(term["bytes"] for term in phase["terms"] if term["counter"] == "allocated")


def test_the_file_is_what_the_measured_runs_give() -> None:
    script = runpy.run_path(str(Path(__file__).parents[2] / "bench" / "spread.py"))
    assert script["FILE"].read_text(encoding="utf-8") == script["text"](script["spread"]())


def test_every_kind_of_job_has_a_row() -> None:
    kinds = {
        kind_of(trains=trains, adapters=adapters, packed=packed, gpus=gpus, expandable=expandable)
        for trains in (True, False)
        for adapters in (True, False)
        for packed in (True, False)
        for gpus in (1, 8)
        for expandable in (True, False)
    }
    assert kinds == set(spreads())
    assert all(row.readings >= 15 for row in spreads().values())


def test_the_high_end_of_lora_on_one_gpu() -> None:
    """What comes and goes at the peak × 0.702068, less what the formulas know to be cached."""
    answer = _ask(**LORA)
    found = phases(answer)
    steady = [phase for (_, _, when), phase in found.items() if when == "steady"]
    rests = 0
    for name in {term["name"] for term in steady[0]["terms"] if term["counter"] == "allocated"}:
        sizes = [sum(term["bytes"] for term in phase["terms"] if term["name"] == name) for phase in steady]
        rests += min(sizes)
    peak = max(steady, key=_allocated)
    moving = _allocated(peak) - rests
    cached = sum(term["bytes"] for term in peak["terms"] if term["name"] == "allocator.cached")
    kept = _high(peak, "allocator.cached") - cached
    assert spreads()["one GPU, adapters"].high == 702_068
    assert _high(peak) == -(-moving * 702_068 // 1_000_000) - cached - kept
    assert [term["bytes"] for term in peak["terms"] if term["name"] == "allocator.fragmented"] == [0]


def test_weights_that_stay_split_nothing() -> None:
    """The same work on a model of twice the weights has no wider range for the weights alone."""
    small, large = (_ask(**{**LORA, "model": model}) for model in ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-14B"))
    spans = [answer["peak"]["high_bytes"] - answer["peak"]["bytes"] for answer in (small, large)]
    assert spans[1] < spans[0] + 4 * GIB


def test_expandable_segments_keep_less() -> None:
    plain, expandable = _ask(**LORA), _ask(**LORA, allocator="expandable_segments:True")
    spans = [answer["peak"]["high_bytes"] - answer["peak"]["bytes"] for answer in (plain, expandable)]
    assert spans[1] < spans[0]


def test_an_engine_starts_with_an_emptied_cache() -> None:
    job = {**JOB, "algorithm": "grpo", "micro_batch": 8, "tuning": "lora", "framework": "trl==1.16.0",
           "engine__kind": "vllm", "engine__sleep": "2", "engine__fraction": "0.4", "prompt_len": 512,
           "response_len": 512}  # fmt: skip
    found = phases(_ask(**job))
    awake = [phase for (name, _, _), phase in found.items() if name in ("engine.start", "generate")]
    assert awake
    assert all(_high(phase) == 0 for phase in awake)
    assert any(_high(phase) for (name, _, _), phase in found.items() if name == "backward")


@pytest.mark.parametrize(
    ("verdict", "margin", "needs_high", "yes"),
    [
        ("fits", 10, 90, True),
        ("tight", 10, 110, True),
        ("tight", 10, 111, False),
        ("tight", -1, 100, False),
        ("does_not_fit", -5, 120, False),
    ],
)
def test_tight_is_a_yes_when_the_point_is_inside_and_the_need_not_far_above(
    verdict: Verdict, margin: int, needs_high: int, yes: bool
) -> None:
    peak = Peak(
        bytes=100 - margin, low_bytes=0, high_bytes=500, capacity_bytes=100, margin_bytes=margin,
        needs_high_bytes=needs_high, resource="gpu", group="all", phase="step", instant="update", rank="all",
        when="steady",
    )  # fmt: skip
    assert gets_through(verdict, peak) is yes


def test_cached_blocks_do_not_decide_whether_the_answer_is_yes() -> None:
    """They are given back before an allocation fails: tight, with the needs inside, exits with 0."""
    peak = _ask(**LORA)["peak"]
    assert peak["bytes"] <= peak["needs_high_bytes"] < peak["high_bytes"]
