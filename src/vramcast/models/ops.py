"""The operators that the forward of a part is written in.

A forward mirrors the `forward` of the Hugging Face class: the same operators in the same order, and `drop` where a
Python variable dies. Weights are asked for by the name that the part declared them under, so their shapes are said
once. `memory/operators.py` gives each operator its memory; nothing here knows about bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from vramcast.num import Size

Tensor: TypeAlias = Any
"""A tensor of whoever runs the forward."""


class Heads(Struct, frozen=True):
    """The shape of an attention: query heads, key heads, and the widths of a key and of a value."""

    count: Size
    keys: Size
    width: Size
    values: Size
    window: Size = 0
    """tokens that the layer sees at most; 0: all"""

    @property
    def shared(self) -> bool:
        """Fewer key heads than query heads."""
        return int(self.keys) != int(self.count)


class Operators(Protocol):
    """What a forward may call."""

    def scope(self, module: str) -> None: ...
    def drop(self, *tensors: Tensor) -> None: ...
    def keep(self, *tensors: Tensor) -> None: ...
    def linear(self, name: str, x: Tensor) -> Tensor: ...
    def has(self, name: str) -> bool: ...
    def add(self, left: Tensor, right: Tensor) -> Tensor: ...
    def multiply(self, left: Tensor, right: Tensor) -> Tensor: ...
    def times(self, x: Tensor) -> Tensor: ...
    def activate(self, function: str, x: Tensor) -> Tensor: ...
    def norm(self, kind: str, name: str, x: Tensor) -> Tensor: ...
    def by_head(self, x: Tensor) -> Tensor: ...
    def split_heads(self, x: Tensor, width: Size) -> Tensor: ...
    def merge_heads(self, x: Tensor, width: Size) -> Tensor: ...
    def rope(self, x: Tensor) -> Tensor: ...
    def attention(self, query: Tensor, key: Tensor, value: Tensor, heads: Heads) -> Tensor: ...
    def cache(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]: ...


Forward: TypeAlias = Callable[[Operators, Tensor], Tensor]
"""(operators, what the part is given) → what it gives. Equal layers have equal forwards: a frozen struct, no closure.
The caller holds what is given and drops it."""
