"""The operators a block's program is written in, and the numbers it is written about.

A program mirrors the model's own `forward`: the same operators in the same order, and `drop` where a Python variable
dies. `memory/operators.py` gives each operator its memory; nothing here knows about bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from vramcast.errors import refuse
from vramcast.num import Size

Tensor: TypeAlias = Any
"""A tensor of whoever runs the program."""


class Operators(Protocol):
    """What a program may call."""

    def scope(self, module: str) -> None: ...
    def drop(self, *tensors: Tensor) -> None: ...
    def linear(self, name: str, x: Tensor, inputs: Size, outputs: Size, bias: bool) -> Tensor: ...
    def add(self, left: Tensor, right: Tensor) -> Tensor: ...
    def multiply(self, left: Tensor, right: Tensor) -> Tensor: ...
    def times(self, x: Tensor) -> Tensor: ...
    def silu(self, x: Tensor) -> Tensor: ...
    def rms_norm(self, x: Tensor) -> Tensor: ...
    def by_head(self, x: Tensor) -> Tensor: ...
    def split_heads(self, x: Tensor) -> Tensor: ...
    def merge_heads(self, x: Tensor, width: Size) -> Tensor: ...
    def rope(self, x: Tensor, tables: Tensor) -> Tensor: ...
    def attention(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]: ...
    def cache(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]: ...


class Dims(Struct, frozen=True, kw_only=True):
    """Sizes of a decoder, in Hugging Face's terms."""

    layers: Size
    hidden: Size
    heads: Size
    kv_heads: Size
    head_dim: Size
    ffn: Size
    vocab: Size

    @property
    def query(self) -> Size:
        """Width of all query heads."""
        return self.heads * self.head_dim

    @property
    def kv(self) -> Size:
        """Width of all key (or value) heads."""
        return self.kv_heads * self.head_dim

    def size(self, name: str) -> Size:
        """The size of a name; a number in digits is itself."""
        return int(name) if name.isdecimal() else getattr(self, name)


Program: TypeAlias = Callable[[Operators, Any, Tensor, Tensor], Tensor]
"""(operators, arch, hidden states, rope tables) → hidden states"""


def no_program(ops: Operators, arch: Any, hidden: Tensor, tables: Tensor) -> Tensor:
    """Stands where nobody wrote a type's forward: such a block is traced, or has measured rows.

    Raises:
        Refused: a formula asks for it all the same.
    """
    raise refuse(
        f"the activations of model type {arch.model_type} are not modelled yet",
        help="vramcast trace --model NAME --gpu CARD --save-arch FILE measures them",
    )
