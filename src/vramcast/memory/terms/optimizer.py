"""Optimizer states and what a step needs beside them."""

from __future__ import annotations

from collections.abc import Callable

from vramcast.catalog.dtypes import BYTES
from vramcast.catalog.optimizers import Optimizer, Temporary, find_optimizer
from vramcast.memory.seat import Seat
from vramcast.memory.term import term
from vramcast.memory.terms.parameters import sized
from vramcast.memory.units import (
    embedding_elements,
    held_learned,
    trainable_dtype,
    trainable_shapes,
    trainable_tensors,
)
from vramcast.num import Size, tabulate, total, worst

_BLOCK = 256
_LEAST = 4096
"""bitsandbytes: elements that share an absmax; smaller tensors keep fp32 states (min_8bit_size)"""
_PAGED = 100_000
"""bitsandbytes: elements from which a paged optimizer takes managed memory (optim/optimizer.py, get_state_buffer)"""


def optimizer_of(seat: Seat) -> Optimizer:
    """The catalogue's row of the seat's optimizer."""
    return find_optimizer(seat.optimizer)


def state_dtype(seat: Seat) -> str:
    """Dtype of the states: as set, or the optimizer's own, or the parameter's."""
    row = optimizer_of(seat)
    return seat.state_dtype or (trainable_dtype(seat) if row.dtype == "parameter" else row.dtype)


def state_bytes(seat: Seat) -> Size:
    """Bytes of all states of the rank's trainable parameters, wherever they live."""
    row = optimizer_of(seat)
    if row.form == "blocks":
        return row.states * _blocks(seat, _eight_bit, _fp32)
    if row.form == "factored":
        return total(count * (rows + width) for count, rows, width in trainable_shapes(seat)) * BYTES[state_dtype(seat)]
    return row.states * held_learned(seat) * BYTES[state_dtype(seat)]


def _eight_bit(elements: int) -> int:
    """Bytes of one 8-bit state of a tensor."""
    return elements * 4 if elements < _LEAST else elements + -(-elements // _BLOCK) * 4


def _fp32(elements: int) -> int:
    return elements * 4


def _blocks(seat: Seat, packed: Callable[[int], int], wide: Callable[[int], int]) -> Size:
    """Bytes of one 8-bit state of all tensors. A Trainer keeps the embedding's in fp32.

    Source: transformers/trainer.py, create_optimizer: register_module_override of every nn.Embedding.
    """
    found = total(count * tabulate(packed, size) for count, size in trainable_tensors(seat))
    if not seat.recipe.embedding_states_fp32 or seat.tuning != "full" or seat.shard == "fsdp1":
        return found
    elements = embedding_elements(seat)
    return found + tabulate(wide, elements) - tabulate(packed, elements)


def _unpaged_8bit(elements: int) -> int:
    """Bytes of an 8-bit paged state that stay on the card: those of a small tensor, and every absmax."""
    return _eight_bit(elements) if elements < _PAGED else -(-elements // _BLOCK) * 4


def _unpaged(elements: int) -> int:
    """Bytes of an fp32 paged state that stay on the card."""
    return elements * 4 if elements < _PAGED else 0


def resident_bytes(seat: Seat) -> Size:
    """Bytes of the states on the card: all, or what a paged optimizer leaves there."""
    row = optimizer_of(seat)
    if row.home != "managed":
        return state_bytes(seat)
    if row.form == "blocks":
        return row.states * _blocks(seat, _unpaged_8bit, _unpaged)
    return row.states * total(count * tabulate(_unpaged, size) for count, size in trainable_tensors(seat))


def _dense_tensors(seat: Seat) -> list[tuple[Size, Size]]:
    return sized(seat, trainable_tensors(seat), state_dtype(seat), optimizer_of(seat).states)


def _state_lives(seat: Seat) -> bool:
    if not seat.trains or not seat.resident("optimizer"):
        return False
    return seat.when == "steady" or seat.state == "step"


@term(
    "optimizer.state",
    lives=_state_lives,
    source="the optimizer's row in the catalogue",
    tensors=_dense_tensors,
    rounds=lambda seat: _state_lives(seat) and (optimizer_of(seat).form, optimizer_of(seat).home) == ("dense", "gpu"),
)
def optimizer_state(seat: Seat) -> Size:
    """What the optimizer remembers of every trainable parameter: for AdamW two moments.

    They do not exist before the first step and never leave after it: a job can pass its first forward and run out in
    its second. AdamW's are in the parameter's dtype, so fp32 weights mean 8 bytes a parameter and bf16 weights 4; 8-bit
    AdamW needs 2, SGD none, Adafactor a row and a column. A Trainer's 8-bit optimizers keep fp32 states for the
    embedding. Paged optimizers keep them in managed memory, which the driver moves to the host: only those of small
    tensors (adapters, norms) and the scales of 8-bit ones count here. FSDP divides them by the ranks.
    """
    return resident_bytes(seat)


def _temporaries(seat: Seat) -> list[Temporary]:
    low = BYTES[trainable_dtype(seat)] < BYTES["fp32"]
    return [
        temporary
        for temporary in optimizer_of(seat).temporaries
        if temporary.impl in ("any", seat.optimizer_impl) and (low or not temporary.only_below_fp32)
    ]


@term(
    "optimizer.step",
    lives=lambda seat: seat.trains and seat.state == "step" and bool(_temporaries(seat)),
    source="the optimizer's row in the catalogue; sizes as in a fake-tensor trace of torch 2.13 and transformers 5.24",
)
def optimizer_step(seat: Seat) -> Size:
    """What the step allocates on the way.

    AdamW takes the square root of the variance: `foreach` (plain torch.optim.AdamW) of all parameters at once, a full
    extra copy; `loop` twice for one parameter at a time; `fused` needs none. Adafactor works on fp32 copies of the
    largest tensor, usually the embedding. It sets the peak of big models with short sequences.
    """
    return total(_temporary(seat, temporary) for temporary in _temporaries(seat))


def _temporary(seat: Seat, temporary: Temporary) -> Size:
    dtype = state_dtype(seat) if temporary.dtype == "parameter" else temporary.dtype
    if temporary.of == "all":
        return temporary.copies * held_learned(seat) * BYTES[dtype]
    return temporary.copies * worst(*(elements for _, elements in trainable_tensors(seat))) * BYTES[dtype]
