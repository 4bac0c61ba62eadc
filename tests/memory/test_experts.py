"""Experts, views and choices, one operator at a time: their bytes by hand."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs
from tests.random_jobs import said

from vramcast.algorithms.table import POLICY
from vramcast.estimate.resolve import resolve
from vramcast.estimate.seats import Seats
from vramcast.memory.head import Model
from vramcast.memory.tape import Tape, Tensor
from vramcast.models.arch import build_arch
from vramcast.models.ops import Heads, Index

TOKENS, HIDDEN, EXPERTS, CHOSEN, MIDDLE = 2 * 8, 64, 4, 2, 24
ROWS = TOKENS * CHOSEN
CONFIG = {"model_type": "qwen3_moe", "hidden_size": HIDDEN, "num_hidden_layers": 1, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "vocab_size": 512,
          "num_experts": EXPERTS, "num_experts_per_tok": CHOSEN, "moe_intermediate_size": MIDDLE}  # fmt: skip
_BASE = Seats(resolve(said({"model": "Qwen/Qwen2.5-7B", "gpu": "a100-sxm-80gb"})), POLICY).base


def _operators(*, records: bool = True, **modes: Any) -> Model:
    arch = build_arch("small", CONFIG, "here")
    plain = {"arch": arch, "sequences": 2, "seq_len": 8, "state": "forward", "tuning": "full", "weights_dtype": "bf16",
             "param_dtype": "bf16", "compute_dtype": "bf16", "autocast": False, "attention": "flash",
             "targets": frozenset[str]()}  # fmt: skip
    ops = Model(Tape(records=records), structs.replace(_BASE, **{**plain, **modes}))
    ops.weights = {weight.name: weight for weight in arch.kinds[0].weights}
    return ops


def _tokens(ops: Model, width: int = HIDDEN, dtype: str = "bf16", rows: int = TOKENS) -> Tensor:
    x = ops.tape.empty("x", rows, width, dtype)
    x.requires_grad = ops.tape.records
    return x


def _experts(ops: Model) -> tuple[int, Tensor]:
    """(bytes before, what the experts of the small model make of its tokens)."""
    x, weights = _tokens(ops), _tokens(ops, CHOSEN)
    places = ops.tape.empty("places", TOKENS, CHOSEN, "int64")
    before = int(ops.tape.alive())
    return before, ops.experts("mlp.experts", x, places, weights, "silu")


def test_grouped_products_keep_rows_of_all_experts() -> None:
    ops = _operators()
    before, out = _experts(ops)
    ops.drop(out)
    orders = 3 * 8 * ROWS  # the order of rows, their tokens, the order back: int64
    ends = 4 * EXPERTS
    rows = 2 * ROWS * HIDDEN + 2 * ROWS  # what experts are given, and the weights of the rows
    middle = 2 * ROWS * (2 * MIDDLE + MIDDLE + MIDDLE)  # gate and up, the activation, their product
    down = 2 * ROWS * HIDDEN
    assert ops.tape.alive() - before == orders + ends + rows + middle + down


def test_the_gradient_of_experts_is_as_large_as_they_are() -> None:
    ops = _operators()
    _, out = _experts(ops)
    ops.tape.backward(out, ops.tape.like(out, "given"))
    assert ops.tape.alive("gradient") == 2 * EXPERTS * 3 * MIDDLE * HIDDEN


def test_behind_the_prompt_every_row_has_its_own_matrices() -> None:
    ops = _operators(records=False, state="generate", decodes=True, cached_len=8)
    since = len(ops.tape.steps)
    _experts(ops)
    both = 2 * ROWS * 3 * MIDDLE * HIDDEN  # gate and up are still there when down is copied
    assert both < ops.tape.peak(since) < 1.4 * both


def test_adapters_on_experts_keep_a_copy_of_all_of_them() -> None:
    frozen, adapted = (
        _operators(tuning="lora", lora_rank=4, parameters=parameters)
        for parameters in ((), (("gate_up_proj", 2), ("down_proj", 1)))
    )
    kept: list[int] = []
    for ops in (frozen, adapted):
        before, out = _experts(ops)
        ops.drop(out)
        kept.append(int(ops.tape.alive()) - before)
    copies = 2 * EXPERTS * 3 * MIDDLE * HIDDEN
    factors = 2 * EXPERTS * (2 * 4 * (2 * MIDDLE + HIDDEN) + 4 * (MIDDLE + HIDDEN))  # bf16 copies of fp32 matrices
    inputs = 2 * ROWS * (HIDDEN + MIDDLE)  # of both products: their weights have a gradient now
    assert kept[1] - kept[0] == copies + factors + inputs


def test_splits_put_gradients_together_and_slices_add_them() -> None:
    ops = _operators()
    tape, x = ops.tape, _tokens(ops)
    first, second = ops.split(x, 48, 16)
    assert (first.width, second.width, tape.alive()) == (48, 16, 2 * TOKENS * HIDDEN)  # no memory of their own
    joined = ops.join(first, second)
    ops.drop(first, second)
    tape.backward(joined, tape.like(joined, "given"))
    assert tape.peak() == 4 * 2 * TOKENS * HIDDEN  # x, the joined one, its gradient, and that of x
    sliced = _operators()
    views = sliced.slices(_tokens(sliced), 48, 16)
    out = sliced.join(*views)
    sliced.drop(*views)
    sliced.tape.backward(out, sliced.tape.like(out, "given"))
    assert sliced.tape.peak() == 5 * 2 * TOKENS * HIDDEN  # each slice has a gradient of the whole


@pytest.mark.parametrize(("dtype", "low"), [("bf16", 2), ("fp32", 4)])
def test_a_router_keeps_places_and_not_the_logits(dtype: str, low: int) -> None:
    ops = _operators()
    logits = _tokens(ops, EXPERTS, dtype)
    values, places = ops.largest(logits, CHOSEN)
    ops.drop(values, places, logits)
    assert ops.tape.alive() == 8 * TOKENS * CHOSEN
    assert ops.tape.peak() == low * TOKENS * EXPERTS + (low + 8) * TOKENS * CHOSEN


def test_sinks_are_one_more_score() -> None:
    ops = _operators(attention="eager")
    query = _tokens(ops)
    scores = ops.tape.empty("scores", TOKENS * 4, 8, "bf16")
    scores.requires_grad = True
    heads = Heads(4, 4, 16, 16, sinks=True, shifts="freed")
    before = int(ops.tape.alive()) - int(ops.tape.size(scores))
    weights, held = ops._shifted_weights(scores, heads)  # pyright: ignore[reportPrivateUsage]
    assert (weights.width, held) == (8, [])
    ops.drop(weights)
    assert ops.tape.alive() - before == (2 * 9 + 8) * TOKENS * 4  # softmax of 9 scores, places of the largest
    assert query.storage is not None


def test_a_scorer_copies_all_keys_for_every_token() -> None:
    ops = _operators(records=False)
    ops.weights = {weight.name: weight for weight in _indexed()}
    ops.rope_tables()
    x, queries = _tokens(ops), _tokens(ops, 32)
    chosen = ops.chosen_keys(x, queries, Index(4, 32, 16, 4, "halves"))
    assert ops.tape.size(chosen) == 4 * TOKENS * 4  # int32
    sizes = {storage.name.rpartition(".")[2]: storage.size for sign, storage in ops.tape.steps if sign > 0}
    assert sizes["keys of every token"] == 4 * TOKENS * 8 * 32  # fp32, for each token all 8 keys of its sequence
    assert sizes["products"] == 4 * TOKENS * 8 * 4  # of 4 heads


def _indexed() -> list[Any]:
    from vramcast.models.parts import linear, norm

    at = "self_attn.indexer"
    return [*linear(f"{at}.wq_b", 32, 4 * 32), *linear(f"{at}.wk", HIDDEN, 32), *norm(f"{at}.k_norm", 32, True),
            *linear(f"{at}.weights_proj", HIDDEN, 4)]  # fmt: skip
