"""Optimizers on fake tensors beside hand arithmetic and the catalogue's rows (extra `trace`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")  # and with it torch, transformers, accelerate

from tests.random_jobs import said
from tests.trace.traced import CONFIG, FFN, HIDDEN, LAYERS, STEP, VOCAB, most, run

from vramcast.catalog.models import model_config
from vramcast.estimate import forecast
from vramcast.estimate.resolve import resolve
from vramcast.trace.question import question_of
from vramcast.trace.recording import Recording, Storage

pytestmark = [pytest.mark.trace, pytest.mark.filterwarnings("ignore")]

MATRICES = [2 * HIDDEN * HIDDEN + 2 * HIDDEN * (HIDDEN // 2), 3 * HIDDEN * FFN]  # q and o, k and v; gate, up, down
BLOCK = sum(MATRICES) + 2 * HIDDEN
TABLE = VOCAB * HIDDEN
PARAMS = 2 * TABLE + LAYERS * BLOCK + HIDDEN
TENSORS = 2 + LAYERS * 9 + 1


def _states(recording: Recording) -> int:
    """Without the counts of steps, a scalar for each tensor."""
    return most(recording, STEP, lambda one: one.purpose == "state" and one.bytes > 4)


def _work(recording: Recording) -> int:
    return most(recording, STEP, lambda one: one.purpose in ("activation", "cast"))


def _small(one: Storage) -> bool:
    return one.bytes <= 4


@pytest.mark.parametrize(
    ("impl", "copies"), [("fused", 0), ("foreach", PARAMS), ("loop", 2 * TABLE)], ids=["fused", "foreach", "loop"]
)
def test_adamw_takes_the_square_root_of_all_parameters_or_of_one(impl: str, copies: int):
    recording = run(optimizer_impl=impl)
    assert _states(recording) == 2 * 2 * PARAMS
    assert most(recording, STEP, lambda one: one.purpose == "state" and _small(one)) == 4 * TENSORS
    assert copies * 2 <= _work(recording) <= copies * 2 + 4096


def test_sgd_needs_nothing_and_momentum_one_copy():
    assert _states(run(optimizer="sgd", optimizer_impl="foreach")) == 0
    recording = run(optimizer="sgd_momentum", optimizer_impl="foreach")
    assert (_states(recording), _work(recording) < 4096) == (2 * PARAMS, True)


def test_adafactor_holds_a_row_and_a_column_and_works_on_fp32_copies_of_the_largest_tensor():
    recording = run(optimizer="adafactor")
    sides = 2 * (VOCAB + HIDDEN) + LAYERS * (2 * 2 * HIDDEN + 2 * (HIDDEN + HIDDEN // 2) + 3 * (HIDDEN + FFN))
    vectors = (2 * LAYERS + 1) * HIDDEN
    assert _states(recording) == 4 * (sides + vectors)
    assert 4 * 4 * TABLE <= _work(recording) <= 4 * 4 * TABLE * 1.01
    assert 2 * TABLE <= _work(run(optimizer="adafactor_torch")) <= 2 * TABLE * 1.05  # one copy, in bf16


def test_muon_has_one_state_for_matrices_of_blocks_and_adamw_two_for_the_rest():
    recording = run(optimizer="muon")
    inside = LAYERS * sum(MATRICES)
    assert _states(recording) == 2 * inside + 2 * 2 * (PARAMS - inside)


def _8bit(elements: int) -> int:
    return elements + -(-elements // 256) * 4


@pytest.mark.parametrize("trainer", ["loop", "sft"])
def test_8_bit_states_have_a_scale_for_256_and_a_trainer_keeps_the_embedding_wide(trainer: str):
    pytest.importorskip("bitsandbytes")
    recording = run(optimizer="adamw_8bit", trainer=trainer, loss="full" if trainer == "loop" else "fused")
    kv = HIDDEN * HIDDEN // 2  # 2048: below 4096 elements a state is fp32, as a norm's is
    packed = [_8bit(HIDDEN * HIDDEN)] * 2 + [4 * kv] * 2 + [_8bit(HIDDEN * FFN)] * 3 + [4 * HIDDEN] * 2
    embedding = _8bit(TABLE) if trainer == "loop" else 4 * TABLE
    one = embedding + _8bit(TABLE) + LAYERS * sum(packed) + 4 * HIDDEN
    assert _states(recording) == 2 * one
    assert _work(recording) < 4096


@pytest.mark.parametrize(("optimizer", "scale"), [("paged_adamw", 0), ("paged_adamw_8bit", 2 * TABLE // 256 * 4)])
def test_paged_states_of_100_000_elements_are_not_on_the_card_but_their_scales_are(optimizer: str, scale: int):
    pytest.importorskip("bitsandbytes")
    wide = optimizer == "paged_adamw"
    kv = HIDDEN * HIDDEN // 2
    sizes = [HIDDEN * HIDDEN] * 2 + [kv] * 2 + [HIDDEN * FFN] * 3 + [HIDDEN] * 2
    block = sum(4 * size if wide or size < 4096 else _8bit(size) for size in sizes)
    assert _states(run(optimizer=optimizer)) == 2 * (LAYERS * block + 4 * HIDDEN + scale)


def test_lion_keeps_one_fp32_state():
    pytest.importorskip("bitsandbytes")
    assert _states(run(optimizer="lion")) == 4 * PARAMS


# --- beside the formulas ----------------------------------------------------------------------------------------------

JOB: dict[str, Any] = {
    "algorithm": "sft", "gpu": "h100-sxm-80gb", "micro_batch": 1, "seq_len": 64, "framework": "trl==1.16.0",
    "weights_dtype": "bf16", "autocast": False, "lora.dropout": 0.0,
}  # fmt: skip


def _both(folder: Path, **more: object) -> tuple[Recording, dict[str, int]]:
    from vramcast.trace.child.step import run as run_question

    path = folder / "config.json"
    path.write_text(json.dumps({**CONFIG, "architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-6}))
    values = {**JOB, "model": str(path), **more}
    recording = run_question(question_of(resolve(said(values)), model_config(str(path)).config))
    phases = forecast(said(values)).groups[0].phases
    found = next(one for one in phases if (one.name, one.instant, one.when) == STEP[1:] + STEP[:1])
    return recording, {term.name: term.bytes for term in found.terms}


@pytest.mark.parametrize("optimizer", ["adamw", "adamw_8bit", "paged_adamw", "paged_adamw_8bit", "lion", "adafactor"])
@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_states_are_the_formulas_to_the_byte(optimizer: str, tuning: str, tmp_path: Path):
    pytest.importorskip("bitsandbytes")
    recording, terms = _both(tmp_path, optimizer=optimizer, tuning=tuning)
    assert _states(recording) == terms["optimizer.state"]


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor"])
def test_the_work_of_a_step_is_the_formulas(optimizer: str, tmp_path: Path):
    recording, terms = _both(tmp_path, optimizer=optimizer, tuning="full", **{"optimizer.impl": "foreach"})
    assert _work(recording) == pytest.approx(terms["optimizer.step"], rel=5e-3)
