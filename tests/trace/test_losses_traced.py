"""Loss paths on fake tensors beside hand arithmetic (extra `trace`)."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("trl")  # and with it torch, transformers, accelerate

from tests.trace.traced import (
    BACKWARD,
    FFN,
    HIDDEN,
    LAYERS,
    LENGTH,
    LOGITS,
    LOSS,
    SEQUENCES,
    TOKENS,
    VOCAB,
    exactly,
    instants,
    most,
    run,
    shaped,
)  # fmt: skip

from vramcast.memory.alloc_conf import parse
from vramcast.trace.child import step
from vramcast.trace.question import Adapters
from vramcast.trace.recording import Recording
from vramcast.trace.replay import replay

pytestmark = [pytest.mark.trace, pytest.mark.filterwarnings("ignore")]
LORA = Adapters(rank=4, targets=None, dtype="fp32", dropout=0.1)
GROUP: dict[str, Any] = {"trainer": "grpo", "prompt_len": 24, "scored_len": 40, "accumulation": 2, "beta": 0.04}
PAIRS: dict[str, Any] = {"trainer": "dpo", "prompt_len": 24, "scored_len": 40}
SCORED = SEQUENCES * (LENGTH - 1)


@pytest.mark.parametrize(("kept", "bytes_a_logit"), [(True, 14), (False, 12)])
def test_transformers_loss_takes_12_bytes_a_logit_and_2_more_if_outputs_are_held(kept: bool, bytes_a_logit: int):
    """log-softmax, the gradient of nll and that of log-softmax, 4 each; the 16-bit logits are the outputs'."""
    recording = run(outputs_kept=kept)
    logits = shaped(recording, VOCAB)
    assert most(recording, BACKWARD, logits) == bytes_a_logit * LOGITS
    assert most(recording, LOSS, logits) == 10 * LOGITS  # logits, an fp32 copy, log-softmax


def test_trl_before_1_15_has_the_same_peak_and_metrics_below_it():
    """The entropy goes by 128 rows, and the accuracy's shifted copy is made when the loss's own copies are gone."""
    recording = run(trainer="sft", loss="full", sequences=8)
    logits = shaped(recording, VOCAB)
    assert most(recording, LOSS, logits) == 10 * 4 * LOGITS
    assert most(recording, BACKWARD, logits) == 12 * 4 * LOGITS


def test_trl_fused_head_has_tiles_and_fp32_sums():
    recording = run(trainer="sft", loss="fused")
    tile = shaped(recording, 32768)
    assert most(recording, LOSS, shaped(recording, VOCAB)) == 0
    assert most(recording, LOSS, tile) == most(recording, BACKWARD, tile) == SCORED * 32768 * 2
    for rows in (SCORED, VOCAB):
        assert most(recording, BACKWARD, exactly(recording, f"{rows}×{HIDDEN} fp32")) == 4 * HIDDEN * rows
    assert "TRL's fused head" in recording.patches


def test_a_chunked_loss_keeps_16_bit_logits_and_their_log_softmax():
    """litgpt: a chunk's gradients are gone before the next one's."""
    recording = run(loss="chunked", loss_chunk=32)
    rows = SCORED * VOCAB
    assert most(recording, LOSS, shaped(recording, VOCAB)) == 4 * rows


def test_trl_1_7_makes_a_chunk_again_with_an_fp32_copy_of_the_head():
    recording = run(trainer="sft", loss="chunked", loss_chunk=32)
    copy = exactly(recording, f"{VOCAB}×{HIDDEN} fp32")
    assert most(recording, LOSS, copy) == most(recording, BACKWARD, copy) // 2 == 4 * HIDDEN * VOCAB  # and its gradient
    assert most(recording, LOSS, shaped(recording, VOCAB)) <= 5 * 4 * 32 * VOCAB


def test_a_compiled_loss_keeps_logits_and_makes_their_gradient():
    recording = run(loss="compiled")
    rows = SCORED * VOCAB
    logits = shaped(recording, VOCAB)
    assert (most(recording, LOSS, logits), most(recording, BACKWARD, logits)) == (2 * rows, 4 * rows)


def test_cut_cross_entropy_has_no_logits():
    recording = run(loss="cut")
    assert most(recording, BACKWARD, shaped(recording, VOCAB)) == 0
    head = exactly(recording, f"{VOCAB}×{HIDDEN} bf16", "gradient")
    assert most(recording, BACKWARD, head) == 2 * VOCAB * HIDDEN


