"""The tape and the operators, one at a time: what is born, what is kept for backward, what backward needs at most."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs
from tests.memory.layers import GQA, MHA, product
from tests.random_jobs import said

from vramcast.algorithms.table import POLICY
from vramcast.estimate.resolve import resolve
from vramcast.estimate.seats import Seats
from vramcast.memory.head import Model
from vramcast.memory.tape import Tape, Tensor
from vramcast.models.arch import build_arch

# --- the tape ---------------------------------------------------------------------------------------------------------


def test_a_tensor_lives_until_nothing_holds_it() -> None:
    tape = Tape(records=False)
    x = tape.empty("x", 10, 3, "fp32")  # 10 x 3 x 4 bytes
    assert tape.alive() == 120
    tape.hold(x)
    tape.drop(x)
    assert tape.alive() == 120  # one variable is left
    seen = tape.view(x)  # a reshape: another tensor, the same memory
    tape.drop(x)
    assert tape.alive() == 120
    tape.drop(seen)
    assert tape.alive() == 0
    assert tape.peak() == 120


def test_dtypes_decide_the_bytes() -> None:
    tape = Tape(records=False)
    sizes = [tape.size(tape.empty("x", 5, 7, dtype)) for dtype in ("fp32", "bf16", "fp16", "bool", "int64")]
    assert sizes == [140, 70, 70, 35, 280]


def test_a_peak_is_of_what_was_born_since_and_looked_at_from_start() -> None:
    tape = Tape(records=False)
    before = tape.empty("before", 1, 100, "byte")
    since = len(tape.steps)
    short = tape.empty("short", 1, 50, "byte")
    kept = tape.empty("kept", 1, 10, "byte")
    tape.drop(short)
    start = len(tape.steps)
    tape.drop(before)
    later = tape.empty("later", 1, 20, "byte")
    tape.drop(kept, later)
    assert tape.peak() == 160  # before + short + kept
    assert tape.peak(since) == 60  # short + kept: what was there before does not count
    assert tape.peak(since, start) == 30  # kept + later: only moments from `start` on count
    assert tape.peak(start) == 20
    assert tape.alive(since=since) == 0


def test_unwinding_forgets_what_was_born_later() -> None:
    tape = Tape(records=False)
    early = tape.empty("early", 1, 8, "byte")
    start = len(tape.steps)
    tape.drop(tape.empty("late", 1, 100, "byte"), early)
    tape.unwind(start)
    assert tape.peak() == 8
    assert [sign for sign, _ in tape.steps] == [1, -1]  # the early one still dies


def _doubled(tape: Tape, x: Tensor) -> Tensor:
    """An operator of one input that saves its output."""
    out = tape.like(x, "doubled")
    return tape.node(out, [x], [out], lambda gradient: [tape.like(x, "gradient")])


def _input(tape: Tape, size: int = 100) -> Tensor:
    x = tape.empty("x", 1, size, "byte")
    x.requires_grad = True
    return x


def test_a_node_keeps_what_it_saved_until_its_backward() -> None:
    tape = Tape(records=True)
    x = _input(tape)
    out = _doubled(tape, x)
    tape.drop(out)
    assert tape.alive() == 200  # the variable is gone, the graph holds the tensor
    tape.backward(out, tape.like(out, "given"))
    assert tape.nodes == []
    assert tape.alive() == 200  # x and its gradient
    assert tape.peak() == 400  # x, out, the given gradient, the gradient of x


def test_without_grad_mode_nothing_is_kept() -> None:
    tape = Tape(records=False)
    out = _doubled(tape, _input(tape))
    tape.drop(out)
    assert tape.nodes == []
    assert tape.alive() == 100


def test_nothing_is_kept_for_inputs_that_learn_nothing() -> None:
    tape = Tape(records=True)
    x = tape.empty("x", 1, 100, "byte")
    tape.drop(_doubled(tape, x))
    assert tape.nodes == []
    assert tape.alive() == 100


def test_a_branch_that_no_gradient_reaches_only_lets_go() -> None:
    tape = Tape(records=True)
    x = _input(tape)
    used, unused = _doubled(tape, x), _doubled(tape, x)
    tape.drop(unused)
    tape.drop(used)
    assert tape.alive() == 300
    tape.backward(used, tape.like(used, "given"))
    assert tape.alive() == 200


def _thrice_used(tape: Tape) -> int:
    """Peak of a backward in which three gradients of 100 bytes meet at one tensor."""
    x = _input(tape)
    branches = [_doubled(tape, x) for _ in range(3)]
    out = tape.like(x, "sum")
    tape.node(out, branches, [], lambda gradient: [tape.view(gradient) for _ in branches])
    tape.drop(*branches, out)
    start = len(tape.steps)
    tape.backward(out, tape.like(out, "given"))
    return tape.peak(start)


def test_two_gradients_are_added_in_place_when_held_alone() -> None:
    # The given gradient is shared by the branches until the last has run. Beside it: the sum so far and the next one.
    assert _thrice_used(Tape(records=True)) == 300


def test_fake_tensors_add_into_a_new_one() -> None:
    assert _thrice_used(Tape(records=True, reuses_gradients=False)) == 400


def test_a_shared_gradient_is_not_added_into() -> None:
    """x + f(x): the gradient of the sum is also x's first gradient, and held by the other branch as well."""
    tape = Tape(records=True)
    x = _input(tape)
    branch = _doubled(tape, x)
    out = tape.like(x, "sum")
    tape.node(out, [x, branch], [], lambda gradient: [tape.view(gradient), tape.view(gradient)])
    start = len(tape.steps)
    given = tape.like(out, "given")
    kept = tape.hold(given)  # someone else looks at it
    tape.backward(out, given)
    assert tape.peak(start) == 300  # given, the branch's gradient, their sum in new memory
    tape.drop(kept)


