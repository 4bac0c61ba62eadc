"""Optimizer states and what a step needs beside them."""

from __future__ import annotations

from vramcast.catalog.dtypes import BYTES
from vramcast.catalog.optimizers import Optimizer, Temporary, find_optimizer
from vramcast.memory.seat import Seat
from vramcast.memory.term import term
from vramcast.memory.terms.parameters import sized
from vramcast.memory.units import held_trainable, trainable_dtype, trainable_shapes, trainable_tensors
from vramcast.num import Size, tabulate, total, worst

_BLOCK = 256
_LEAST = 4096
"""bitsandbytes: elements that share an absmax; smaller tensors keep fp32 states (min_8bit_size)"""


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
        return row.states * total(count * tabulate(_eight_bit, size) for count, size in trainable_tensors(seat))
    if row.form == "factored":
        return total(count * (rows + width) for count, rows, width in trainable_shapes(seat)) * BYTES[state_dtype(seat)]
    return row.states * held_trainable(seat) * BYTES[state_dtype(seat)]


def _eight_bit(elements: int) -> int:
    """Bytes of one 8-bit state of a tensor."""
    return elements * 4 if elements < _LEAST else elements + -(-elements // _BLOCK) * 4


def _dense_tensors(seat: Seat) -> list[tuple[Size, Size]]:
    return sized(seat, trainable_tensors(seat), state_dtype(seat), optimizer_of(seat).states)


def _state_lives(seat: Seat) -> bool:
    if not seat.trains or not seat.resident("optimizer") or optimizer_of(seat).home == "managed":
        return False
    return seat.when == "steady" or seat.state == "step"


@term(
    "optimizer.state",
    lives=_state_lives,
    source="the optimizer's row in the catalogue",
    tensors=_dense_tensors,
    rounds=lambda seat: _state_lives(seat) and optimizer_of(seat).form == "dense",
)
def optimizer_state(seat: Seat) -> Size:
    """What the optimizer remembers of every trainable parameter: for AdamW two moments.

    They do not exist before the first step and never leave after it: a job can pass its first forward and run out in
    its second. AdamW's are in the parameter's dtype, so fp32 weights mean 8 bytes a parameter and bf16 weights 4; 8-bit
    AdamW needs 2, SGD none, Adafactor a row and a column. Paged optimizers keep them in managed memory, which the
    driver moves to the host: they do not count here. FSDP divides them by the ranks.
    """
    return state_bytes(seat)


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
        return temporary.copies * held_trainable(seat) * BYTES[dtype]
    return temporary.copies * worst(*(elements for _, elements in trainable_tensors(seat))) * BYTES[dtype]
