"""Fake tensors: shapes, dtypes and lifetimes without data."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode


def fake_mode() -> FakeTensorMode:
    """Tensors of the CPU that hold no memory. Real tensors may meet them: constants of a framework's own."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def to_fake(model: torch.nn.Module, mode: FakeTensorMode) -> None:
    """Turn a model built on the meta device into fakes, in place. Tied tensors stay tied."""
    made: dict[int, Any] = {}

    def convert(tensor: torch.Tensor) -> Any:
        if tensor.device.type != "meta":
            return tensor
        if id(tensor) not in made:
            with mode:
                fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
            parameter = isinstance(tensor, torch.nn.Parameter)
            made[id(tensor)] = torch.nn.Parameter(fake, tensor.requires_grad) if parameter else fake
        return made[id(tensor)]

    for module in model.modules():
        for slots in (module._parameters, module._buffers):
            for name, tensor in slots.items():
                if tensor is not None:
                    slots[name] = convert(tensor)
