"""The short convolution of LFM2: its bytes by hand."""

from __future__ import annotations

from msgspec import structs
from tests.random_jobs import said

from vramcast.algorithms.table import POLICY
from vramcast.estimate.resolve import resolve
from vramcast.estimate.seats import Seats
from vramcast.memory.head import Model
from vramcast.memory.tape import Tape
from vramcast.models.arch import build_arch
from vramcast.models.types.recurrent import ShortConvolution

SEQUENCES, LENGTH, HIDDEN, TAPS = 2, 8, 64, 3
TOKENS = SEQUENCES * LENGTH
CONFIG = {"model_type": "lfm2", "hidden_size": HIDDEN, "num_hidden_layers": 1, "num_attention_heads": 4,
          "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 512, "conv_L_cache": TAPS,
          "layer_types": ["conv"]}  # fmt: skip


def test_the_rows_past_the_last_token_stay_in_memory() -> None:
    base = Seats(resolve(said({"model": "Qwen/Qwen2.5-7B", "gpu": "a100-sxm-80gb"})), POLICY).base
    arch = build_arch("small", CONFIG, "here")
    seat = structs.replace(
        base, arch=arch, sequences=SEQUENCES, seq_len=LENGTH, state="forward", tuning="full", weights_dtype="bf16",
        param_dtype="bf16", compute_dtype="bf16", autocast=False, attention="flash", targets=frozenset(),
    )  # fmt: skip
    ops = Model(Tape(records=True), seat)
    ops.weights = {weight.name: weight for block in arch.kinds for weight in block.weights}
    x = ops.tape.empty("x", TOKENS, HIDDEN, "bf16")
    x.requires_grad = True
    before = int(ops.tape.alive())
    out = ShortConvolution(HIDDEN, TAPS)(ops, x)
    ops.drop(out)
    given, three, gated, product = (2 * TOKENS * HIDDEN * times for times in (1, 3, 1, 1))
    longer = 2 * (TOKENS + SEQUENCES * (TAPS - 1)) * HIDDEN
    assert ops.tape.alive() - before == given + three + gated + longer + product
    ops.tape.backward(out, ops.tape.like(out, "given"))
    assert ops.tape.alive("gradient") == 2 * (3 * HIDDEN * HIDDEN + HIDDEN * TAPS + HIDDEN * HIDDEN)