@pytest.mark.parametrize(("accumulates", "left"), [(False, 40), (True, 0)])
def test_a_parameter_s_gradient_stays_or_joins_the_one_that_is_there(accumulates: bool, left: int) -> None:
    tape = Tape(records=True, accumulates=accumulates)
    weight = tape.parameter(2, 5, "fp32", trains=True)
    out = tape.empty("out", 1, 1, "fp32")
    tape.node(out, [weight], [], lambda gradient: [tape.like(weight, "weight gradient", kind="gradient")])
    start = len(tape.steps)
    tape.backward(out, tape.like(out, "given"))
    assert tape.alive("gradient", start) == left
    assert tape.peak(start) == 4 + 40


# --- operators --------------------------------------------------------------------------------------------------------

SEQUENCES, LENGTH, TOKENS = 2, 100, 200
_BASE = Seats(resolve(said({"model": "Qwen/Qwen2.5-7B", "gpu": "a100-sxm-80gb"})), POLICY).base


def _arch(kv_heads: int = 2) -> Any:
    """4 query heads of 16."""
    config = {"model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": kv_heads, "intermediate_size": 96, "vocab_size": 512}  # fmt: skip
    return build_arch("small", config, "here")


def _operators(*, records: bool = True, kv_heads: int = 2, **modes: Any) -> Model:
    sizes = {"arch": _arch(kv_heads), "sequences": SEQUENCES, "seq_len": LENGTH}
    plain = {"state": "forward", "tuning": "full", "weights_dtype": "bf16", "param_dtype": "bf16",
             "compute_dtype": "bf16", "autocast": False, "attention": "flash", "targets": frozenset[str]()}  # fmt: skip
    return Model(Tape(records=records), structs.replace(_BASE, **{**sizes, **plain, **modes}))


def _tokens(ops: Model, width: int, dtype: str = "bf16") -> Tensor:
    x = ops.tape.empty("x", TOKENS, width, dtype)
    x.requires_grad = True
    return x


def _run(ops: Model, out: Tensor, since: int) -> tuple[int, int]:
    """(bytes kept for backward beyond the inputs and the output, peak of the backward beyond inputs and output)."""
    tape = ops.tape
    kept = tape.alive(since=since) - tape.size(out)
    start = len(tape.steps)
    gradient = tape.like(out, "given")
    tape.backward(out, gradient)
    return kept, tape.peak(since, start) - tape.size(out)


def test_linear() -> None:
    """y = x W: x is saved for W's gradient, W is there anyway; backward makes both gradients."""
    ops = _operators()
    x = _tokens(ops, 64)
    since = len(ops.tape.steps)
    out = product(ops, "up_proj", x, 64, 96, bias=False)
    assert ops.tape.size(out) == 200 * 96 * 2
    kept, peak = _run(ops, out, since)
    assert kept == 0  # x is the caller's
    assert peak == 200 * 96 * 2 + 96 * 64 * 2 + 200 * 64 * 2  # given, W's, x's
    assert ops.tape.alive("gradient", since) == 96 * 64 * 2


