"""Transformers' Trainer and TRL's SFTTrainer on it, and what the benchmark of fms-acceleration sets beyond its rows."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tools.rows.run import Run
from tools.rows.words import Said, words

_REFS = "fms-acceleration scripts/benchmarks/refs/requirements_granite.txt"
_SCENARIOS = "fms-acceleration scripts/benchmarks/scenarios.yaml"


def hf_trainer(run: Run) -> Iterator[Said]:
    """Facts of a run under the Trainer.

    Raises:
        Skip: what no path stands for.
    """
    versions = {name: _version(run, name) for name in ("trl", "transformers")}
    if run.repo == "fms-acceleration":
        yield from _fms(run, **versions)
    else:
        yield from (("framework", f"{name}=={said}", "row: notes") for name, said in versions.items() if said)
    yield from words(run)


def _version(run: Run, name: str) -> str:
    found = re.search(rf"\b{name} (\d+(\.\d+)+)", run.notes or "")
    return found[1] if found else ""


def _fms(run: Run, trl: str, transformers: str) -> Iterator[Said]:
    kind = str(run.details.get("framework_config") or "")
    plugged = kind.startswith("accelerated-peft")
    if plugged and transformers:
        yield "framework", f"transformers=={transformers}", "row: notes; the plugin prepares the model, not TRL"
    elif trl:
        yield "framework", f"trl=={trl}", "row: notes"
    else:
        yield "framework", "trl==0.11.4", f"{_REFS}: a commit of TRL beside transformers 4.45"
    yield "optimizer.impl", "foreach", "torch 2.4.1: TrainingArguments.optim adamw_torch, whose step is foreach"
    if run.packed:
        yield "padding", "free", "sequences are packed to one length: no padding"
    if run.lora:
        yield "lora.dropout", 0.1, f"{_SCENARIOS}: lora_dropout"
    if "foak" in kind:  # some with Liger's loss beside them
        yield "fused_kernels", "unsloth", "fms-acceleration's framework_config: fused-ops-and-kernels, from Unsloth"
    elif "liger" in kind:
        yield "fused_kernels", "liger", "fms-acceleration's framework_config: Liger's fused loss"
    if run.tuning == "qlora":
        yield "autocast", True, f"{_SCENARIOS}: bf16"
        if plugged:
            yield "quant.rest_dtype", "bf16", "fms_acceleration_peft framework_plugin_bnb.py: casts nothing to fp32"
    if run.tuning == "gptq-lora":
        yield "autocast", True, f"{_SCENARIOS}: fp16"
