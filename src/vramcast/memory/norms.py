"""Norms that are one kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramcast.memory.tape import Tensor

if TYPE_CHECKING:
    from vramcast.memory.operators import Eager


def layer_norm(ops: Eager, name: str, x: Tensor) -> Tensor:
    """`nn.LayerNorm`: the input is kept, and mean and deviation of each row in fp32; under autocast all of it is fp32.

    Source: aten/src/ATen/native/cuda/layer_norm_kernel.cu, native_layer_norm and its backward: the gradients of scale
    and shift are made beside that of the input.
    """
    tape, dtype = ops.tape, ops.weights_dtype
    given = ops.cast(x, "fp32", "norm input") if ops.seat.autocast else tape.hold(x)
    scale = tape.parameter(1, x.width, dtype, ops.base_trains)
    shift = tape.parameter(1, x.width, dtype, ops.base_trains) if ops.has(f"{name}.bias") else None
    out = tape.like(given, "norm output")
    mean, deviation = (tape.empty(part, x.rows, 1, "fp32") for part in ("mean", "deviation"))

    def backward(gradient: Tensor) -> list[Tensor | None]:
        found: list[Tensor | None] = [tape.like(given, "norm gradient") if given.requires_grad else None]
        for weight in (scale, shift):
            if weight is not None:
                learns = weight.requires_grad
                found.append(tape.like(weight, "gradient", kind="gradient") if learns else None)
        return found

    inputs = [given, scale, *([shift] if shift is not None else [])]
    tape.node(out, inputs, [given, mean, deviation], backward)
    ops.drop(mean, deviation, given)
    return out