def test_linear_with_bias() -> None:
    ops = _operators()
    x = _tokens(ops, 64)
    since = len(ops.tape.steps)
    out = product(ops, "q_proj", x, 64, 64, bias=True)
    _, peak = _run(ops, out, since)
    assert peak == 200 * 64 * 2 + 64 * 64 * 2 + 200 * 64 * 2 + 64 * 2  # and the bias's
    assert ops.tape.alive("gradient", since) == (64 * 64 + 64) * 2


def test_a_frozen_linear_saves_no_input() -> None:
    ops = _operators(tuning="lora")
    x = _tokens(ops, 64)
    since = len(ops.tape.steps)
    out = product(ops, "up_proj", x, 64, 96, bias=False)
    ops.tape.drop(x)
    assert ops.tape.alive() == ops.tape.size(out)
    _, peak = _run(ops, out, since)
    assert peak == 200 * 96 * 2 + 200 * 64 * 2  # given, x's
    assert ops.tape.alive("gradient", since) == 0


def test_linear_under_autocast() -> None:
    """fp32 weights and input are copied to bf16; the weight's copy is cached until the region ends, the input's is not.
    The gradient of the weight comes in bf16 and is cast to fp32."""
    ops = _operators(weights_dtype="fp32", param_dtype="fp32", autocast=True)
    tape = ops.tape
    x = _tokens(ops, 64, "fp32")
    since = len(tape.steps)
    out = product(ops, "up_proj", x, 64, 96, bias=True)
    assert tape.alive("cast", since) == (96 * 64 + 96) * 2
    tape.end_autocast()
    assert tape.alive("cast", since) == 96 * 64 * 2  # the graph needs the weight for x's gradient, not the bias
    kept, peak = _run(ops, out, since)
    assert kept == 200 * 64 * 2 + 96 * 64 * 2  # x and W in bf16
    # All that is saved; given; gradients of x and W in bf16; that of the bias. They are cast one after the other.
    assert peak == kept + 200 * 96 * 2 + 200 * 64 * 2 + 96 * 64 * 2 + 96 * 2
    assert tape.alive("gradient", since) >= (96 * 64 + 96) * 4


def test_linear_with_an_adapter() -> None:
    """PEFT: x to fp32, dropout with a mask, A, B, scaling; rank 8 here, everything in fp32 beside a bf16 base."""
    ops = _operators(tuning="lora", lora_rank=8, targets=frozenset({"up_proj"}), adapter_dropout=True,
                     adapter_dtype="fp32", adapter_param_dtype="fp32")  # fmt: skip
    tape = ops.tape
    x = _tokens(ops, 64)
    since = len(tape.steps)
    out = product(ops, "up_proj", x, 64, 96, bias=False)
    assert tape.size(out) == 200 * 96 * 2  # back in the dtype of the base
    kept = tape.alive(since=since) - tape.size(out)
    # dropout's mask, a byte a number; A's input, dropped out and fp32; B's input
    assert kept == 200 * 64 + 200 * 64 * 4 + 200 * 8 * 4
    # Forward, while B's output is scaled: the base's output, x in fp32, what is kept, B's output and the scaled one.
    # B's output goes, and the fp32 sum with the base's output needs as much again.
    assert tape.peak(since) == 200 * 96 * 2 + 200 * 64 * 4 + kept + 200 * 96 * 4 + 200 * 96 * 4
    _run(ops, out, since)
    assert tape.alive("gradient", since) == 8 * (64 + 96) * 4


def test_rms_norm() -> None:
    """bf16 in, bf16 out. Kept: the fp32 copy (x² and x·rsqrt need it), the rsqrt, the normalised rows (the weight)."""
    ops = _operators()
    x = _tokens(ops, 64)
    since = len(ops.tape.steps)
    out = ops.rms_norm(x)
    wide, numbers = 200 * 64 * 4, 200 * 4
    kept, peak = _run(ops, out, since)
    assert kept == wide + numbers + wide // 2
    # The most: the copy; the gradient that came through x·rsqrt; that of the mean, over all columns; and 2·x·g, made
    # in three steps. And the weight's gradient, which is there already.
    assert peak == 6 * wide + 64 * 2
    assert ops.tape.alive("gradient", since) == 64 * 2