def test_liger_works_chunk_by_chunk_and_leaves_no_trace():
    """As many rows as keep the chunk's logits below the hidden states: 126 × 64 / 8192, rounded up to a power of 2."""
    pytest.importorskip("liger_kernel")
    from transformers.models.llama import modeling_llama

    before = modeling_llama.apply_rotary_pos_emb
    recording = run(loss="liger", kernels="liger")
    assert most(recording, LOSS, shaped(recording, VOCAB)) == 2 * VOCAB
    assert modeling_llama.apply_rotary_pos_emb is before


@pytest.mark.parametrize("loss", ["fused", "full"])
def test_dpo_scores_the_reference_while_the_policy_waits(loss: str):
    recording = run(**PAIRS, loss=loss, reference="copy")
    order = [phase for phase, _ in instants(recording)]
    assert order[: order.index("backward")] == ["forward", "loss", "score.reference", "score.reference", "loss"]
    saved = most(recording, ("steady", "forward", "last block"))
    assert most(recording, ("steady", "score.reference", "last block")) > saved


def test_dpo_without_a_copy_turns_the_adapters_off():
    recording = run(**PAIRS, loss="fused", reference="adapter_off", tuning="lora", adapters=LORA, recompute="plain")
    assert ("score.reference", "head") in instants(recording)
    assert ("score.reference", "head") not in instants(run(**PAIRS, loss="fused", reference="precomputed"))


@pytest.mark.parametrize("loss", ["fused", "full"])
def test_grpo_scores_its_rollout_first(loss: str):
    recording = run(**GROUP, loss=loss, reference="copy", old_logprobs=True)
    order = instants(recording)
    assert order[:5] == [
        ("forward", "last block"),  # the rollout's tensors
        ("score.old", "last block"), ("score.old", "head"), ("score.old", "last block"), ("score.old", "head"),
    ]  # fmt: skip
    assert [phase for phase, _ in order].count("backward") >= 2
    forward = most(recording, ("steady", "forward", "last block"))
    assert most(recording, ("steady", "score.reference", "last block")) < forward


def test_a_selective_checkpoint_keeps_attention_and_every_second_product():
    """Of q k v o gate up down: q, v, gate and down; of attention its output and an fp32 sum for each head."""
    none, some = run(recompute="plain"), run(recompute="selective")
    kept = 2 * (HIDDEN + 32 + FFN + HIDDEN) + 2 * HIDDEN + 4 * 4
    grown = most(some, LOSS) - most(none, LOSS)
    assert kept * TOKENS * LAYERS <= grown <= kept * TOKENS * LAYERS + 64  # and attention's random state


def test_accumulation_holds_the_batches_of_a_step():
    """A Trainer fetches them before it begins: ids, mask and labels."""
    one, two = run(trainer="sft", loss="fused"), run(trainer="sft", loss="fused", accumulation=2)
    inputs = [most(each, LOSS, lambda storage: storage.purpose == "input") for each in (one, two)]
    assert inputs[1] - inputs[0] == 3 * 8 * TOKENS


@pytest.mark.parametrize(
    "more", [{"trainer": "sft", "loss": "fused"}, {"outputs_kept": True}, {"tuning": "lora", "adapters": LORA}]
)
def test_more_than_four_micro_batches_change_nothing(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    """Every counter is the same, at every instant, as where all of them are run."""
    short = run(accumulation=7, **more)
    monkeypatch.setattr(step, "_chosen", lambda accumulation, tracker: list(range(accumulation)))
    whole = run(accumulation=7, **more)
    assert len(short.events) < 0.7 * len(whole.events)
    assert _counters(short) == _counters(whole)
    assert [line for line in short.assumed if line not in whole.assumed] == [
        "of 7 micro-batches, 3 do what the third one does"
    ]


def _counters(recording: Recording) -> dict[tuple[str, str, str], tuple[int, int]]:
    found: dict[tuple[str, str, str], tuple[int, int]] = {}
    for span in replay(recording, parse("")).spans:
        key = (span.mark.when, span.mark.phase, span.mark.instant)
        allocated, reserved = found.get(key, (0, 0))
        found[key] = max(allocated, span.allocated), max(reserved, span.reserved)
    return found


def test_what_is_not_where_it_was_gives_no_number(monkeypatch: pytest.MonkeyPatch):
    from trl.trainer import utils

    from vramcast.trace.child.losses.trainers import Sft
    from vramcast.trace.child.patches import Moved

    monkeypatch.setattr(Sft, "fields", lambda self: {})
    with pytest.raises(Moved, match="SFTTrainer"):
        run(trainer="sft", loss="fused")
    monkeypatch.delattr(utils, "_use_triton")
    with pytest.raises(Moved, match="TRL's fused head"):
        run(trainer="sft", loss="fused")
