"""`vramcast bench`: every reading of every row is answered, and only what is exact passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cli.cases import run

from vramcast.validation import bench

TINY: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 16, "vocab_size": 10, "tie_word_embeddings": False,
}  # fmt: skip
# q and o: 8 x 8 each, k and v: 4 x 8 each, gate, up, down: 3 x 16 x 8, two norms: 16
LAYER = 2 * 64 + 2 * 32 + 3 * 128 + 16
PARAMS = 2 * LAYER + 2 * 80 + 8


def write(folder: Path, *rows: dict[str, Any]) -> str:
    file = folder / "rows.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return str(file)


def test_the_catalogue_is_exact() -> None:
    """Two models of 361 have no exact number: their classes could not be built."""
    answer = bench([])
    (summary,) = answer.summary
    assert (summary.readings, summary.exact, summary.wrong, summary.skipped) == (361, 359, 0, 2)
    assert {row.id for row in answer.rows if row.measured is None} == {
        "microsoft/Phi-3.5-vision-instruct", "moonshotai/Kimi-K3"
    }  # fmt: skip


def test_a_model_is_exact_wrong_or_refused(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        {"id": "exact", "params_exact": PARAMS, "config": TINY},
        {"id": "wrong", "params_exact": PARAMS + 1, "config": TINY},
        {"id": "refused", "params_exact": 5, "config": {**TINY, "model_type": "lama"}},
        {"id": "uncounted", "params_exact": None, "config": TINY, "build": "failed"},
    )
    assert PARAMS == 1352
    found = run(f"bench {file}")
    assert found.exit == 1
    assert found.stdout.splitlines() == [
        "quantity                     readings   exact    median     worst  in range  skipped",
        "  params                            4       1   0.037 %   0.074 %         –        2  ✗",
        "farthest off",
        "  wrong: params 1,352, measured 1,353 (-0.074 %)",
        "skipped",
        "  refused: refused: unknown model type 'lama'",
        "  uncounted: nobody could count it: there is no exact number to compare with",
    ]
    rows = json.loads(run(f"bench {file} --json").stdout)["rows"]
    assert [(row["predicted"], row["measured"]) for row in rows] == [
        (1352, 1352), (1352, 1353), (None, 5), (1352, None)
    ]  # fmt: skip
    assert {(row["quantity"], row["unit"], row["score"]) for row in rows} == {("params", "1", "relative")}


def test_every_reading_of_a_run_is_answered(tmp_path: Path) -> None:
    readings = [
        {"quantity": "allocated_peak", "unit": "bytes", "score": "relative", "value": 7, "phase": "backward"},
        {"quantity": "fits", "unit": "true", "score": "context", "value": True, "at": {"batch": 2}},
    ]
    file = write(tmp_path, {"id": "run", "stack": "trl", "tuning": "lora", "gold": True, "readings": readings})
    found = run(f"bench {file} --json")
    assert found.exit == 0
    answer = json.loads(found.stdout)
    assert [(row["quantity"], row["measured"], row["phase"], row["at"]) for row in answer["rows"]] == [
        ("allocated_peak", 7, "backward", None), ("fits", True, None, {"batch": 2})
    ]  # fmt: skip
    assert all(row["skipped_reason"] and row["gold"] and row["stack"] == "trl" for row in answer["rows"])
    assert [row["skipped"] for row in answer["summary"]] == [1, 1]


def test_lines_that_are_no_rows_are_all_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id": "a"}\n\nnot json\n{"config": {}}\n', encoding="utf-8")
    found = run(f"bench {file}")
    assert (found.exit, found.stdout) == (2, "")
    assert found.stderr.splitlines() == [
        "error: not a row: neither a model's config nor readings of a run",
        f"  from     {file}:1",
        "  allowed  a JSON object a line with id, and config or readings",
        "error: not a row: JSON is malformed: invalid character (byte 4)",
        f"  from  {file}:3",
        "error: not a row: Object missing required field `id`",
        f"  from  {file}:4",
    ]


def test_a_file_that_is_not_there() -> None:
    found = run("bench no/such.jsonl")
    assert (found.exit, found.stderr) == (2, "error: no such file: no/such.jsonl\n")
