"""Which tensors a method packs, and how a checkpoint's lists name them."""

from __future__ import annotations

import pytest

from vramcast.models.layout import Weight, axis
from vramcast.models.parts import tensor
from vramcast.models.quant.names import is_matrix, is_turned, listed, sides, spellings

EXPERTS = tensor("mlp.experts.gate_up_proj", axis(8, 1, "expert"), axis(64) + axis(64), 32)
LINEAR = tensor("self_attn.q_proj.weight", axis(64), 32)
Q = "model.layers.3.self_attn.q_proj.weight"
GATE_UP = "model.layers.3.mlp.experts.gate_up_proj"


@pytest.mark.parametrize(
    ("name", "module", "expected"),
    [
        (Q, "attention", True),
        ("lm_head.weight", "lm_head", True),
        ("model.embed_tokens.weight", "embedding", False),
        ("model.layers.0.input_layernorm.weight", "norms", False),
        ("model.layers.0.self_attn.q_norm.weight", "attention", False),
        ("model.layers.0.mlp.gate.weight", "router", False),
        ("model.visual.pos_embed.weight", "vision", False),
        ("model.embed_vision.embedding_projection.weight", "vision", True),
        ("model.layers.0.linear_attn.conv1d.weight", "mixer_ssm_conv", False),
        ("model.layers.0.per_layer_input_gate.weight", "router", True),
    ],
)
def test_matrices(name: str, module: str, expected: bool) -> None:
    assert is_matrix(name, LINEAR, module) == expected


def test_experts_are_matrices_and_their_biases_are_not() -> None:
    assert is_matrix(GATE_UP, EXPERTS, "routed_experts")
    bias = tensor("mlp.experts.gate_up_proj_bias", axis(8, 1, "expert"), axis(64) + axis(64))
    assert not is_matrix(f"{GATE_UP}_bias", bias, "routed_experts")
    assert not is_matrix("model.layers.0.mlp.gate_proj.bias", tensor("bias", axis(64)), "mlp")


def test_inputs_first() -> None:
    """GPT-OSS and Conv1D have inputs × outputs; what ranks cut tells."""
    outputs, inputs = sides(GATE_UP, EXPERTS)
    assert (outputs.size, inputs.size) == (128, 32)
    turned = Weight(EXPERTS.name, (EXPERTS.axes[0], EXPERTS.axes[2], EXPERTS.axes[1]))
    assert sides(GATE_UP, turned) == (outputs, inputs)
    assert (is_turned(GATE_UP, EXPERTS), is_turned(GATE_UP, turned)) == (False, True)
    down = tensor("mlp.c_proj.weight", axis(64), 32)  # GPT-2: 64 inputs that ranks cut, 32 outputs
    assert sides("h.0.mlp.c_proj.weight", down)[1].size == 64
    assert sides("norm.weight", tensor("norm.weight", 7))[1].size == 7


def test_spellings_of_experts_and_towers() -> None:
    assert "model.layers.3.mlp.experts.0.gate_proj" in spellings(GATE_UP)
    assert "model.layers.3.block_sparse_moe.experts.0.w1" in spellings(GATE_UP)
    assert "visual.blocks.0.attn.qkv" in spellings("model.visual.blocks.0.attn.qkv.weight")
    old = "language_model.model.layers.0.mlp.up_proj"
    assert old in spellings("model.language_model.layers.0.mlp.up_proj.weight")


@pytest.mark.parametrize(
    ("pattern", "matcher", "expected"),
    [
        # transformers 5 should_convert_module: from the start to the end of a word, or a suffix
        ("model.layers.3", "start", True),
        ("model.layers.*.self_attn", "start", True),
        ("self_attn.q_proj", "start", True),
        ("q_proj", "start", True),
        ("model.layers.3.self_attn.q_pro", "start", False),
        ("self_attn", "start", False),
        ("(", "start", False),
        # compressed-tensors match_name: the whole name or a pattern
        ("q_proj", "exact", False),
        ("model.layers.3.self_attn.q_proj", "exact", True),
        ("re:.*self_attn.*", "exact", True),
        ("re:(", "exact", False),
        # Model Optimizer: the whole name with `*`
        ("*self_attn*", "wildcard", True),
        ("model.layers.3", "wildcard", True),
        ("model.layers.1", "wildcard", False),
    ],
)
def test_lists(pattern: str, matcher: str, expected: bool) -> None:
    assert listed(Q, [pattern], matcher) == expected


def test_a_layer_is_not_taken_for_another_with_a_longer_number() -> None:
    assert not listed("model.layers.11.mlp.up_proj.weight", ["model.layers.1"], "start")


def test_a_list_for_each_expert_names_the_tensor_of_all() -> None:
    each = [f"model.layers.3.mlp.experts.{index}.gate_proj" for index in range(8)]
    assert listed(GATE_UP, each, "exact")
    assert listed(GATE_UP, ["re:.*experts.*"], "exact")
    assert not listed(GATE_UP, ["re:.*mlp.gate$", "re:.*shared_experts.*"], "exact")
