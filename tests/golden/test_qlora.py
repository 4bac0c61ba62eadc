"""QLoRA on Qwen2.5-7B with TRL on one A100 80 GB, worked by hand: adapters of rank 16 on every linear layer."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from msgspec import structs
from tests.golden.qwen import FFN, HIDDEN, KV, LAYERS, PARAMS, QUERY
from tests.golden.test_packed_inference import BYTES, REST
from tests.random_jobs import said

from vramcast.estimate import forecast
from vramcast.types.result import Forecast

JOB: dict[str, Any] = {
    "algorithm": "sft", "framework": "trl==1.16.0", "tuning": "qlora", "model": "Qwen/Qwen2.5-7B",
    "gpu": "a100-sxm-80gb", "weights_dtype": "bf16", "lora.rank": 16, "lora.targets": ["all-linear"], "micro_batch": 4,
    "seq_len": 2048, "attention": "flash", "lora.dropout": 0.0,
}  # fmt: skip

# A is 16 x inputs and B outputs x 16: in a block q and o, k and v, gate, up and down
ADAPTERS = LAYERS * 16 * (2 * (QUERY + HIDDEN) + 2 * (KV + HIDDEN) + 3 * (FFN + HIDDEN))
assert ADAPTERS == 40_370_176


@cache
def _forecast(**more: object) -> Forecast:
    values = {**JOB, **{path.replace("__", "."): value for path, value in more.items()}}
    return forecast(said({path: value for path, value in values.items() if value is not None}))


def held(term: str, phase: str = "step", instant: str = "update", when: str = "steady", **more: object) -> int:
    found = next(
        one for one in _forecast(**more).groups[0].phases if (one.name, one.instant, one.when) == (phase, instant, when)
    )
    return sum(one.bytes for one in found.terms if one.name == term)


def test_the_base_is_packed_in_4_bits_and_the_adapters_are_bf16() -> None:
    """TRL casts the adapters of a packed base to bf16 and leaves the rest of the base in the dtype it was loaded in."""
    assert held("weights") == 2 * REST + LAYERS * BYTES["nf4"] == 5_851_143_424
    assert held("adapters") == 2 * ADAPTERS == 80_740_352
    assert held("gradients") == 2 * ADAPTERS
    assert held("optimizer.state") == 2 * 2 * ADAPTERS == 161_480_704  # AdamW's two moments, as the adapters are


def test_states_do_not_exist_before_the_first_step() -> None:
    assert held("optimizer.state", "forward", "last block", "first") == 0
    assert held("optimizer.state", "step", "update", "first") == 4 * ADAPTERS


def test_weights_are_the_same_at_every_instant() -> None:
    """A weight that is unpacked for a product is part of the running block."""
    found = {
        sum(term.bytes for term in phase.terms if term.name == "weights") for phase in _forecast().groups[0].phases
    }
    assert found == {2 * REST + LAYERS * BYTES["nf4"]}


def test_before_0_26_everything_that_is_not_packed_becomes_fp32() -> None:
    """The trainer called prepare_model_for_kbit_training, and left the adapters in PEFT's fp32 (without bf16 autocast,
    with which it cast some of it back)."""
    old = {"framework": "trl==0.23.0", "autocast": False}
    assert held("weights", **old) == 4 * REST + LAYERS * BYTES["nf4"] == 8_031_799_552
    assert held("adapters", **old) == 4 * ADAPTERS
    assert held("optimizer.state", **old) == 2 * 4 * ADAPTERS


def test_without_a_dtype_the_rest_is_loaded_in_fp32() -> None:
    assert held("weights", weights_dtype=None) == 4 * REST + LAYERS * BYTES["nf4"]
    assert held("adapters", weights_dtype=None) == 2 * ADAPTERS


@pytest.mark.parametrize(
    ("said", "kind"),
    [({"quant__double": True}, "nf4 double"), ({"quant__kind": "int8"}, "int8"), ({"quant__kind": "fp4"}, "fp4")],
)
def test_other_ways_to_pack_the_base(said: dict[str, object], kind: str) -> None:
    assert held("weights", **said) == 2 * REST + LAYERS * BYTES[kind]
    assert held("adapters", **said) == 2 * ADAPTERS


def test_an_8_bit_optimizer() -> None:
    """Two states of a byte, and an fp32 absmax for 256 of them. The smallest tensor, B of k_proj, has 512 x 16 numbers;
    below 4096 they would stay fp32."""
    assert ADAPTERS % 256 == 0
    assert held("optimizer.state", optimizer="adamw_8bit") == 2 * (ADAPTERS + ADAPTERS // 256 * 4)


def test_a_paged_optimizer_leaves_small_states_and_all_scales_on_the_card() -> None:
    """Managed memory is for tensors of 100,000 elements or more: in a block B of gate and up, and A of down. The driver
    moves those to the host."""
    paged = LAYERS * 3 * 16 * FFN
    assert 16 * FFN == 303_104 > 100_000 > 16 * HIDDEN == 57_344
    small = ADAPTERS - paged
    assert held("optimizer.state", optimizer="paged_adamw") == 2 * 4 * small == 119_275_520
    scales = ADAPTERS // 256 * 4
    assert held("optimizer.state", optimizer="paged_adamw_8bit") == 2 * (small + scales) == 31_080_448


def test_qlora_is_lora_on_a_packed_base() -> None:
    assert _forecast() == _renamed(_forecast(tuning="lora", quant__kind="nf4"))


def _renamed(other: Forecast) -> Forecast:
    """The other forecast with the words of this one: how the job was said."""
    return structs.replace(other, job=_forecast().job, assumptions=_forecast().assumptions)


def test_the_adapters_do_not_change_with_the_base() -> None:
    plain = {"tuning": "lora", "lora__dtype": "bf16"}
    assert held("weights", **plain) == 2 * PARAMS
    for term in ("adapters", "gradients", "optimizer.state"):
        assert held(term, **plain) == held(term)


# --- int8: inputs that nodes hold ------------------------------------------------------------------------------------

X, PRODUCT = 4 * 2048 * HIDDEN * 2, 4 * 2048 * FFN * 2
"""what q, k and v, then o, then gate and up read; and what down reads: 58,720,256 and 310,378,496 bytes"""
OF_A_BLOCK = 3 * X + PRODUCT


@pytest.mark.parametrize(
    ("phase", "instant", "blocks"),
    [
        ("forward", "last block", 27),  # the last one counts its own while it runs
        ("loss", "head", 28),
        ("backward", "loss", 28),
        ("backward", "first block", 27),
        ("backward", "last block", 27),
        ("backward", "embedding", 28),  # backward has not let go of any
        ("step", "update", 0),
    ],
)
def test_int8_holds_the_inputs_of_its_products_until_backward_is_over(phase: str, instant: str, blocks: int) -> None:
    assert held("activations.held", phase, instant, quant__kind="int8") == blocks * OF_A_BLOCK


def test_4_bits_hold_none_and_neither_does_a_reentrant_checkpoint() -> None:
    assert held("activations.held", "loss", "head") == 0
    assert held("activations.held", "loss", "head", quant__kind="int8", recompute__reentrant=True) == 0


# --- the working memory of a block ------------------------------------------------------------------------------------


def test_an_adapter_beside_a_packed_layer_sets_the_peak_of_a_forward() -> None:
    """Most is alive in up_proj: not while its weight is unpacked, but when its adapter's part is added."""
    before = X + X + PRODUCT  # the residual stream, x of the MLP, SiLU(gate)
    unpacking = before + FFN * HIDDEN * 2 + PRODUCT  # the weight in bf16, and what it makes of x
    adding = before + PRODUCT + PRODUCT + PRODUCT  # a copy of that, B's result scaled, and their sum
    assert unpacking < adding == 1_358_954_496
    assert held("activations.block", "forward", "last block") == adding
