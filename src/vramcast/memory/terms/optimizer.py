"""Optimizer states and what a step needs beside them."""

from __future__ import annotations

from vramcast.memory.seat import Seat
from vramcast.memory.tape import BYTES
from vramcast.memory.term import term
from vramcast.memory.terms.parameters import sized
from vramcast.memory.units import held_trainable, trainable_dtype, trainable_tensors
from vramcast.num import Size, worst

ADAMW_STATES = 2
"""momentum and variance"""


def state_dtype(seat: Seat) -> str:
    return seat.state_dtype or trainable_dtype(seat)


def _state_tensors(seat: Seat) -> list[tuple[Size, Size]]:
    return sized(seat, trainable_tensors(seat), state_dtype(seat), ADAMW_STATES)


def _state_lives(seat: Seat) -> bool:
    return seat.trains and seat.resident("optimizer") and (seat.when == "steady" or seat.state == "step")


@term(
    "optimizer.state",
    lives=_state_lives,
    source="torch/optim/adamw.py: exp_avg and exp_avg_sq are zeros_like of the parameter",
    tensors=_state_tensors,
)
def optimizer_state(seat: Seat) -> Size:
    """AdamW's two moments of every trainable parameter.

    They do not exist before the first step and never leave after it: a job can pass its first forward and run out in
    its second. In the parameter's dtype, so fp32 weights mean 8 bytes a parameter and bf16 weights 4.
    """
    return ADAMW_STATES * held_trainable(seat) * BYTES[state_dtype(seat)]


@term(
    "optimizer.step",
    lives=lambda seat: seat.trains and seat.state == "step" and seat.optimizer_impl != "fused",
    source="torch/optim/adamw.py: _foreach_sqrt makes a list of new tensors; the loop makes two per parameter",
)
def optimizer_step(seat: Seat) -> Size:
    """What the step allocates on the way: the square root of the variance.

    `foreach` (plain torch.optim.AdamW) makes it for all parameters at once, a full extra copy; `loop` twice for one
    parameter at a time; `fused` needs none. It sets the peak of big models with short sequences.
    """
    if seat.optimizer_impl == "foreach":
        return held_trainable(seat) * BYTES[state_dtype(seat)]
    return 2 * worst(*(elements for _, elements in trainable_tensors(seat))) * BYTES[state_dtype(seat)]