def test_a_frozen_rms_norm_keeps_no_normalised_rows() -> None:
    ops = _operators(tuning="lora")
    since = len(ops.tape.steps) + 1
    out = ops.rms_norm(_tokens(ops, 64))
    assert ops.tape.alive(since=since) - ops.tape.size(out) == 200 * 64 * 4 + 200 * 4


def test_rms_norm_of_fp32_copies_nothing() -> None:
    ops = _operators(weights_dtype="fp32", param_dtype="fp32", compute_dtype="fp32")
    x = _tokens(ops, 64, "fp32")
    since = len(ops.tape.steps)
    out = ops.rms_norm(x)
    assert ops.tape.alive(since=since) - ops.tape.size(out) == 200 * 4 + 200 * 64 * 4  # rsqrt and normalised rows
    ops.tape.drop(x)
    assert ops.tape.alive() == 2 * 200 * 64 * 4 + ops.tape.size(out) + 200 * 4  # the graph holds x itself


def test_rope_keeps_nothing_but_its_tables() -> None:
    """q·cos + rotate_half(q)·sin is linear in q."""
    ops = _operators()
    ops.rope_tables()
    assert ops.tape.alive() == 2 * 100 * 16 * 2  # cosines and sines of 100 positions, 16 wide, bf16
    x = _tokens(ops, 64)
    since = len(ops.tape.steps)
    out = ops.rope(x)
    row = 200 * 64 * 2
    # forward: q·cos, rotate_half(q), ·sin, then the sum; rotate_half itself needs the negated half beside its result
    assert ops.tape.peak(since) == 3 * row
    kept, _ = _run(ops, out, since)
    assert kept == 0


@pytest.mark.parametrize("kv_heads", [2, 4], ids=["GQA", "MHA"])
def test_flash_attention(kv_heads: int) -> None:
    """Kept: query, key, value (the caller's here), output, log-sum-exp. Backward: dq, dk, dv; an fp32 row sum and an
    fp32 dq over rows padded to 128 and heads padded to 32; dk and dv of all heads when heads share keys."""
    ops = _operators(kv_heads=kv_heads)
    width = kv_heads * 16
    query, key, value = _tokens(ops, 64), _tokens(ops, width), _tokens(ops, width)
    since = len(ops.tape.steps)
    out = ops.attention(query, key, value, MHA if kv_heads == 4 else GQA)
    kept, peak = _run(ops, out, since)
    log_sum = 200 * 4 * 4
    assert kept == log_sum
    padded = 2 * 128  # rows of two sequences of 100
    row_sum, wide = padded * 4 * 4, padded * 4 * 32 * 4
    expanded = 2 * 200 * 64 * 2 if kv_heads < 4 else 0
    assert peak == log_sum + 200 * 64 * 2 + (200 * 64 * 2 + 2 * 200 * width * 2) + row_sum + wide + expanded


@pytest.mark.parametrize("kv_heads", [2, 4], ids=["GQA", "MHA"])
def test_efficient_attention(kv_heads: int) -> None:
    """Keys and values are expanded to all heads first, and those copies are what is saved; rows padded to 32."""
    ops = _operators(attention="efficient", kv_heads=kv_heads)
    width = kv_heads * 16
    query, key, value = _tokens(ops, 64), _tokens(ops, width), _tokens(ops, width)
    since = len(ops.tape.steps)
    out = ops.attention(query, key, value, MHA if kv_heads == 4 else GQA)
    kept, peak = _run(ops, out, since)
    log_sum = 2 * 128 * 4 * 4  # 100 padded to 128
    expanded = 2 * 200 * 64 * 2 if kv_heads < 4 else 0
    assert kept == log_sum + expanded
    assert peak == kept + 200 * 64 * 2 + 3 * 200 * 64 * 2 + log_sum  # given, three gradients, row sums


def test_attention_without_a_graph_leaves_only_its_output() -> None:
    ops = _operators(records=False, attention="efficient")
    since = len(ops.tape.steps) + 3
    out = ops.attention(_tokens(ops, 64), _tokens(ops, 32), _tokens(ops, 32), GQA)
    assert ops.tape.alive(since=since) == ops.tape.size(out) == 200 * 64 * 2
