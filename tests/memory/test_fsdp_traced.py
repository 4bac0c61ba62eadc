"""FSDP2 against an independent method: four layers as wide as Qwen2.5-7B's were run on fake tensors through the real
class, every layer and the root under `fully_shard` over 8 ranks, and every byte PyTorch allocated was counted.

torch 2.13, transformers 5.24; fp32 shards, bf16 parameters in the forward, Hugging Face's full loss, recomputation,
AdamW with its foreach step; one sequence; figures are of the second step, so moments exist, in MiB. Shards and states
are counted; the CUDA context, cuBLAS and the allocator's remainders are not.
"""

from __future__ import annotations

import pytest
from msgspec import structs

import vramcast.memory.terms  # noqa: F401  # declares the terms
from vramcast.catalog.gpus import find_gpu
from vramcast.memory.seat import Seat
from vramcast.memory.tape import Tape
from vramcast.memory.term import read
from vramcast.models.arch import build_arch

MIB = 1 << 20
TOLERANCE = 0.001

CONFIG = {
    "model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 4, "num_attention_heads": 28,
    "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064, "tie_word_embeddings": False,
    "max_position_embeddings": 32768,
}  # fmt: skip

INSTANTS = {
    "forward": (("forward", "first block"), ("forward", "last block"), ("loss", "head")),
    "backward": tuple(("backward", instant) for instant in ("loss", "first block", "last block", "embedding")),
    "step": (("step", "update"),),
}
"""The trace's borders: the forward ends when the loss is there."""

# (tokens, dtype of the reduction, micro-batches a step): peaks of forward, backward and step. With two micro-batches
# nothing is reduced in the first (`set_requires_gradient_sync(False)`), and forward and backward are the second one's.
CASES = [
    (1024, "fp32", 1, 7947.4, 9574.4, 4821.4),
    (8192, "fp32", 1, 17748.6, 20124.5, 4821.4),
    (8192, "bf16", 2, 21605.7, 23981.6, 4821.4),
]


@pytest.fixture(autouse=True)
def _as_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake tensors never report that a gradient is held once only, so the traced engine adds none in place."""
    defaults = Tape.__init__.__kwdefaults__
    assert defaults is not None
    assert "reuses_gradients" in defaults
    monkeypatch.setitem(defaults, "reuses_gradients", False)


def _seat(tokens: int, reduce_dtype: str, micro_batches: int) -> Seat:
    return Seat(
        role="policy", state="rest", phase="", instant="", when="steady", leads=False,
        arch=build_arch("four layers", CONFIG, "test"), gpu=find_gpu("h100-sxm-80gb"),
        sequences=1, seq_len=tokens, scored_len=tokens, tuning="full", weights_dtype="fp32", param_dtype="bf16",
        compute_dtype="bf16", autocast=False, optimizer_impl="foreach", recompute="full", loss="full",
        shard="fsdp2", ranks=8, gpus=8, reduce_dtype=reduce_dtype,
        accumulates=micro_batches > 1, syncs=micro_batches == 1,
    )  # fmt: skip


def _peak(seat: Seat, phase: str) -> float:
    """MiB of all tensors at the fullest instant of a phase."""
    moments = [structs.replace(seat, phase=phase, state=state, instant=instant, memo={})
               for state, instant in INSTANTS[phase]]  # fmt: skip
    return max(sum(found.point for found in read(moment) if found.term.counter == "allocated")
               for moment in moments) / MIB  # fmt: skip


@pytest.mark.parametrize(("tokens", "reduce_dtype", "micro_batches", "forward", "backward", "step"), CASES)
def test_peaks_are_those_of_the_trace(
    tokens: int, reduce_dtype: str, micro_batches: int, forward: float, backward: float, step: float
) -> None:
    seat = _seat(tokens, reduce_dtype, micro_batches)
    assert _peak(seat, "forward") == pytest.approx(forward, rel=TOLERANCE)
    assert _peak(seat, "backward") == pytest.approx(backward, rel=TOLERANCE)
    assert _peak(seat, "step") == pytest.approx(step, rel=TOLERANCE)


def test_whole_gradients_outlive_a_micro_batch_but_not_the_last() -> None:
    """Two bytes a parameter on every rank, until the last backward reduces them."""
    seat = _seat(8192, "bf16", 2)
    held = {
        state: sum(found.point for found in read(structs.replace(seat, state=state, instant=instant, memo={}))
                   if found.term.name == "gradients.unsharded")
        for state, instant in (("forward", "last block"), ("backward", "loss"), ("step", "update"))
    }  # fmt: skip
    parameters = 2 * 152064 * 3584 + 4 * 233_057_792 + 3584
    assert held == {"forward": 2 * parameters, "backward": 2 * parameters, "step": 0}
