"""PEFT adapters on any layout: what they add, what trains, and each of their tensors with its shape and dtype."""

from __future__ import annotations

from vramcast.models.adapters.adapter import Adapter, AdapterCount, Part, Tensor, dtype_of
from vramcast.models.adapters.count import count
from vramcast.models.adapters.read import lora_adapter, read_adapter

__all__ = ["Adapter", "AdapterCount", "Part", "Tensor", "count", "dtype_of", "lora_adapter", "read_adapter"]
