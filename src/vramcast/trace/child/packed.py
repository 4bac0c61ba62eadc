"""bitsandbytes' layers on fake tensors: real modules, their products in the tensors that the CUDA backend allocates."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from vramcast.trace.question import Packed


def pack(model: Any, packed: Packed, loaded: torch.dtype, mode: FakeTensorMode) -> None:
    """Replace the linear layers of the blocks by packed ones, in place."""
    raise NotImplementedError


def prepare(model: Any, packed: Packed, dtypes: dict[str, torch.dtype]) -> None:
    """What follows: frozen, and the rest in its dtype (peft prepare_model_for_kbit_training)."""
    raise NotImplementedError
