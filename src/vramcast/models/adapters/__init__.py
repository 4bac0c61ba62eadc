"""PEFT adapters on any layout: what trains, by module. LoRA is counted here, all other methods by PEFT itself."""

from __future__ import annotations

from vramcast.models.adapters.adapter import Adapter, AdapterCount
from vramcast.models.adapters.count import count, readable
from vramcast.models.adapters.read import as_said, by_peft, lora_adapter, read_adapter

__all__ = ["Adapter", "AdapterCount", "as_said", "by_peft", "count", "lora_adapter", "read_adapter", "readable"]
