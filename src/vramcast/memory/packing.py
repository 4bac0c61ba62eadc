"""How linear layers of a model's blocks are stored when they are not plain tensors."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from vramcast.models.quant.format import Format

Product: TypeAlias = Literal["unpack", "int8", "fp8", "long", "kernel"]
"""How a matrix product reads a packed weight: after unpacking all of it (bitsandbytes), in 8-bit integers or floats
with a quantised input, after unpacking it for many rows (AWQ), or by a kernel that unpacks on its way."""


def path_of(prefix: str, name: str) -> str:
    """A tensor of equal blocks: the blocks' prefix and the tensor's name below one of them."""
    return f"{prefix}.{name}" if prefix else name


class Packing(Struct, frozen=True, kw_only=True):
    """A mode of a seat: which linear layers of a block are packed, and how their products run."""

    formats: dict[str, Format]
    """tensor by its path (`path_of`) -> its format; one that is missing is plain"""
    product: Product
    compute_dtype: str
    """dtype that the products convert their input to"""
    origin_dtype: str
    """dtype the weights were packed from: unpacking gives it back"""
    nested: bool = False
    """the scales are packed too"""
    buffers: bool = False
    """the kernels keep an unpacked copy of the largest layer"""
    saved_untied: bool = False
    """the checkpoint has a tied head as a tensor of its own"""

    @property
    def while_loading(self) -> bool:
        """The weights are packed from plain ones as they are loaded (bitsandbytes), not read from packed files."""
        return self.product in ("unpack", "int8")
