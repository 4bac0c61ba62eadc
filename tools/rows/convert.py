"""A public row of a measured run -> a row in our own paths.

A run keeps its source, its readings and what they were read from. What cannot be told from the source is a `skip` with
the reason; disagreements that were understood are in KNOWN, PATTERNS and TRACED.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from msgspec import structs
from tools.rows.components import component_of
from tools.rows.jobs import Skip, counter_of, job_of, weights_known
from tools.rows.ranges import between_of
from tools.rows.stacks import facts_of

from vramcast.errors import Refused
from vramcast.types.job import Job, Understanding

KEPT = (
    "id", "source", "workload", "stack", "engine_version", "versions", "tuning", "gpu", "gold", "confidence", "unknown",
    "interval_only",
)  # fmt: skip
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
_SHORTER = "the longest batch had fewer tokens than the 768 that sequences are cut to"
KNOWN |= {
    ("peft-metamath-lora-target-attn-pr2845", "reserved_peak"): _SHORTER,
    ("peft-metamath-lora-target-mlp-pr2845", "reserved_peak"): _SHORTER,
}
_HEAD = "a second table of 622,329,856 bytes: this checkpoint's head was not tied, and nobody says why"
KNOWN |= {(f"hf-qwen3-1.7b-fp8-in{length}", "allocated_peak"): _HEAD for length in (1, 6144, 14336, 30720)}
_FRAGMENTS = "cached blocks that fit no later tensor: a replay of every allocation has them, the formula none"
_SMALL = "most working tensors have 1 to 10 MiB, and what is left behind them in segments is not counted"
_STAGED = "remainders of segments that 16-bit weights were staged in: 8 MiB more or less from run to run"
PATTERNS = (
    (r"t4-.*", r"reserved_peak|process_peak", _FRAGMENTS),
    (r"t4-.*-none-.*SmolLM2-360M|t4-.*-eager-nf4-.*SmolLM2-135M", r"allocated_peak", _SMALL),
    (
        r"liger-csv-fused-linear-orpo-loss-huggingf-.*-t4096",
        r"allocated_peak",
        "half of what plain torch takes: an earlier script kept 16-bit logits, by the reading alone",
    ),
    (
        r"fms-gran-powerlm-3b-.*",
        r"static",
        "a class of Transformers 4.4x: 3 to 18 MB that the class of 5.24 does not have (buffers, routers in fp32); "
        "not explained to the byte",
    ),
    (r"t4-.*-nf4-.*(TinyLlama|SmolLM2-360M|Qwen2.5-1.5B)", r"allocated_.*", _STAGED),
)
"""(id, quantity) of whole families of readings; a single operator's is the trace's, all others the formulas'"""
TRACED = (
    (
        r"t4-.*-nf4-.*",
        r"(reserved|process)_peak|allocated_.*",
        "threads read weights beside the one that packs them, each as fast as the host lets it: the holes they leave "
        "differ from run to run",
    ),
)
"""the same for the trace"""


def convert(row: dict[str, Any]) -> dict[str, Any]:
    """One row. `job` or `skip` says what was made of it."""
    found = {key: row[key] for key in KEPT if row.get(key) not in (None, [], False)}
    try:
        component = component_of(row)
        if component is not None:
            found["component"] = structs.asdict(component) | {"type": "component"}
        elif _infers(row):
            found["job"] = job_of(row)
        else:
            found |= _training(row)
    except Skip as skip:
        found["skip"] = str(skip)
    except Refused as refused:
        found["skip"] = "refused: " + "; ".join(mistake.fact for mistake in refused.mistakes)
    if _infers(row) and counter_of(row) == "current":
        found["counter"] = "current"
    found["readings"] = [_reading(row, reading) for reading in row["readings"]]
    return found


def _infers(row: dict[str, Any]) -> bool:
    return str(row.get("workload") or "").startswith("inference")


def _training(row: dict[str, Any]) -> dict[str, Any]:
    job: Job = Understanding(facts_of(row)).job()
    between = between_of(row)
    return {"job": job.to_file(), **({"between": between} if between else {})}


def _reading(row: dict[str, Any], reading: dict[str, Any]) -> dict[str, Any]:
    found = {key: reading[key] for key in READING if reading.get(key) is not None}
    if reading["quantity"] == "weights" and _infers(row):
        try:
            weights_known(row)
        except Skip as skip:
            found["skip"] = str(skip)
    names = (row["id"], reading["quantity"])
    patterns, traced = ((), ()) if _infers(row) else (PATTERNS, TRACED)
    reasons = {"known_reason": KNOWN.get(names) or _pattern(patterns, *names), "trace_reason": _pattern(traced, *names)}
    return found | {key: reason for key, reason in reasons.items() if reason}


def _pattern(patterns: Iterable[tuple[str, str, str]], run: str, quantity: str) -> str | None:
    return next((why for name, what, why in patterns if re.match(name, run) and re.fullmatch(what, quantity)), None)
