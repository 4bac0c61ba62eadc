"""Runs of public rows: which model a name means, which job a row is, why a reading is skipped, and limits that fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.cases import Output, run

from vramcast.memory.loaded import loaded_bytes
from vramcast.types.paths import Value
from vramcast.validation import bench
from vramcast.validation.generate import allocated
from vramcast.validation.serving import served

JOB: dict[str, Value] = {
    "model": "Qwen/Qwen2.5-0.5B", "algorithm": "inference", "engine.kind": "vllm", "weights_dtype": "bf16",
}  # fmt: skip
TOKEN = 24 * 2 * 2 * 64 * 2
"""Qwen2.5-0.5B: 24 layers, a key and a value, 2 heads of 64 in bf16: 12,288 bytes"""


def reading(value: object = TOKEN, quantity: str = "kv_bytes_per_token", **more: object) -> dict[str, Any]:
    return {"quantity": quantity, "unit": "bytes", "score": "relative", "value": value, **more}


def row(*readings: dict[str, Any], id: str = "run", **more: Any) -> dict[str, Any]:
    return {"id": id, "stack": "vllm", "job": JOB, "readings": list(readings or (reading(),)), **more}


def folder(path: Path, *rows: dict[str, Any], limits: object = None) -> str:
    text = "\n".join(json.dumps(one) for one in rows)
    (path / "runs.jsonl").write_text(text, encoding="utf-8")
    if limits is not None:
        (path / "limits.json").write_text(json.dumps(limits), encoding="utf-8")
    return str(path)


# --- what is predicted ------------------------------------------------------------------------------------------------

TINY = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16,
    "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 256,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture
def tiny(tmp_path: Path) -> dict[str, Value]:
    (tmp_path / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
    return {**JOB, "model": str(tmp_path / "config.json")}


def test_weights_of_an_engine_are_what_its_allocator_counts(tiny: dict[str, Value]) -> None:
    """vLLM: 1000 rows of the vocabulary are 1024. Query, key and value are one tensor of 64 + 32 + 32 rows, gate and up
    one of 256. Norms of 128 bytes take 512. The table of 256 positions is 16 wide."""
    ends = 2 * 1024 * 64 * 2 + 512
    layer = (128 * 64 + 64 * 64 + 256 * 64 + 64 * 128) * 2 + 2 * 512
    assert loaded_bytes(served(tiny)) == ends + 2 * layer + 256 * 16 * 2
    # SGLang prints what is reserved: all small tensors are in one segment of 2 MiB
    assert loaded_bytes(served({**tiny, "engine.kind": "sglang"})) == 2 << 20


def test_ranks_share_the_weights(tiny: dict[str, Value]) -> None:
    ends = 2 * 512 * 64 * 2 + 512
    layer = (64 * 64 + 64 * 32 + 128 * 64 + 64 * 64) * 2 + 2 * 512
    assert loaded_bytes(served({**tiny, "engine.tp": 2})) == ends + 2 * layer + 256 * 16 * 2


@pytest.mark.parametrize(
    ("more", "size"),
    [
        ({}, TOKEN),
        ({"engine.tp": 2}, TOKEN // 2),  # a key head each
        ({"engine.kv_dtype": "fp8"}, TOKEN // 2),
        ({"engine.pp": 2}, TOKEN // 2),  # 12 layers each
        ({"quant.kind": "awq"}, TOKEN),
        ({"engine.kind": "sglang"}, TOKEN),
        ({"engine.kind": "trtllm"}, TOKEN),
    ],
)
def test_bytes_that_a_token_adds(more: dict[str, Value], size: int) -> None:
    assert served({**JOB, **more}).kv_bytes_per_token() == size


def test_a_counter_between_steps_grows_by_the_cache_and_the_ids() -> None:
    """A token adds its keys and values, and 8 bytes each of id, mask and position."""
    job: dict[str, Value] = {
        "model": "Qwen/Qwen2.5-0.5B", "algorithm": "inference", "engine.kind": "hf", "weights_dtype": "bf16",
        "framework": "transformers==5.24.0", "prompt_len": 1000, "gpu": "a100-sxm-80gb",
    }  # fmt: skip
    short, long = (allocated({**job, "seq_len": tokens}, "current") for tokens in (2000, 3000))
    assert long - short == 1000 * (TOKEN + 3 * 8)
    assert allocated({**job, "seq_len": 2000}, "peak") > short


# --- what is skipped --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (row(skip="nobody knows"), "nobody knows"),
        (row(reading(skip="not this one")), "not this one"),
        (row(reading(score="context")), "context: shown beside, not scored"),
        (row(reading(score="interval"), unknown=["gpu", "version"]),
         "the source leaves out what the value depends on: gpu, version"),
        (row(reading(score="interval")), "the source leaves out what the value depends on: not said what"),
        (row(reading(quantity="kv_tokens")), "not modelled yet"),
        *((row(reading(at=at)), "not modelled yet: what a draft model holds, of which the row does not say what it is")
          for at in ("draft model", "EAGLE3 head", "mtp layer")),
        (row(reading(quantity="allocated_peak")), "not modelled yet"),  # of an engine
        (row(job={**JOB, "engine.kind": "hf"}), "not modelled yet: weights and cache of engine.kind = hf"),
        (row(job={**JOB, "model": "Qwen/Qwen2.5-0.6B"}), "refused: unknown model 'Qwen/Qwen2.5-0.6B'"),
        (row(job={**JOB, "engine.tp": 4}),
         "refused: tp = 4 does not divide the 14 units of self_attn.q_proj.weight"),
        (row(job={**JOB, "engine.pp": 25}), "refused: pp = 25 is more than the 24 layers of Qwen/Qwen2.5-0.5B"),
        (row(job={**JOB, "weights_dtype": "int4"}), "refused: weights_dtype = int4 is not a dtype of plain weights"),
        (row(job={**JOB, "quant.kind": "gptq", "quant.group": 608}),
         "refused: group size 608 does not divide the 896 inputs of model.layers.0.self_attn.q_proj.weight"),
        (row(job=None, model={"name": "Qwen2.5-0.5B"}),
         "it has no job in our own paths: python -m tools.rows makes one of a published row"),
        (row(job=None, component={"kind": "moe"}),
         "a single operator is run, not calculated: python -m tools.operators"),
    ],
)  # fmt: skip
def test_a_skipped_reading_says_why(run: dict[str, Any], reason: str, tmp_path: Path) -> None:
    (found,) = bench([folder(tmp_path, run)]).rows
    assert (found.skipped_reason, found.predicted, found.error) == (reason, None, None)


def test_reasons_are_counted_and_shown(tmp_path: Path) -> None:
    runs = [row(skip="nobody knows", id=f"r{number}") for number in range(3)]
    found = run(f"bench {folder(tmp_path, *runs, row(id='known'))}")
    assert found.exit == 0
    assert found.stdout.splitlines()[-2:] == ["skipped", "  r0 and 2 more: nobody knows"]
    (summary,) = bench([str(tmp_path)]).summary
    assert (summary.readings, summary.exact, summary.wrong, summary.skipped) == (4, 1, 0, 3)


# --- limits -----------------------------------------------------------------------------------------------------------


def off(share: float, **more: object) -> dict[str, Any]:
    """A reading that was measured so much smaller that the prediction is `share` above it."""
    return reading(TOKEN / (1 + share), **more)


def limited(tmp_path: Path, *readings: dict[str, Any], quantity: str = "kv_bytes_per_token", **limit: float) -> Output:
    """What `bench` says of these readings under a limit of their quantity."""
    runs = [row(one, id=f"r{number}") for number, one in enumerate(readings)]
    return run(f"bench {folder(tmp_path, *runs, limits={'inference': {quantity: limit}})}")


def test_a_run_outside_its_limit_fails(tmp_path: Path) -> None:
    found = limited(tmp_path, off(0.009), reading(12_000), worst=0.01)
    assert (found.exit, found.stderr) == (1, "")
    lines = found.stdout.splitlines()
    assert lines[1].endswith("1.650 %   2.400 %         –        0  ✗")
    assert "  r1: kv_bytes_per_token 12,288, measured 12,000 (+2.400 %)" in lines
    assert lines[-1] == "limit broken: kv_bytes_per_token must stay within worst 1.000 %"


def test_runs_inside_their_limit_pass(tmp_path: Path) -> None:
    found = limited(tmp_path, off(0.009), off(-0.009), worst=0.01)
    assert found.exit == 0
    assert "limit broken" not in found.stdout


def test_a_limit_of_the_median_does_not_ask_for_the_worst(tmp_path: Path) -> None:
    assert limited(tmp_path, off(0.001), off(0.5), off(-0.002), median=0.01).exit == 0
    found = limited(tmp_path, off(0.02), off(0), off(-0.03), median=0.01)
    assert found.exit == 1
    assert found.stdout.splitlines()[-1] == "limit broken: kv_bytes_per_token must stay within median 1.000 %"


def test_a_run_with_a_known_reason_is_counted_and_shown_but_breaks_nothing(tmp_path: Path) -> None:
    found = limited(tmp_path, off(0.001), reading(10_240, known_reason="another kernel"), worst=0.01)
    assert found.exit == 0
    lines = found.stdout.splitlines()
    assert "✗" not in found.stdout
    assert lines[1].endswith("10.050 %  20.000 %         –        0")
    shown = lines.index("  r1: kv_bytes_per_token 12,288, measured 10,240 (+20.000 %)")
    assert lines[shown + 1] == "    another kernel"


def test_a_known_reason_moves_the_median_all_the_same(tmp_path: Path) -> None:
    assert limited(tmp_path, off(0.2, known_reason="another kernel"), median=0.01).exit == 1


@pytest.mark.parametrize("kind", ["median", "worst"])
def test_a_limit_with_nothing_to_compare_is_broken(kind: str, tmp_path: Path) -> None:
    """Skipping everything is no way to pass."""
    assert limited(tmp_path, reading(skip="hidden"), **{kind: 0.5}).exit == 1
    found = limited(tmp_path, reading(), quantity="weights", **{kind: 0.5})
    assert found.exit == 1
    assert found.stdout.splitlines()[-1] == f"limit broken: weights must stay within {kind} 50.000 %"


def test_limits_belong_to_a_folder(tmp_path: Path) -> None:
    assert limited(tmp_path, off(0.5), worst=0.01).exit == 1
    assert run(f"bench {tmp_path / 'runs.jsonl'}").exit == 0
    (tmp_path / "limits.json").unlink()
    assert run(f"bench {tmp_path}").exit == 0


def test_markdown_has_the_compared_quantities_with_their_limits(tmp_path: Path) -> None:
    limits = {"inference": {"kv_bytes_per_token": {"worst": 0.01}}}
    path = folder(tmp_path, row(off(0.004), reading(quantity="kv_tokens")), limits=limits)
    (line,) = run(f"bench {path} --markdown").stdout.splitlines()[2:]
    assert "cache of a token" in line
    assert line.endswith("| 1 | 1 | 0.400 % | 0.400 % | – | worst 1 % |")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ('{"inference": {"weights": {"meidan": 0.1}}}', "Object contains unknown field `meidan`"),
        ('{"inference": {"weights": 0.1}}', "Expected `object`, got `float`"),
        ("[]", "Expected `object`, got `array`"),
        ("{", "Input data was truncated"),
    ],
)
def test_a_file_that_is_no_table_of_limits(content: str, problem: str, tmp_path: Path) -> None:
    path = folder(tmp_path, row())
    (tmp_path / "limits.json").write_text(content, encoding="utf-8")
    found = run(f"bench {path}")
    assert (found.exit, found.stdout) == (2, "")
    assert found.stderr.startswith(f"error: {tmp_path / 'limits.json'} is no table of limits: {problem}")


# --- rows that are none -----------------------------------------------------------------------------------------------


def test_wrong_rows_of_a_file_are_skipped_and_say_why(tmp_path: Path) -> None:
    path = folder(
        tmp_path,
        row(reading("many")),
        row(job={**JOB, "engine.tp": 0, "weights_dtype": "bf8"}),
        row(),
        row(job={"algorithm": "inference"}),
        row(job={**JOB, "engine.kvdtype": "fp8"}),
        row(counter="highest"),
        {**row(), "readings": [5]},
        {**row(), "job": []},
        {"id": "a", "readings": None},
        row(reading(float("inf"))),
        row(note=float("nan")),
    )
    answer = bench([path])
    wrong = [one for one in answer.rows if one.quantity == "row"]
    assert [(one.id.rpartition(":")[2], one.skipped_reason) for one in wrong] == [
        ("1", "a reading's value must be a number, not 'many'"),
        ("2", "weights_dtype: 'bf8' is not one of: fp32, tf32, bf16, fp16, fp8, int8, int4; "
              "engine.tp: must be >= 1, not 0"),
        ("4", "the job of a run names no model"),
        ("5", "unknown path 'engine.kvdtype'"),
        ("6", "not a row: Invalid enum value 'highest' - at `$.counter`"),
        ("7", "not a row: Expected `object`, got `int` - at `$.readings[0]`"),
        ("8", "not a row: Expected `object | null`, got `array` - at `$.job`"),
        ("9", "not a row: neither a model's config nor readings of a run"),
        ("10", "a reading's value must be a number, not inf"),
    ]  # fmt: skip
    assert [one.skipped for one in answer.summary if one.quantity == "row"] == [9]
    assert len([one for one in answer.rows if one.quantity != "row"]) == 2


def test_a_folder_without_rows(tmp_path: Path) -> None:
    found = run(f"bench {tmp_path}")
    assert (found.exit, found.stdout) == (2, "")
    assert found.stderr.rstrip() == f"error: {tmp_path} holds no *.jsonl file"


def test_a_folder_is_all_of_its_files_by_name(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row(id=name)), encoding="utf-8")
    (tmp_path / "notes.json").write_text("{}", encoding="utf-8")
    assert [one.id for one in bench([str(tmp_path)]).rows] == ["a", "b"]
