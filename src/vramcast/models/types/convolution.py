"""The short convolution in front of a state: every channel alone, over its last few tokens."""

from __future__ import annotations

from vramcast.models.ops import Operators, Tensor
from vramcast.num import Size


def short_convolution(ops: Operators, name: str, x: Tensor, taps: Size, activation: str) -> Tensor:
    """What a class runs without causal-conv1d: the convolution pads both sides of a sequence by `taps - 1`; what it
    gives past the last token is cut off by a view, and stays in memory.

    Source: transformers/models/mamba2/modeling_mamba2.py, causal_conv1d_fn.
    """
    given = ops.narrowed(x)
    longer = ops.convolve_steps(name, given, 1 - taps)
    mixed = ops.cut(longer, taps - 1)
    active = ops.activate(activation, mixed)
    out = ops.cast(active, x.dtype)
    ops.drop(given, longer, mixed, active)
    return out
