"""PyTorch's CUDA caching allocator, replayed: sizes in, addresses and counters out. It knows nothing of torch.

Source: c10/cuda/CUDACachingAllocator.cpp (main after torch 2.10, early 2026; constants and settings as in torch 2.13).
"""

from vramcast.memory.alloc_conf import AllocatorSettings, parse
from vramcast.trace.allocator.blocks import Block
from vramcast.trace.allocator.device import Allocator, NoRoom

__all__ = ["Allocator", "AllocatorSettings", "Block", "NoRoom", "parse"]
