"""`trace --save-arch`: a traced model as a file that `check` reads. At sizes that nobody traced it must agree with the
trace of that very job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.cases import run

pytest.importorskip("trl")  # and with it torch, transformers, accelerate
pytestmark = pytest.mark.trace

SIZES = {
    "hidden_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 5632, "vocab_size": 32768, "tie_word_embeddings": False, "max_position_embeddings": 4096,
}  # fmt: skip
SLIDING = {"sliding_window": 256, "layer_types": ["sliding_attention", "full_attention"] * 2}
MODELS: dict[str, tuple[dict[str, Any], float]] = {
    "llama": ({}, 0.001),
    "qwen2": ({}, 0.001),
    "phi3": ({"pad_token_id": 0}, 0.005),
    "olmo2": ({}, 0.005),
    "gemma2": ({**SLIDING, "query_pre_attn_scalar": 128}, 0.005),
}
"""model type → (its own fields, how far off it may be): the first two the formulas know too, the others they do not"""
JOB = "--gpu a100-sxm-80gb --set algorithm=sft --set framework=trl --set tuning=full"


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def allocated(command: str, method: str) -> dict[str, int]:
    """Bytes by instant, as the trace has them or as the formulas."""
    found = json.loads(run(f"{command} --json").stdout)
    return {
        f"{row['when']} {row['phase']} {row['instant']}": row[method]["allocated_bytes"]
        for row in found["instants"]
        if row[method]
    }


@pytest.mark.parametrize("kind", MODELS)
def test_a_saved_model_agrees_with_the_trace_of_another_size(kind: str) -> None:
    own, share = MODELS[kind]
    Path("config.json").write_text(json.dumps({"model_type": kind, **SIZES, **own}))
    saved = run(f"trace --model config.json {JOB} --set seq_len=512 --set micro_batch=2 --save-arch saved.json")
    assert saved.exit == 0, saved.stderr
    other = f"trace --model saved.json {JOB} --set seq_len=2048 --set micro_batch=4 --set recompute=none"
    traced, ours = allocated(other, "trace"), allocated(other, "formula")
    assert len(ours) == 15  # the load, and seven instants of two steps
    apart = {name: abs(ours[name] - traced[name]) / traced[name] for name in ours}
    assert max(apart.values()) <= share, max(apart.items(), key=lambda item: item[1])
