"""Against an independent method: the same jobs were run on fake tensors through the real Hugging Face, PEFT and TRL
classes (torch 2.13, transformers 5.24, peft 0.21, trl 1.16), and every allocation was counted.

The model has the widths of Qwen2.5-7B and three layers, a batch is 2 x 1024 tokens, AdamW has not stepped yet, and no
gradient exists before. Figures are peaks above the weights in MiB, without what is not a tensor (CUDA context,
workspaces, the allocator's rounding).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.random_jobs import Values, said

from vramcast.estimate import forecast
from vramcast.memory.tape import Tape

MIB = 1 << 20
TOLERANCE = 0.0003
"""The trace counts some bytes that the formulas leave out: the id sort of the embedding's backward, which a GPU skips
for short inputs, and scalars."""

NOT_ABOVE_THE_WEIGHTS = {
    "weights", "adapters", "cuda.context", "cublas.workspace", "allocator.cached", "allocator.rounding"
}  # fmt: skip
QWEN2 = {
    "model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 3, "num_attention_heads": 28,
    "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "tie_word_embeddings": False,
    "max_position_embeddings": 32768,
}  # fmt: skip
QWEN3 = {**QWEN2, "model_type": "qwen3", "head_dim": 128, "attention_bias": False}

JOB = {"framework": "trl==1.16.0", "micro_batch": 2, "seq_len": 1024, "accumulation": 1, "attention": "flash"}
BF16 = {"weights_dtype": "bf16", "compute_dtype": "bf16", "autocast": False}
FP32_AUTOCAST = {"weights_dtype": "fp32", "compute_dtype": "bf16", "autocast": True}
LORA = {"tuning": "lora", "lora.rank": 16, "lora.targets": ["all-linear"], "lora.dtype": "fp32", "lora.dropout": 0.05}
LORA_BF16 = {**LORA, "weights_dtype": "bf16", "compute_dtype": "bf16", "autocast": True}
LORA_FP32 = {**LORA, **FP32_AUTOCAST}


# (model, precision and tuning, loss, recompute): (peak until the loss is there, peak of the backward), in MiB.
# `fused` is TRL's head; `full` is Hugging Face's loss, whose logits accelerate converts to fp32 under autocast.
CASES = [
    (QWEN2, BF16, "fused", "none", 1519.21, 4665.60),
    (QWEN2, BF16, "fused", "full", 292.54, 3426.67),
    (QWEN2, BF16, "full", "none", 4347.27, 4941.24),
    (QWEN2, BF16, "full", "full", 3068.58, 3662.55),
    (QWEN2, FP32_AUTOCAST, "fused", "none", 3343.17, 6853.24),
    (QWEN2, FP32_AUTOCAST, "fused", "full", 1896.48, 6853.24),
    (QWEN2, FP32_AUTOCAST, "full", "none", 6972.80, 7538.74),
    (QWEN2, FP32_AUTOCAST, "full", "full", 5526.10, 6853.24),
    (QWEN2, LORA_BF16, "fused", "none", 2042.69, 1839.09),
    (QWEN2, LORA_BF16, "fused", "full", 536.74, 1032.85),
    (QWEN2, LORA_BF16, "full", "none", 4614.83, 5194.47),
    (QWEN2, LORA_BF16, "full", "full", 3062.83, 3634.55),
    (QWEN2, LORA_FP32, "fused", "none", 3355.20, 3578.82),
    (QWEN2, LORA_FP32, "fused", "full", 607.24, 1519.85),
    (QWEN3, BF16, "fused", "none", 1663.96, 4810.35),
]


@pytest.fixture(autouse=True)
def _as_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake tensors never report that a gradient is held once only, so the traced engine adds none in place."""
    assert "reuses_gradients" in Tape.__init__.__kwdefaults__
    monkeypatch.setitem(Tape.__init__.__kwdefaults__, "reuses_gradients", False)


@pytest.mark.parametrize(("model", "how", "loss", "recompute", "forward", "backward"), CASES)
def test_peaks_are_those_of_the_trace(
    tmp_path: Path, model: Values, how: Values, loss: str, recompute: str, forward: float, backward: float
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(model))
    answer = forecast(said({**JOB, **how, "model": str(config), "loss": loss, "recompute": recompute}), cards=False)
    peaks: dict[str, int] = {}
    for phase in answer.groups[0].phases:
        if phase.when == "first" and phase.name in ("forward", "loss", "backward"):
            above = sum(term.bytes for term in phase.terms if term.name not in NOT_ABOVE_THE_WEIGHTS)
            peaks[phase.name] = max(peaks.get(phase.name, 0), above)
    assert max(peaks["forward"], peaks["loss"]) / MIB == pytest.approx(forward, rel=TOLERANCE)
    assert peaks["backward"] / MIB == pytest.approx(backward, rel=TOLERANCE)
