"""Operators of older classes, one at a time, with the arithmetic: 2 sequences of 100 tokens, 4 heads of 16, bf16."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs
from tests.memory.layers import MHA, product
from tests.memory.test_tape import _operators, _run, _tokens

from vramcast.catalog.models import model_config
from vramcast.models.arch import build_arch, has_forward
from vramcast.models.ops import Heads

SIDE = 200 * 64 * 2  # of queries, keys or values in bf16
PAIRS = 200 * 4 * 100  # scores of every head


def _scores(kind: Any) -> Heads:
    return structs.replace(MHA, scores=kind)


def _ends(ops: Any, **fields: Any) -> None:
    """The same operators of a model whose ends differ."""
    arch = ops.seat.arch
    layout = structs.replace(arch.layout, ends=structs.replace(arch.ends, **fields))
    ops.seat = structs.replace(ops.seat, arch=structs.replace(arch, layout=layout, memo={}))


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        # copies by head: q and k in fp32, v; the softmax in fp32 and in bf16
        ("wide", 2 * 2 * SIDE + SIDE + PAIRS * (4 + 2)),
        ("baddbmm", 3 * SIDE + PAIRS * (4 + 2)),
        ("biased", 3 * SIDE + PAIRS * (4 + 2)),
    ],
)
def test_attention_of_scores_keeps(kind: Any, kept: int) -> None:
    ops = _operators(attention="eager")
    query, key, value = (_tokens(ops, 64) for _ in range(3))
    since = len(ops.tape.steps)
    out = ops.attention(query, key, value, _scores(kind))
    ops.release()
    ops.drop(*ops.returned)
    found, _ = _run(ops, out, since)
    assert found == kept


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        # beside q and k in fp32: two tensors of scores in fp32, one made of the other
        ("wide", 2 * 2 * SIDE + PAIRS * (4 + 4)),
        # beside q, k and v by head: scores and masked scores, their fp32 copy and the softmax
        ("baddbmm", 3 * SIDE + PAIRS * (2 + 2 + 4 + 4)),
        # masked scores in fp32, their softmax, and its copy in 16 bits
        ("biased", PAIRS * (4 + 4 + 2)),
    ],
)
def test_attention_of_scores_without_a_graph(kind: Any, most: int) -> None:
    ops = _operators(attention="eager", records=False)
    query, key, value = (_tokens(ops, 64) for _ in range(3))
    since = len(ops.tape.steps)
    out = ops.attention(query, key, value, _scores(kind))
    assert ops.tape.peak(since) == most
    ops.release()
    assert ops.tape.alive(since=since) == ops.tape.size(out) + PAIRS * 2  # the weights, which the block returns


def test_a_function_of_its_own_keeps_its_input_only() -> None:
    """Bloom's GELU: five steps at once in backward, beside what it is given."""
    ops = _operators()
    x = _tokens(ops, 96)
    since = len(ops.tape.steps)
    kept, peak = _run(ops, ops.activate("bloom_gelu", x), since)
    one = 200 * 96 * 2
    assert kept == 0
    assert peak == one + 5 * one


def test_bounds_in_place_keep_a_copy() -> None:
    ops = _operators()
    x = _tokens(ops, 64)
    ops.tape.hold(x)  # the caller's
    since = len(ops.tape.steps)
    out = ops.bound(x)
    assert out.storage is x.storage
    assert ops.tape.alive(since=since) == SIDE
    start = len(ops.tape.steps)
    ops.tape.backward(out, ops.tape.like(out, "given"))
    assert ops.tape.peak(since, start) == SIDE + SIDE + SIDE + 2 * SIDE // 2  # copy, given, result, two masks


def test_a_bias_that_is_added_apart_widens_under_autocast() -> None:
    """FalconLinear: a bf16 product and an fp32 bias make fp32; the weight's copy is of a view, and not cached."""
    ops = _operators(weights_dtype="fp32", param_dtype="fp32", autocast=True)
    _ends(ops, bias_apart=True)
    x = _tokens(ops, 64, "fp32")
    since = len(ops.tape.steps)
    out = product(ops, "dense", x, 64, 96, bias=True)
    assert ops.tape.size(out) == 200 * 96 * 4
    assert not ops.tape.cached_casts
    ops.tape.backward(out, ops.tape.like(out, "given"))
    assert ops.tape.alive("gradient", since) == (96 * 64 + 96) * 4


def test_sums_into_one_side_make_nothing() -> None:
    ops = _operators()
    left, right = _tokens(ops, 64), _tokens(ops, 64)
    since = len(ops.tape.steps)
    out = ops.add_into(left, right)
    assert ops.tape.alive(since=since) == 0
    assert out.storage is left.storage


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("EleutherAI/gpt-neo-1.3B", 24 * 2048 * 2048),  # a mask of all pairs in every layer: 96 MiB
        ("bigscience/bloom-560m", 0),
    ],
)
def test_buffers(name: str, expected: int) -> None:
    row = model_config(name)
    assert int(build_arch(name, row.config, name).ends.buffers) == expected


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tiiuae/falcon-7b", {}),  # one key head for all queries
        ("EleutherAI/gpt-neo-1.3B", {"attention_dropout": 0.1}),
        ("bigscience/bloom-560m", {"apply_residual_connection_post_layernorm": True}),
        ("mosaicml/mpt-7b", {"attn_config": {"alibi": True, "clip_qkv": 6}}),
        ("facebook/opt-125m", {"do_layer_norm_before": False}),
        ("stabilityai/stablelm-2-1_6b", {"qk_layernorm": True}),
    ],
)
def test_what_a_class_does_otherwise_is_not_answered(name: str, change: dict[str, Any]) -> None:
    """A part whose tensors nobody uses must not be passed over."""
    row = model_config(name)
    assert not has_forward(build_arch(name, row.config | change, name))
