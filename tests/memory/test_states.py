"""State spaces and the gated delta rule, as Transformers' own PyTorch runs them: their largest tensors by hand."""

from __future__ import annotations

import pytest
from msgspec import structs
from tests.random_jobs import said

from vramcast.algorithms.table import POLICY
from vramcast.errors import Refused
from vramcast.estimate import forecast
from vramcast.estimate.resolve import resolve
from vramcast.estimate.seats import Seats
from vramcast.memory.head import Model
from vramcast.memory.tape import Tape, Tensor
from vramcast.models.arch import build_arch
from vramcast.models.ops import Delta, Scan
from vramcast.models.parts import tensor

SEQUENCES, LENGTH = 2, 100
CHUNK = 64
ROWS = SEQUENCES * 2 * CHUNK
"""two chunks a sequence, the second one filled up"""
HEADS, WIDTH, STATE = 4, 16, 8
MAMBA = {"model_type": "mamba2", "hidden_size": 32, "num_hidden_layers": 1, "num_heads": HEADS, "head_dim": WIDTH,
         "expand": 2, "n_groups": 1, "state_size": STATE, "chunk_size": CHUNK, "vocab_size": 512}  # fmt: skip
CARD = {"gpu": "h200-sxm-141gb", "weights_dtype": "bf16", "micro_batch": 1, "seq_len": 2048}


def _model(*, autocast: bool = False) -> Model:
    base = Seats(resolve(said({"model": "Qwen/Qwen2.5-7B", "gpu": "a100-sxm-80gb"})), POLICY).base
    seat = structs.replace(
        base, arch=build_arch("small", MAMBA, "here"), sequences=SEQUENCES, seq_len=LENGTH, state="forward",
        tuning="full", weights_dtype="bf16", param_dtype="bf16", compute_dtype="bf16", autocast=autocast,
        targets=frozenset(),
    )  # fmt: skip
    ops = Model(Tape(records=True), seat)
    ops.weights = {weight.name: weight for weight in seat.arch.kinds[0].weights}
    return ops


def _given(ops: Model, width: int) -> Tensor:
    found = ops.tape.empty("given", SEQUENCES * LENGTH, width, "bf16")
    found.requires_grad = True
    return found


def _sizes(ops: Model, name: str) -> list[int]:
    return [int(one.size) for one in ops.tape.living() if one.name.endswith(name)]


def test_a_state_space_keeps_scores_of_every_two_positions_of_a_chunk() -> None:
    ops = _model()
    x, step = _given(ops, HEADS * WIDTH), _given(ops, HEADS)
    b, c = _given(ops, STATE), _given(ops, STATE)
    out = ops.chunk_scan("mixer", x, step, b, c, Scan(HEADS, WIDTH, 1, STATE, CHUNK))
    assert (out.rows, out.width, out.dtype) == (SEQUENCES * LENGTH, HEADS * WIDTH, "fp32")
    pairs = ROWS * HEADS * CHUNK * 4
    assert _sizes(ops, ".scores") == [pairs]
    assert _sizes(ops, ".product") == [pairs], "the scores times their decay"
    between = SEQUENCES * HEADS * 3 * 3 * 4  # two chunks and the first state
    assert sorted(_sizes(ops, ".exp")) == sorted([between, ROWS * HEADS * 4, ROWS * HEADS * 4, pairs])


def test_the_delta_rule_keeps_a_state_of_every_chunk() -> None:
    ops = _model()
    how = Delta(HEADS, STATE, WIDTH, shared=True)
    query, key, value = _given(ops, 2 * STATE), _given(ops, 2 * STATE), _given(ops, HEADS * WIDTH)
    decay, beta = _given(ops, HEADS), _given(ops, HEADS)
    out = ops.delta_rule(query, key, value, decay, beta, how)
    assert (out.rows, out.width, out.dtype) == (SEQUENCES * LENGTH, HEADS * WIDTH, "bf16")
    assert _sizes(ops, "states of chunks") == [SEQUENCES * HEADS * 2 * STATE * WIDTH * 4]
    assert _sizes(ops, "new values of chunks") == [ROWS * HEADS * WIDTH * 4]
    pairs = ROWS * HEADS * CHUNK * 4
    assert _sizes(ops, "exp of pairs") == [pairs]
    assert _sizes(ops, "product").count(pairs) == 4, "two products, and both times the decay"
    assert not _sizes(ops, "copies of chunks")


def test_products_of_the_delta_rule_have_copies_of_their_own_under_autocast() -> None:
    ops = _model(autocast=True)
    sides = [_given(ops, width) for width in (HEADS * STATE, HEADS * STATE, HEADS * WIDTH, HEADS, HEADS)]
    ops.delta_rule(*sides, Delta(HEADS, STATE, WIDTH, shared=False))
    keys, values, scores = ROWS * HEADS * STATE * 2, ROWS * HEADS * WIDTH * 2, ROWS * HEADS * CHUNK * 2
    states = SEQUENCES * HEADS * 2 * STATE * WIDTH * 2
    assert sorted(_sizes(ops, "copies of chunks")) == sorted([keys, keys, scores, values, states, states])
    assert sorted(_sizes(ops, "copies for states")) == [keys // 2, values // 2], "the last state is never asked for"


@pytest.mark.parametrize("name", ["Qwen/Qwen3-Next-80B-A3B-Instruct", "ibm-granite/granite-4.0-h-micro"])
def test_kernels_that_are_not_counted_are_an_assumption_where_the_class_runs(name: str) -> None:
    trained = forecast(said({**CARD, "model": name, "algorithm": "sft"}), cards=False)
    assert [one.value for one in trained.assumptions].count("not installed") == 1
    served = {**CARD, "model": name, "algorithm": "inference", "prompt_len": 100, "engine.kind": "vllm"}
    assert "not installed" not in [one.value for one in forecast(said(served), cards=False).assumptions]
    with pytest.raises(Refused, match="where the model generates"):
        forecast(said({**served, "engine.kind": "hf"}), cards=False)


def test_a_state_of_every_token_is_kept_in_fp32_and_as_it_is_read() -> None:
    ops = _model()
    channels = HEADS * WIDTH
    ops.weights["mixer.dt_proj.bias"] = tensor("mixer.dt_proj.bias", channels)
    x, step, gate = (_given(ops, channels) for _ in range(3))
    b, c = _given(ops, STATE), _given(ops, STATE)
    out = ops.token_scan("mixer", x, step, b, c, gate, STATE)
    assert (out.rows, out.width, out.dtype) == (SEQUENCES * LENGTH, channels, "fp32")
    every = SEQUENCES * LENGTH * channels * STATE
    assert [*_sizes(ops, ".exp"), *_sizes(ops, "writes"), *_sizes(ops, ".states")] == [every * 4] * 3
    assert _sizes(ops, "states as they are read") == [every * 2]


def test_mamba_does_not_run_with_packed_weights() -> None:
    packed = {"algorithm": "sft", "tuning": "qlora", "lora.targets": ["in_proj"]}
    job = {**CARD, **packed, "model": "state-spaces/mamba-2.8b-hf"}
    with pytest.raises(Refused, match="does not run with packed weights"):
        forecast(said(job), cards=False)
