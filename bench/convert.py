"""Public rows of measured runs -> rows in our own paths, one a line: `python bench/convert.py ROWS.jsonl > FILE.jsonl`.

A run keeps its source, its readings and what they were read from. What cannot be told from the source is a `skip` with
the reason; disagreements that were understood are in KNOWN.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from vramcast.bench.jobs import Skip, counter_of, job_of, weights_known

KEPT = ("id", "source", "stack", "engine_version", "tuning", "gpu", "gold", "confidence", "unknown", "interval_only")
READING = ("quantity", "phase", "at", "unit", "score", "value", "bound", "capacity_bytes", "inferred", "derived")
KNOWN = {
    ("vllm-i21348-vllm", "kv_bytes_per_token"): "the rank with the fewest blocks decides how many tokens there are",
    ("vllm-i7878", "weights"): "the config of that time had 1,024,000 positions, and so a longer rotary table",
    ("llmd-gptoss120b", "weights"): "another kernel for MXFP4 experts, whose padding has no source",
    ("vllm-i6746", "weights"): "Meta's checkpoint packs the MLPs of all but two layers only",
    (
        "log-qwen1.5b-48g",
        "weights",
    ): "the rotary table of the Instruct model: the base model has four times the positions",
    ("sgl-glm47flash-npu", "weights"): "another vendor's allocator",
    ("sgl-i2527", "weights"): "printed as 1.00 GB",
}


def convert(row: dict[str, Any]) -> dict[str, Any]:
    """One row. `job` or `skip` says what was made of it."""
    found = {key: row[key] for key in KEPT if row.get(key) not in (None, [], False)}
    try:
        found["job"] = job_of(row)
    except Skip as skip:
        found["skip"] = str(skip)
    if counter_of(row) == "current":
        found["counter"] = "current"
    found["readings"] = [_reading(row, reading) for reading in row["readings"]]
    return found


def _reading(row: dict[str, Any], reading: dict[str, Any]) -> dict[str, Any]:
    found = {key: reading[key] for key in READING if reading.get(key) is not None}
    if reading["quantity"] == "weights":
        try:
            weights_known(row)
        except Skip as skip:
            found["skip"] = str(skip)
    reason = KNOWN.get((row["id"], reading["quantity"]))
    return {**found, "known_reason": reason} if reason else found


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            if str(row.get("workload") or "").startswith("inference"):
                print(json.dumps(convert(row), ensure_ascii=False))


if __name__ == "__main__":
    main()
