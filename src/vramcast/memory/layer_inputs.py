"""Embeddings for every layer (Gemma 3n, Gemma 4): made before the blocks, one slice of them read by each."""

from __future__ import annotations

from typing import NamedTuple

from vramcast.memory.passes import new_tape
from vramcast.memory.seat import Seat
from vramcast.memory.tape import Tensor
from vramcast.num import Size, total, worst


class LayerInputs(NamedTuple):
    """Bytes of what is made for all layers together."""

    whole: Size
    """the tensor that the layers read"""
    kept: Size
    """what its making keeps for backward"""
    backward: Size
    """most alive while its gradient goes on to the tables, without gradients of parameters"""


def layer_inputs(seat: Seat) -> LayerInputs:
    """Of a model that has them."""
    return seat.once("layer inputs", lambda: _run(seat))


def _run(seat: Seat) -> LayerInputs:
    """Source: transformers/models/gemma4/modeling_gemma4.py, get_per_layer_inputs and project_per_layer_inputs."""
    ends = seat.arch.ends
    ops = new_tape(seat, records=seat.records)
    tape = ops.tape
    block = next(block for block in seat.arch.layout.blocks if block.name == "embedding")
    ops.weights = {weight.name: weight for weight in block.weights}
    given = ops.hidden("embedded tokens", embedded=True)
    given.requires_grad = seat.records and (ops.base_trains or seat.inputs_require_grad)
    since = len(tape.steps)
    rows, width = ops.weights["embed_tokens_per_layer.weight"].shape
    table = tape.parameter(rows, width, ops.weights_dtype, ops.base_trains)
    looked = tape.empty("embeddings of all layers", seat.tokens, width, ops.weights_dtype)
    tape.node(looked, [table], [], lambda _: [tape.like(table, "gradient", kind="gradient")])
    scaled = ops.times(looked)
    ops.drop(looked)
    projected = ops.linear("per_layer_model_projection", given)
    multiple = ops.times(projected)
    ops.drop(projected)
    by_layer = ops.split_heads(multiple, ends.layer_inputs)
    normed = ops.norm("rms_shifted", "per_layer_projection_norm", by_layer)
    merged = ops.merge_heads(normed, width)
    ops.drop(multiple, by_layer, normed)
    both = ops.add(merged, scaled)
    out = ops.times(both)
    ops.drop(both, merged, scaled)
    whole = tape.size(out)
    kept = total(one.size for one in tape.living(since) if one.kind == "activation") - whole
    if not seat.records or not out.requires_grad:
        return LayerInputs(whole, kept, 0)
    start = len(tape.steps)
    gradient: Tensor = tape.like(out, "gradient of all layers")
    tape.drop(out)
    tape.backward(out, gradient)
    return LayerInputs(whole, kept, worst(0, tape.peak(since, start) - tape.alive("gradient", since)))
