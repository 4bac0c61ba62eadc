"""Packed bases on fake tensors, beside the formulas and hand arithmetic (extras `trace` and `trace-kernels`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("trl")  # and with it torch, transformers, accelerate
pytest.importorskip("bitsandbytes")

from tests.random_jobs import said
from tests.trace.traced import most, run

from vramcast.catalog.models import model_config
from vramcast.estimate import forecast
from vramcast.estimate.resolve import resolve
from vramcast.trace.question import Adapters, Packed, question_of
from vramcast.trace.recording import EMPTY_CACHE, Recording, Storage

pytestmark = [pytest.mark.trace, pytest.mark.filterwarnings("ignore")]

HIDDEN, FFN, VOCAB, LAYERS = 256, 1024, 4096, 2
CONFIG = {
    "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": FFN,
    "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCAB,
    "tie_word_embeddings": False, "max_position_embeddings": 4096,
}  # fmt: skip
KV = HIDDEN // 2
LINEAR = 2 * HIDDEN * HIDDEN + 2 * HIDDEN * KV + 3 * HIDDEN * FFN
OTHER = 2 * VOCAB * HIDDEN + HIDDEN + LAYERS * (2 * HIDDEN + HIDDEN + 2 * KV)
"""embedding, head, norms, biases"""


# --- beside the formulas ----------------------------------------------------------------------------------------------

JOB: dict[str, Any] = {
    "algorithm": "sft", "gpu": "h100-sxm-80gb", "tuning": "qlora", "micro_batch": 2, "seq_len": 1024, "accumulation": 1,
    "attention": "flash", "weights_dtype": "bf16", "compute_dtype": "bf16", "autocast": True, "lora.rank": 16,
    "lora.targets": ["all-linear"], "lora.dropout": 0.05, "framework": "trl==1.16.0", "lora.dtype": "bf16",
}  # fmt: skip
NO_TENSORS = {"cuda.context", "cublas.workspace", "allocator.cached", "allocator.rounding"}
BASES: dict[str, dict[str, Any]] = {
    "nf4": {"quant.kind": "nf4", "quant.double": False},
    "fp4 double": {"quant.kind": "fp4", "quant.double": True},
    "int8": {"quant.kind": "int8"},
    "nf4, the rest in fp32": {"quant.kind": "nf4", "quant.rest_dtype": "fp32", "lora.dtype": "fp32"},
    "nf4 of fp32": {"quant.kind": "nf4", "weights_dtype": "fp32"},
}


@pytest.mark.parametrize(
    ("base", "recompute"), [*((base, "none") for base in BASES), ("nf4", "full"), ("int8", "full")]
)
def test_weights_are_the_formulas_and_the_peaks_of_the_passes_near_them(
    base: str, recompute: str, tmp_path: Path
) -> None:
    from vramcast.trace.child.step import run as run_question

    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    values = {**JOB, **BASES[base], "model": str(path), "loss": "full", "recompute": recompute}
    question = question_of(resolve(said(values)), model_config(str(path)).config)
    question = msgspec.structs.replace(question, trainer="loop", cublas_bytes=0, cublaslt_bytes=0)
    recording = run_question(question)
    formulas = {
        (phase.when, phase.name, phase.instant): {term.name: term.bytes for term in phase.terms}
        for phase in forecast(said(values), cards=False).groups[0].phases
    }
    terms = formulas["first", "load", "built"]
    fixed = terms["weights"] + terms["adapters"]
    assert _resident(recording, "weight", "adapter") == fixed
    for name in ("forward", "backward"):
        phases = ("forward", "loss") if name == "forward" else ("backward",)
        expected = max(_tensors(found) for key, found in formulas.items() if key[0] == "first" and key[1] in phases)
        assert _peak(recording, *phases) == pytest.approx(expected, rel=0.001), name


def _tensors(terms: dict[str, int]) -> int:
    return sum(size for name, size in terms.items() if name not in NO_TENSORS)


def _resident(recording: Recording, *purposes: str) -> int:
    """Bytes that live when the step begins."""
    _, _, end = next(span for span in recording.spans() if span[0].phase == "load")
    alive: set[int] = set()
    for event in recording.events[:end]:
        if event >= 0:
            (alive.discard if event & 1 else alive.add)(event >> 1)
    named = [recording.storages[index] for index in alive]
    return sum(one.bytes for one in named if one.purpose in purposes and "rotary" not in recording.names[one.module])


def _peak(recording: Recording, *phases: str) -> int:
    keys = {(mark.when, mark.phase, mark.instant) for mark in recording.marks}
    return max(most(recording, key) for key in keys if key[0] == "first" and key[1] in phases)


# --- products ---------------------------------------------------------------------------------------------------------

LORA = Adapters(rank=8, targets=["q_proj"], dtype="bf16", dropout=0.0)
NF4 = Packed(kind="nf4", double=False, storage="uint8", compute_dtype="bf16", rest_dtype="bf16")


def _run(packed: Packed | None = NF4, **more: Any) -> Recording:
    usual: dict[str, Any] = {"config": CONFIG, "tuning": "lora", "adapters": LORA, "packed": packed, "steps": 1}
    return run(**(usual | more))


def _unpacked(recording: Recording, phase: str) -> list[str]:
    """Modules in which a whole weight of gate or up is unpacked in a phase."""
    found: list[str] = []
    for mark, first, end in recording.spans():
        for event in recording.events[first:end]:
            one = recording.storages[event >> 1]
            born = mark.phase == phase and event >= 0 and not event & 1
            if born and recording.names[one.shape] == f"{FFN}×{HIDDEN} bf16":
                found.append(recording.names[one.module].rpartition(".")[2])
    return found


@pytest.mark.parametrize(
    ("capability", "rows", "fused"),
    [("9.0", 64, True), ("9.0", 1000, False), ("8.0", 1000, True), ("8.0", 2048, False), ("7.5", 64, False)],
)
def test_few_rows_run_in_a_kernel_that_unpacks_nothing_but_backward_unpacks(
    capability: str, rows: int, fused: bool
) -> None:
    """256 inputs, 1024 outputs: bitsandbytes/backends/cuda/ops.py _gemm_4bit_use_custom_cuda; on sm75 for fp16 only."""
    recording = _run(capability=capability, sequences=1, seq_len=rows, scored_len=rows - 1)
    assert _unpacked(recording, "forward") == ([] if fused else ["gate_proj", "up_proj"] * LAYERS)
    assert len(_unpacked(recording, "backward")) == 2 * LAYERS


def test_int8_assumes_that_there_are_no_outliers() -> None:
    recording = _run(msgspec.structs.replace(NF4, kind="int8"))
    assert any("outliers" in line for line in recording.assumed)
    assert not any("outliers" in line for line in _run().assumed)


# --- loading ----------------------------------------------------------------------------------------------------------


def _made(recording: Recording, *purposes: str) -> list[tuple[str, Storage]]:
    """(module, storage) of what loading makes, in order."""
    _, _, end = next(span for span in recording.spans() if span[0].phase == "load")
    born = [recording.storages[event >> 1] for event in recording.events[:end] if event >= 0 and not event & 1]
    return [(recording.names[one.module], one) for one in born if not purposes or one.purpose in purposes]


def test_a_packed_base_is_staged_and_packed_by_name_into_one_segment() -> None:
    recording = _run()
    made = _made(recording)
    assert made[0][1].bytes == LAYERS * LINEAR // 2 + 2 * OTHER  # the warm-up, which is given back at once
    assert recording.events[:2] == [0, 1]
    modules = list(dict.fromkeys(name.removeprefix("base_model.model.") for name, one in made[1:] if one.bytes > 4096))
    assert modules[:3] == ["lm_head", "model.embed_tokens", "model.layers.0.mlp.down_proj"]
    staged = [one for _, one in made[1:] if recording.names[one.shape] == f"{FFN}×{HIDDEN} bf16"]
    assert len(staged) == 2 * LAYERS
    assert not any(one.purpose == "weight" for one in staged)


def test_a_checkpoint_that_is_packed_needs_no_staging() -> None:
    ready = _run(msgspec.structs.replace(NF4, ready=True))
    assert _resident(ready, "weight") == _resident(_run(), "weight")
    assert not any(ready.names[one.shape] == f"{FFN}×{HIDDEN} bf16" for _, one in _made(ready))


@pytest.mark.parametrize("clears", [True, False])
def test_the_rest_is_cast_one_by_one_and_the_cache_emptied(clears: bool) -> None:
    wide = _run(msgspec.structs.replace(NF4, rest_dtype="fp32", clears_cache=clears))
    assert (EMPTY_CACHE in wide.events) == clears
    assert EMPTY_CACHE not in _run(msgspec.structs.replace(NF4, clears_cache=True)).events  # nothing to cast
    assert _resident(wide, "weight") - _resident(_run(), "weight") == 2 * OTHER


def test_plain_weights_are_read_onto_the_card_or_the_model_is_moved() -> None:
    whole = 2 * (LAYERS * LINEAR + OTHER)
    assert _made(_run(None, device_map=True))[0][1].bytes == whole
    assert max(one.bytes for _, one in _made(_run(None))) == 2 * VOCAB * HIDDEN


def test_adapters_are_made_in_the_dtype_of_the_base_or_in_fp32_and_cast() -> None:
    half = LORA.rank * HIDDEN * 2
    sizes = [one.bytes for _, one in _made(_run(None, adapters=msgspec.structs.replace(LORA, dtype="fp32")), "adapter")]
    assert sizes == [half] * 2 * LAYERS + [2 * half] * 2 * LAYERS
    sizes = [one.bytes for _, one in _made(_run(), "adapter")]
    assert sizes == [2 * half] * 2 * LAYERS + [half] * 2 * LAYERS


def test_threads_read_ahead_while_the_first_tensor_is_large() -> None:
    from vramcast.trace.child.loading import natural, schedule

    events = list(schedule([(100, False), *[(10, False)] * 6, (200, False)], workers=2))
    assert events[:7] == [(0, True), (1, True), (2, True), (3, True), (4, True), (5, True), (6, True)]
    assert events[7:] == [(7, True), *[(index, False) for index in range(7)], (7, False)]
    assert natural("base_model.model.model.layers.2.q.base_layer.weight") < natural("model.layers.10.q.weight")
