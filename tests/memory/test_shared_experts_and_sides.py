"""Operators of Llama 4 and of Gemma 4 by hand: experts that see every token, slices of what all layers are given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.random_jobs import said

from vramcast.algorithms.table import POLICY
from vramcast.estimate.resolve import resolve
from vramcast.estimate.seats import Seats
from vramcast.memory.head import Model
from vramcast.memory.passes import new_tape, stack
from vramcast.memory.seat import Seat

TEXT = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16,
    "intermediate_size": 96, "vocab_size": 512, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
LLAMA4 = {
    "model_type": "llama4",
    "text_config": {
        **TEXT, "model_type": "llama4_text", "intermediate_size_mlp": 80, "num_local_experts": 4,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 2, "attention_chunk_size": 8192, "no_rope_layers": [1, 1, 1, 0],
    },
    "vision_config": {
        "hidden_size": 32, "image_size": 28, "patch_size": 14, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 128, "pixel_shuffle_ratio": 0.5, "projector_input_dim": 16, "projector_output_dim": 16,
        "vision_output_dim": 16, "num_channels": 3,
    },
}  # fmt: skip
GEMMA4 = {
    "model_type": "gemma4",
    "text_config": {
        **TEXT, "model_type": "gemma4_text", "global_head_dim": 32, "sliding_window": 4096, "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2, "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 512, "attention_k_eq_v": False, "enable_moe_block": False,
        "use_double_wide_mlp": False,
    },
}  # fmt: skip
TOKENS = 2 * 32


def seat(folder: Path, config: dict[str, Any], **more: Any) -> Seat:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    job = {
        "model": str(path), "gpu": "a100-sxm-80gb", "micro_batch": 2, "seq_len": 32,
        "framework": "transformers==5.24.0",
        "weights_dtype": "bf16", "compute_dtype": "bf16", "autocast": False, "recompute": "none", **more,
    }  # fmt: skip
    return structs.replace(Seats(resolve(said(job)), POLICY).base, state="backward")


def operators(folder: Path, config: dict[str, Any]) -> Model:
    made = new_tape(seat(folder, config), records=True)
    made.weights = {weight.name: weight for block in made.seat.arch.kinds for weight in block.weights}
    return made


def test_every_expert_is_given_every_token(tmp_path: Path) -> None:
    ops = operators(tmp_path, LLAMA4)
    hidden = ops.hidden("x")
    rows = ops.repeat(hidden, 4)
    out = ops.batched("feed_forward.experts.gate_up_proj", rows)
    assert (rows.rows, rows.width, out.rows, out.width) == (4 * TOKENS, 64, 4 * TOKENS, 2 * 96)
    ops.drop(rows)
    assert ops.tape.size(rows) == 4 * TOKENS * 64 * 2
    assert rows.storage is not None
    assert rows.storage.holds == 1, "kept for the gradient of the matrices"
    ops.tape.backward(out, ops.tape.like(out, "gradient"))
    assert ops.tape.alive("gradient") == 2 * 4 * 64 * 2 * 96


def test_the_sum_of_experts_is_added_in_place_and_its_gradient_copied(tmp_path: Path) -> None:
    ops = operators(tmp_path, LLAMA4)
    hidden = ops.hidden("x")
    routed = ops.repeat(hidden, 4)
    beside = ops.times(hidden)
    size = ops.tape.size(beside)
    total = ops.add_groups(beside, routed)
    assert total.storage is beside.storage
    start = len(ops.tape.steps)
    ops.tape.backward(total, ops.tape.like(total, "gradient"))
    born = [storage.size for sign, storage in ops.tape.steps[start:] if sign > 0]
    assert 4 * size in born


def test_a_slice_of_what_all_layers_are_given_has_a_gradient_of_the_whole(tmp_path: Path) -> None:
    ops = operators(tmp_path, GEMMA4)
    hidden = ops.hidden("x")
    own = ops.layer_input(hidden, 8, 4)
    product = ops.multiply(own, ops.linear("per_layer_input_gate", hidden))
    start = len(ops.tape.steps)
    ops.tape.backward(product, ops.tape.like(product, "gradient"))
    born = [storage.size for sign, storage in ops.tape.steps[start:] if sign > 0]
    assert born.count(TOKENS * 8 * 4 * 2) == 2, "the slice's, beside those of other layers"


def test_shared_keys_and_the_graph_behind_them_stay(tmp_path: Path) -> None:
    """Layers 0 and 1 are the last with keys of their own. Beside the keys and values of the first forward (4 bytes an
    element of each) their recomputation leaves keys, values, and what the nodes that made them keep."""
    layers = stack(seat(tmp_path, GEMMA4, recompute="full"))
    by_layer = [layers.kinds[kind] for kind in layers.order]
    assert [int(block.left) > 0 for block in by_layer] == [True, True, False, False]
    keys = TOKENS * 16
    norm = TOKENS * (4 * 64 + 4 * 64 + 2 * 64 + 4)
    """the input in fp32, normalised, and cast; its root"""
    sides = keys * (2 + 4 + 4) + keys * (2 + 4) + 2 * TOKENS * 4
    """keys, their norm's copy and normalised rows; values, and a norm without a weight; two roots"""
    assert by_layer[0].left == 2 * 2 * keys + norm + sides + 64 * 4 + 16 * 4  # and weights in fp32


@pytest.mark.parametrize(("heads", "stays"), [(1, True), (2, False)])
def test_a_single_key_head_is_not_copied_for_all(tmp_path: Path, heads: int, stays: bool) -> None:
    """What attention keeps of keys: themselves, or a copy as wide as the queries."""
    config = {"model_type": "llama", **TEXT, "num_key_value_heads": heads}
    kept = stack(seat(tmp_path, config, attention="efficient")).last.tensors
    assert (TOKENS * 16 * heads * 2 in kept) is stays
