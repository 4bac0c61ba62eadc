"""Weights, adapters and their gradients."""

from __future__ import annotations

from vramcast.memory.passes import block_pass, end_pass, first_block_pass
from vramcast.memory.seat import Seat
from vramcast.memory.tape import BYTES
from vramcast.memory.term import term
from vramcast.num import Size, let, total


def parameters(seat: Seat) -> Size:
    """Parameters of the base model."""
    return seat.once("parameters", lambda: _count(seat))


def _count(seat: Seat) -> Size:
    arch = seat.arch
    rows: dict[str, Size] = {}
    for row in arch.outer:
        if not (arch.tied and row.module == "lm_head"):
            rows[row.name] = let(row.name.removesuffix(".weight"), row.elements(arch.dims))
    block = let("block", total(let(row.name, row.elements(arch.dims)) for row in arch.block.rows))
    return let("params", total(rows.values()) + arch.dims.layers * block)


def adapter_parameters(seat: Seat) -> Size:
    """Parameters of the LoRA adapters: `rank * (inputs + outputs)` for every adapted linear layer of every block."""
    dims = seat.arch.dims
    adapted = [row for row in seat.arch.block.rows if row.linear in seat.targets]
    pairs = total(let(f"{row.linear} in + out", getattr(dims, row.rows) + getattr(dims, row.width)) for row in adapted)
    return let("adapter_params", dims.layers * seat.lora_rank * pairs)


def trainable_parameters(seat: Seat) -> Size:
    """Parameters that learn."""
    if not seat.trains:
        return 0
    return parameters(seat) if seat.tuning == "full" else adapter_parameters(seat)


def trainable_dtype(seat: Seat) -> str:
    return seat.weights_dtype if seat.tuning == "full" else seat.adapter_dtype


def weight_tensors(seat: Seat) -> list[tuple[Size, Size]]:
    """(how many, bytes of each) of the stored weights."""
    dims = seat.arch.dims
    return [(count, row.elements(dims) * BYTES[seat.weights_dtype]) for row, count in seat.arch.tensors()]


def trainable_tensors(seat: Seat, dtype: str) -> list[tuple[Size, Size]]:
    """(how many, bytes of each) of one copy of the trainable parameters."""
    dims = seat.arch.dims
    if seat.tuning == "full":
        return [(count, row.elements(dims) * BYTES[dtype]) for row, count in seat.arch.tensors()]
    return [
        (dims.layers, seat.lora_rank * getattr(dims, side) * BYTES[dtype])
        for row in seat.arch.block.rows
        if row.linear in seat.targets
        for side in (row.width, row.rows)
    ]


@term(
    "weights",
    lives=lambda seat: seat.state != "absent",
    source="shapes of the Hugging Face classes; checked against the published parameter totals",
    tensors=weight_tensors,
)
def weights(seat: Seat) -> Size:
    """The model's parameters as they are stored.

    Bytes = parameters × bytes of the stored dtype. TRL loads fp32 unless `dtype` is set: twice the bytes of the
    checkpoint. Always resident. When it hurts: load in bf16, shard over GPUs, or take a smaller model.
    """
    return parameters(seat) * BYTES[seat.weights_dtype]


@term(
    "adapters",
    lives=lambda seat: seat.tuning == "lora" and seat.state != "absent",
    source="peft/tuners/lora/layer.py: A is rank × inputs, B is outputs × rank",
    tensors=lambda seat: trainable_tensors(seat, seat.adapter_dtype),
)
def adapters(seat: Seat) -> Size:
    """LoRA's A and B matrices.

    PEFT keeps them in fp32 even when the base is bf16. Small: the rank times the widths of the adapted layers.
    """
    return adapter_parameters(seat) * BYTES[seat.adapter_dtype]


def _gradients_live(seat: Seat) -> bool:
    if not seat.trains:
        return False
    return seat.state in ("backward", "step") or (seat.accumulates and seat.state in ("forward", "loss"))


@term(
    "gradients",
    lives=_gradients_live,
    source="torch autograd: a gradient has its parameter's dtype; zero_grad sets it to None",
    tensors=lambda seat: trainable_tensors(seat, trainable_dtype(seat)),
    rounds=lambda seat: _complete(seat),
)
def gradients(seat: Seat) -> Size:
    """One gradient for every trainable parameter.

    They appear during backward, last layer first, and are freed after the step. With gradient accumulation they stay
    from one micro-batch to the next, so they also add to the forward, where activations peak.
    """
    if _complete(seat):
        return trainable_parameters(seat) * BYTES[trainable_dtype(seat)]
    blocks = {"loss": 0, "first block": 1}.get(seat.instant)
    if blocks is None:
        learned = (seat.arch.dims.layers - 1) * block_pass(seat).gradients + first_block_pass(seat).gradients
    else:
        learned = blocks * block_pass(seat).gradients
    return end_pass(seat).gradients + learned


def _complete(seat: Seat) -> bool:
    return seat.state == "step" or seat.accumulates or seat.instant == "embedding"
