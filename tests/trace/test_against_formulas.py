"""Two methods that share no code, on the same jobs: what the formulas count, and a trace of the real classes.

Both say what is allocated at an instant. Left out is what the trace alone can know, the allocator's rounding of tensors
that come and go, and the moment at which a thread's first product takes its workspace; that is compared where it stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.random_jobs import said

from vramcast.estimate import forecast
from vramcast.trace import trace
from vramcast.trace.process import Child, Tell
from vramcast.trace.question import OwnStep
from vramcast.trace.recording import Recording
from vramcast.types.result import PhaseBytes
from vramcast.units import MIB

pytestmark = [pytest.mark.trace, pytest.mark.filterwarnings("ignore")]
TOLERANCE, AT_LEAST = 0.001, 0.3 * MIB
SIZES = {
    "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 768, "vocab_size": 8192, "tie_word_embeddings": False, "max_position_embeddings": 4096,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", "head_dim": 64},
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "ungrouped": {"model_type": "llama", "num_key_value_heads": 4},
}
_ADAPTERS = {"lora.rank": 16, "lora.targets": ["all-linear"], "lora.dropout": 0.05}
TUNINGS: dict[str, dict[str, Any]] = {
    "full": {},
    "lora": {"tuning": "lora", **_ADAPTERS},
    "qlora": {"tuning": "qlora", "quant.kind": "nf4", "quant.double": True, **_ADAPTERS},
}
PRECISIONS: dict[str, dict[str, Any]] = {
    "bf16": {"weights_dtype": "bf16", "compute_dtype": "bf16", "autocast": False},
    "autocast": {"weights_dtype": "fp32", "compute_dtype": "bf16", "autocast": True},
}
RECOMPUTES: dict[str, dict[str, Any]] = {
    "none": {"recompute": "none"},
    "plain": {"recompute": "full", "recompute.reentrant": False},
    "reentrant": {"recompute": "full", "recompute.reentrant": True},
}
LOSSES = {
    "fused": {"framework": "trl==1.16.0", "loss": "fused"},
    "full": {"framework": "transformers==5.24.0", "loss": "full"},
    "loop": {"framework": "loop==5.24.0", "loss": "full"},
}
"""TRL's head; Transformers' loss in its Trainer, which drops the outputs, and in a plain loop, which keeps them"""
CASES = [
    ("llama", "full", "bf16", "none", "fused"),
    ("qwen2", "full", "bf16", "none", "full"),
    ("mistral", "full", "bf16", "none", "loop"),
    ("qwen3", "full", "bf16", "plain", "loop"),
    ("mistral", "full", "bf16", "reentrant", "fused"),
    ("qwen3", "full", "autocast", "none", "full"),
    ("mistral", "full", "autocast", "none", "fused"),
    ("qwen2", "full", "autocast", "plain", "fused"),
    ("llama", "full", "autocast", "reentrant", "loop"),
    ("qwen3", "lora", "bf16", "none", "loop"),
    ("llama", "lora", "bf16", "plain", "full"),
    ("qwen2", "lora", "bf16", "reentrant", "fused"),
    ("llama", "lora", "autocast", "none", "fused"),
    ("qwen2", "lora", "autocast", "none", "full"),
    ("mistral", "lora", "autocast", "plain", "fused"),
    ("qwen3", "lora", "autocast", "reentrant", "full"),
    ("qwen2", "qlora", "bf16", "none", "fused"),
    ("llama", "qlora", "bf16", "plain", "loop"),
    ("qwen3", "qlora", "bf16", "reentrant", "fused"),
    ("mistral", "qlora", "autocast", "none", "full"),
    ("llama", "qlora", "autocast", "plain", "fused"),
    ("qwen2", "qlora", "autocast", "reentrant", "full"),
]  # fmt: skip
KERNELS = [
    ("llama", "full", "bf16", "none", "fused", "eager"),
    ("qwen3", "full", "autocast", "plain", "fused", "eager"),
    ("ungrouped", "full", "autocast", "reentrant", "full", "eager"),
    ("ungrouped", "full", "bf16", "none", "loop", "eager"),
    ("qwen2", "lora", "autocast", "none", "loop", "eager"),
    ("ungrouped", "lora", "bf16", "plain", "loop", "eager"),
    ("ungrouped", "qlora", "bf16", "plain", "fused", "eager"),
    ("qwen3", "lora", "autocast", "none", "loop", "efficient"),
    ("ungrouped", "full", "bf16", "none", "loop", "efficient"),
    ("mistral", "full", "autocast", "none", "loop", "flash"),
]
"""the last word: attention. Under a loop with a cache, where keys and values are copied for all heads, or cast"""
WORKSPACE, ROUNDING = "cublas.workspace", "allocator.rounding"


class Here(Child):
    """Runs the step in this process."""

    def __init__(self) -> None:
        pass

    def record(self, question: Any, tell: Tell = lambda progress: None) -> Recording:
        from vramcast.trace.child.step import run

        assert not isinstance(question, OwnStep)
        return run(question)


def both(case: tuple[str, ...], folder: Path) -> Iterator[tuple[PhaseBytes, PhaseBytes]]:
    """(by the trace, by the formulas) of every instant that both have."""
    pytest.importorskip("trl", reason="not traced (extra `trace`)")
    model, tuning, precision, recompute, loss, attention = case
    config = folder / "config.json"
    config.write_text(json.dumps(SIZES | MODELS[model]))
    job = {
        "model": str(config), "gpu": "a100-sxm-80gb", "micro_batch": 2, "seq_len": 512, "attention": attention,
        "labelled_frac": 1.0, "accumulation": 1,
        **TUNINGS[tuning], **PRECISIONS[precision], **RECOMPUTES[recompute], **LOSSES[loss],
    }  # fmt: skip
    known = {_key(phase): phase for phase in forecast(said(job), cards=False).groups[0].phases}
    for phase in trace(said(job), Here()).judged.phases:
        if _key(phase) in known:
            yield phase, known[_key(phase)]


def _key(phase: PhaseBytes) -> tuple[str, str, str]:
    return phase.when, phase.name, phase.instant


def _terms(phase: PhaseBytes, *names: str) -> int:
    return sum(term.bytes for term in phase.terms if term.name in names)


def _tensors(phase: PhaseBytes) -> int:
    return phase.processes[0].allocated_bytes - _terms(phase, ROUNDING, WORKSPACE)


def _check_what_stays(traced: PhaseBytes, formula: PhaseBytes) -> None:
    """Row by row, before a step and behind it; a few scalars are no state to the formulas."""
    if traced.name in ("load", "forward", "step"):
        for name in ("weights", "adapters", "optimizer.state"):
            assert _terms(traced, name) == pytest.approx(_terms(formula, name), abs=4096)
    if traced.name == "step":
        assert _terms(traced, "gradients") == _terms(formula, "gradients") > 0


@pytest.mark.parametrize("case", [*((*case, "flash") for case in CASES), *KERNELS], ids=" ".join)
def test_what_is_allocated_is_the_same_at_every_instant(case: tuple[str, ...], tmp_path: Path) -> None:
    apart: dict[tuple[str, str, str], float] = {}
    workspaces: list[tuple[int, int]] = []
    compared = 0
    for traced, formula in both(case, tmp_path):
        compared += 1
        _check_what_stays(traced, formula)
        off = _tensors(formula) - _tensors(traced)
        if abs(off) > max(TOLERANCE * _tensors(traced), AT_LEAST):
            apart[_key(traced)] = round(off / MIB, 2)
        if traced.when == "steady":
            workspaces.append((_terms(traced, WORKSPACE), _terms(formula, WORKSPACE)))
    assert compared == (15 if case[1] == "full" else 13)  # adapters give the embedding no gradient
    assert apart == {}
    if case[0] != "qwen2":  # its biases: the formula takes cublasLt's workspace for both threads
        assert all(ours == theirs > 0 for ours, theirs in workspaces)
