"""Models of many kinds, as the catalogue has them, through the trace: in the terms and instants of the formulas."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.cases import run

from vramcast.memory.term import TERMS

pytest.importorskip("trl")  # and with it torch, transformers, accelerate
pytestmark = pytest.mark.trace

JOB = "--gpu h200 --set algorithm=sft --set framework=trl --set tuning=full --set weights_dtype=bf16 --set seq_len=256"
KINDS = {
    "dense": "meta-llama/Llama-3.2-1B",
    "dense, with biases": "Qwen/Qwen2.5-0.5B",
    "sliding window": "google/gemma-3-1b-it",
    "sliding window, eager": "google/gemma-2-2b-it",
    "experts": "allenai/OLMoE-1B-7B-0924",
    "latent attention, experts": "deepseek-ai/DeepSeek-V2-Lite",
    "latent attention": "openbmb/MiniCPM3-4B",
    "attention beside Mamba 2": "tiiuae/Falcon-H1-1.5B-Base",
    "attention, Mamba 2, experts": "ibm-granite/granite-4.0-h-350m",
    "attention and convolutions": "LiquidAI/LFM2-1.2B",
    "linear attention, vision": "Qwen/Qwen3.5-0.8B",
    "vision": "Qwen/Qwen2.5-VL-3B-Instruct",
    "vision, a tower with more layers": "Qwen/Qwen2-VL-2B-Instruct",
    "vision and sound, part of it eager": "google/gemma-4-E2B-it",
}


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_told_in_the_formulas_words(kind: str) -> None:
    traced = run(f"check --method trace --model {KINDS[kind]} {JOB} --set micro_batch=1 --json")
    assert traced.exit == 0, traced.stderr
    found = json.loads(traced.stdout)["groups"][0]["phases"]
    assert {term["name"] for phase in found for term in phase["terms"]} <= set(TERMS)
    instants = {(phase["name"], phase["instant"]): phase for phase in found}
    told = {("load", "built"), ("forward", "last block"), ("loss", "head"), ("backward", "last block")}
    assert told <= set(instants)
    weights = next(term["bytes"] for term in instants["load", "built"]["terms"] if term["name"] == "weights")
    assert weights == pytest.approx(2 * _parameters(KINDS[kind]), rel=0.001)  # and buffers


def _parameters(model: str) -> int:
    from vramcast.catalog.models import model_config

    params = model_config(model).params
    assert params
    return params
