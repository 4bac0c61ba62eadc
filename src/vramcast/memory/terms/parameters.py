"""Weights, adapters and their gradients."""

from __future__ import annotations

from vramcast.catalog.dtypes import BYTES
from vramcast.memory.packing import path_of
from vramcast.memory.passes import end_pass, stack
from vramcast.memory.seat import Seat
from vramcast.memory.term import Tensors, term
from vramcast.memory.units import (
    held_adapters,
    held_flat,
    held_learned,
    held_trainable,
    held_trainable_blocks,
    learned_parameters,
    learns_whole,
    stored_tensors,
    stored_weights,
    trainable_dtype,
    trainable_tensors,
)
from vramcast.num import Size, worst


def sized(seat: Seat, tensors: list[tuple[Size, Size]], dtype: str, copies: int = 1) -> list[tuple[Size, Size]]:
    """(how many, bytes of each)."""
    return [(copies * count, elements * BYTES[dtype]) for count, elements in tensors]


def of_trainable(copies: int, dtype: str = "") -> Tensors:
    """The tensors of a copy of the trainable parameters."""
    return lambda seat: sized(seat, trainable_tensors(seat), dtype or trainable_dtype(seat), copies)


@term(
    "weights",
    lives=lambda seat: seat.engine is None and seat.resident("weights"),
    source="shapes of the Hugging Face classes; checked against the published parameter totals",
    tensors=stored_tensors,
    fresh=lambda seat: seat.shard != "fsdp2" and (seat.packing is None or not seat.packing.while_loading),
)
def weights(seat: Seat) -> Size:
    """The model's parameters as they are stored.

    Bytes = parameters × bytes of the stored dtype, divided by the ranks under FSDP. TRL loads fp32 unless `dtype` is
    set: twice the bytes of the checkpoint; FSDP's mixed precision keeps fp32 shards in any case. Resident all the time
    unless offloaded. A quantised model packs the linear layers of its blocks (4 or 8 bits a weight, and scales);
    embedding, norms and head stay as they were, or become fp32 where PEFT prepares the model for training. When it
    hurts: load in bf16 or 4 bits, shard over GPUs, or take a smaller model.
    """
    return stored_weights(seat)


@term(
    "adapters",
    lives=lambda seat: seat.tuning == "lora" and seat.resident("weights"),
    source="peft/tuners/lora/layer.py: A is rank × inputs, B is outputs × rank",
    tensors=lambda seat: sized(seat, held_adapters(seat), seat.adapter_dtype),
)
def adapters(seat: Seat) -> Size:
    """LoRA's A and B matrices.

    PEFT keeps them in fp32 even when the base is bf16. Small: the rank times the widths of the adapted layers.
    """
    return held_trainable(seat) * BYTES[seat.adapter_dtype]


@term(
    "buffers",
    lives=lambda seat: seat.engine is None and seat.resident("weights") and bool(seat.arch.ends.buffers),
    source="transformers: nn.Buffer of GPTNeoSelfAttention, GPTBigCodeModel and GPTJModel",
)
def buffers(seat: Seat) -> Size:
    """Masks and tables of positions that older classes keep beside their parameters.

    GPT-Neo has a mask of every pair of positions in each layer: 4 MiB for 2,048 positions. Every rank has them whole.
    """
    return seat.arch.ends.buffers


def _buffered(seat: Seat) -> bool:
    return seat.packing is not None and seat.packing.buffers and seat.resident("weights")


@term(
    "quant.buffers",
    lives=_buffered,
    source="auto-gptq 0.7 modeling/_utils.py autogptq_post_init: temp_dq and, without act-order, one row of temp_state",
)
def quant_buffers(seat: Seat) -> Size:
    """Room for the largest linear layer unpacked to 16 bits, kept from loading on.

    ExLlama's kernels for 4-bit GPTQ multiply more than a few rows with the unpacked weight. Transformers 4 loads them;
    Marlin's, which newer versions and engines choose, need none.
    """
    formats = seat.packing.formats if seat.packing else {}
    packed = [weight for block, weight, _ in seat.arch.tensors() if path_of(block.prefix, weight.name) in formats]
    largest = worst(*(weight.elements for weight in packed))
    widest = worst(*(side for weight in packed for side in weight.shape))
    return (largest + widest) * BYTES["fp16"]


@term(
    "weights.untied",
    lives=lambda seat: seat.phase == "load" and seat.arch.tied and bool(seat.packing and seat.packing.saved_untied),
    source="autoawq 0.2 models/base.py save_quantized writes the state dict with the head; transformers ties after it",
)
def weights_untied(seat: Seat) -> Size:
    """A second embedding while an AWQ checkpoint of a model with a tied head is loaded: the file has both."""
    return seat.arch.vocab * seat.arch.hidden * BYTES[seat.weights_dtype]


def _gradients_live(seat: Seat) -> bool:
    return seat.records and (seat.state in ("backward", "step") or _kept(seat))


def _kept(seat: Seat) -> bool:
    """They are there when a micro-batch begins. Under FSDP without reductions, whole gradients are instead."""
    return seat.accumulates and (seat.syncs or not seat.sharded)


def _complete(seat: Seat) -> bool:
    return seat.state == "step" or _kept(seat) or (seat.instant == "embedding" and not seat.sharded)


@term(
    "gradients",
    lives=_gradients_live,
    source="torch autograd: a gradient has its parameter's dtype; zero_grad sets it to None",
    tensors=of_trainable(1),
    rounds=_complete,
)
def gradients(seat: Seat) -> Size:
    """One gradient for every trainable parameter.

    They appear during backward, last layer first, and are freed after the step. With gradient accumulation they stay
    from one micro-batch to the next, so they also add to the forward, where activations peak. Under FSDP each rank
    keeps its share, in the dtype of its shard; what a unit has before it is reduced is `gradients.unsharded`.
    """
    if seat.sharded:
        return _reduced(seat)
    if _complete(seat):
        return learned_parameters(seat) * BYTES[trainable_dtype(seat)]
    layers = stack(seat)
    done = {"loss": 0, "first block": layers.last.gradients}.get(seat.instant)
    learned = layers.all(lambda block: block.gradients) if done is None else done
    return end_pass(seat).gradients + learned


def _reduced(seat: Seat) -> Size:
    """Shares of the units whose backward is over: the root's come last."""
    if _complete(seat):
        share = held_flat(seat) if learns_whole(seat) else held_learned(seat)
        return share * BYTES[trainable_dtype(seat)]
    if seat.keeps_gradients or seat.whole_unit:
        return 0
    if seat.instant not in ("last block", "embedding"):
        return 0
    blocks = held_trainable_blocks(seat, without_first=seat.instant == "last block")
    return blocks * BYTES[trainable_dtype(seat)]
