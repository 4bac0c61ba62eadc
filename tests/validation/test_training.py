"""Rows of training runs: what a run shows on its counters, and why the rest is skipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.cases import run

from vramcast.errors import refuse
from vramcast.types.job import Fact, Origin, Understanding
from vramcast.types.result import PhaseBytes
from vramcast.validation import Reading, bench
from vramcast.validation.counters import QUANTITIES, read
from vramcast.validation.reading import Skip
from vramcast.validation.training import phases_of

RUNS = Path(__file__).parent.parent.parent / "bench" / "runs"
JOB: dict[str, Any] = {
    "framework": "loop==5.17.0", "recompute.reentrant": False, "algorithm": "sft", "model": "meta-llama/Llama-2-7b-hf",
    "gpu": "a100-sxm-80gb", "compute_dtype": "bf16", "autocast": False, "weights_dtype": "bf16", "tuning": "lora",
    "lora.rank": 8, "lora.targets": ["q_proj", "v_proj"], "optimizer": "adamw", "micro_batch": 1, "seq_len": 512,
    "recompute": "full", "loss": "full", "gpus": 1,
}  # fmt: skip
ROW: dict[str, Any] = {
    "id": "run", "stack": "hf-peft-loop", "workload": "sft", "tuning": "lora", "job": JOB,
    "readings": [{"quantity": "allocated_peak", "unit": "bytes", "score": "relative", "value": 10**10}],
}  # fmt: skip


def run_with(**changed: Any) -> dict[str, Any]:
    """A row whose job differs; `__` stands for the dot of a path, None takes a path away."""
    job = {**JOB, **{path.replace("__", "."): value for path, value in changed.items()}}
    return {**ROW, "job": {path: value for path, value in job.items() if value is not None}}


def asked(tmp_path: Path, *rows: dict[str, Any]) -> list[Reading]:
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return bench([str(file)]).rows


def answered(tmp_path: Path, row: dict[str, Any], **reading: Any) -> Reading:
    basic = {"quantity": "allocated_peak", "unit": "bytes", "score": "relative", "value": 10**10}
    (found,) = asked(tmp_path, {**row, "readings": [{**basic, **reading}]})
    return found


# --- what is not predicted --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"compile": True}, "refused: compile = true is not modelled yet"),
        ({"fused_kernels": "liger"}, "refused: fused_kernels = liger is not modelled yet"),
        ({"framework": "megatron"}, "refused: unknown framework 'megatron'"),
    ],
)
def test_what_the_forecast_refuses_is_the_reason(tmp_path: Path, changed: dict[str, Any], reason: str) -> None:
    found = answered(tmp_path, run_with(**changed))
    assert (found.skipped_reason, found.predicted) == (reason, None)


def test_kernels_change_nothing_between_steps(tmp_path: Path) -> None:
    row = run_with(fused_kernels="unsloth")
    assert answered(tmp_path, row).skipped_reason == "refused: fused_kernels = unsloth is not modelled yet"
    assert answered(tmp_path, row, quantity="static").predicted == answered(tmp_path, ROW, quantity="static").predicted


# --- readings ---------------------------------------------------------------------------------------------------------


def instants(**changed: Any) -> list[PhaseBytes]:
    origin = Origin("row")
    return phases_of(Understanding([Fact(path, value, origin) for path, value in run_with(**changed)["job"].items()]))


@pytest.fixture(scope="module")
def phases() -> list[PhaseBytes]:
    return instants()


def test_readings_of_one_run(phases: list[PhaseBytes]) -> None:
    """Llama-2-7B in bf16 with adapters on 4,194,304 parameters, 512 tokens on an A100: each by its arithmetic."""
    values = {quantity: read(quantity, None, phases, {"gpus": 1}).point for quantity in QUANTITIES}
    weights, adapters, workspaces = 6_738_415_616 * 2, 4_194_304 * 4, 2 * 8_519_680
    logits, hidden = 512 * 32000 * 2, 512 * 4096 * 2
    slack = values["allocated_after_load"] - weights - adapters
    assert 0 <= slack < weights // 500  # ends of segments
    assert values["static"] == weights + 3 * adapters + workspaces + slack
    # Gradients, and what the outputs keep: logits, and the embedded tokens with their gradient.
    assert values["allocated_after_step"] == values["static"] + adapters + logits + 2 * hidden
    step = read("allocated_peak", "step", phases, {}).point
    assert step == values["allocated_after_step"] + adapters  # foreach: the square roots of all variances
    assert values["allocated_peak"] == read("allocated_peak", "backward", phases, {}).point
    # In the first step autograd has multiplied nothing when the logits' gradients are there: one workspace less.
    assert values["allocated_peak_first_step"] == values["allocated_peak"] - 2 * adapters - workspaces // 2
    assert values["allocated_peak"] <= values["reserved_peak"] < values["process_peak"] == values["device_peak"]


def test_forward_is_the_worst_of_forward_and_loss(phases: list[PhaseBytes]) -> None:
    worst = max(
        phase.processes[0].allocated_bytes
        for phase in phases
        if phase.name in ("forward", "loss") and phase.when == "steady"
    )
    assert read("allocated_peak", "forward", phases, {}).point == worst


def test_fsdp1_keeps_gradients_after_zero_grad() -> None:
    found = instants(gpus=2, shard="fsdp1", tuning="full", lora__rank=None, lora__targets=None)
    kept, freed = (read("static", None, found, {"shard": shard, "gpus": 2}).point for shard in ("fsdp1", "fsdp2"))
    assert kept - freed == 6_738_415_616  # a bf16 gradient of half of the parameters


def test_a_quantity_that_nothing_shows(phases: list[PhaseBytes]) -> None:
    with pytest.raises(Skip):
        read("max_batch", None, phases, {})
    with pytest.raises(Skip):
        read("allocated_peak", "rollout", phases, {})


def test_verdicts(tmp_path: Path) -> None:
    """By the card's own total; by the row's where the card is not known."""
    found = answered(tmp_path, ROW, quantity="oom", score="verdict", value=True, capacity_bytes=8 * 10**9)
    assert (found.predicted, found.right) == (False, False)
    anywhere = run_with(gpu=None)
    found = answered(tmp_path, anywhere, quantity="oom", score="verdict", value=True, capacity_bytes=8 * 10**9)
    assert (found.predicted, found.right, found.low is not None) == (True, True, True)
    assert answered(tmp_path, anywhere, quantity="fits", score="verdict", value=True).skipped_reason


def test_a_bound(tmp_path: Path) -> None:
    assert answered(tmp_path, ROW, score="bound", bound="upper", value=10**12).right is True
    assert answered(tmp_path, ROW, score="bound", bound="upper", value=10**9).right is False


def test_a_range(tmp_path: Path) -> None:
    row = {**ROW, "unknown": ["true longest padded batch (<=512 cap)"], "between": [{"seq_len": 99}, {"seq_len": 512}]}
    found = answered(tmp_path, row, score="interval", value=10**10)
    assert found.predicted is None
    assert found.right is False
    assert found.low is not None
    assert found.high is not None
    full = answered(tmp_path, ROW, value=1)
    assert found.low < found.high == full.high
    assert answered(tmp_path, row, score="interval", value=found.low).right is True


def test_a_range_without_ends(tmp_path: Path) -> None:
    row = {**ROW, "unknown": ["offload settings per row"]}
    reason = "the source leaves out what the value depends on: offload settings per row"
    assert answered(tmp_path, row, score="interval").skipped_reason == reason


def test_a_counter_that_is_not_named(tmp_path: Path) -> None:
    """From PyTorch's allocated bytes to the driver's."""
    found = answered(tmp_path, {**ROW, "unknown": ["quantity"], "between": [{}]}, score="interval")
    low, high = answered(tmp_path, ROW), answered(tmp_path, ROW, quantity="device_peak")
    assert (found.low, found.high) == (low.low, high.high)


def test_context_is_echoed(tmp_path: Path) -> None:
    assert answered(tmp_path, ROW, score="context").skipped_reason == "context: shown beside, not scored"


# --- files ------------------------------------------------------------------------------------------------------------


def test_no_reading_is_dropped() -> None:
    """Whatever predicts, every reading of the published rows has its answer."""

    def nothing(job: Understanding) -> list[PhaseBytes]:
        raise refuse("asked and refused")

    files = [RUNS / "training.jsonl", RUNS / "tesla_t4.jsonl"]
    answer = bench([str(file) for file in files], nothing)
    rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 643 + 58
    assert len(answer.rows) == sum(len(row["readings"]) for row in rows)
    assert all(one.skipped_reason for one in answer.rows)
    assert sum(one.skipped_reason == "refused: asked and refused" for one in answer.rows) >= 700
    assert {one.workload for one in answer.rows} == {"training", "training, packed base"}


def test_the_command_lists_them(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    readings = [*ROW["readings"], {"quantity": "oom", "score": "verdict", "value": True, "inferred": True}]
    wrong = {"quantity": "allocated_peak", "score": "interval", "value": 1}
    row = {**ROW, "between": [{"seq_len": 1}, {"seq_len": 512}], "readings": [*readings, wrong]}
    file.write_text(json.dumps(row), encoding="utf-8")
    shown = run(f"bench {file}").stdout.splitlines()
    assert [line.split()[:5] for line in shown[1:3]] == [
        ["training:", "allocated_peak", "2", "0", shown[1].split()[4]], ["training:", "oom", "(inferred)", "1", "0"]
    ]  # fmt: skip
    assert any("allocated_peak" in line and " to " in line for line in shown)
    assert "3 of" not in run(f"bench {file} --markdown").stdout
    answer = json.loads(run(f"bench {file} --json").stdout)
    assert [row["right"] for row in answer["rows"]] == [None, False, False]


def test_each_method_has_its_own_reason(tmp_path: Path) -> None:
    """What the formulas do not know is no excuse for the trace."""
    file = tmp_path / "rows.jsonl"
    basic = {"quantity": "allocated_peak", "unit": "bytes", "score": "relative", "value": 10**10}
    reasons = {"known_reason": "no fragments", "trace_reason": "a race of threads"}
    file.write_text(json.dumps({**ROW, "readings": [{**basic, **reasons}]}), encoding="utf-8")
    assert bench([str(file)]).rows[0].known_reason == "no fragments"
    assert bench([str(file)], lambda job: phases_of(job)).rows[0].known_reason == "a race of threads"
