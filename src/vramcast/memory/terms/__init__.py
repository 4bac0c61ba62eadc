"""The terms, by what they hold. Importing this package declares them all."""

from vramcast.memory import allocator
from vramcast.memory.terms import (
    activations,
    cache,
    engine,
    layer_inputs,
    optimizer,
    parallel,
    parameters,
    runtime,
    sight,
)

__all__ = [
    "activations", "allocator", "cache", "engine", "layer_inputs", "optimizer", "parallel", "parameters", "runtime",
    "sight",
]  # fmt: skip
