"""An architecture: sizes, parameter rows, and the program of its block."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from vramcast.models.measured import Measurement
from vramcast.models.program import Dims, Program
from vramcast.num import Size, shard


class Row(Struct, frozen=True):
    """One parameter tensor of a block: `rows * width` elements, named by sizes of `Dims` (digits without a name,
    "" for 1).

    `cut` names the axis that divides it over tensor-parallel ranks: "tp" (heads, ffn), "kv" (key heads, replicated when
    there are more ranks than heads), "vocab" (padded, then cut), or "" (whole on every rank).
    """

    name: str
    rows: str
    width: str
    module: str
    cut: str = ""

    def elements(self, dims: Dims, tp: int = 1) -> Size:
        """Elements one of `tp` ranks holds; a rank's share is rounded up."""
        rows, width = self.shape(dims, tp)
        return rows * width

    def shape(self, dims: Dims, tp: int = 1) -> tuple[Size, Size]:
        """(rows, width) that one of `tp` ranks holds."""
        rows = _size(dims, self.rows)
        width = _size(dims, self.width)
        if self.cut == "kv":
            rows = shard(dims.kv_heads, tp) * dims.head_dim
        elif self.cut and self.cut_width:
            width = shard(width, tp)
        elif self.cut:
            rows = shard(rows, tp)
        return rows, width

    @property
    def cut_width(self) -> bool:
        """Row-parallel layers (o_proj, down_proj) are cut along their input."""
        return self.name in ("self_attn.o_proj.weight", "mlp.down_proj.weight")

    @property
    def linear(self) -> str:
        """The module's last name (`q_proj`) if this is the weight of a linear layer in a block, else ""."""
        parts = self.name.split(".")
        return parts[-2] if parts[-1] == "weight" and self.module in ("attention", "mlp") else ""


class Block(Struct, frozen=True):
    """A kind of layer: how its parameters look and what its forward does."""

    name: str
    rows: tuple[Row, ...]
    program: Program
    measured: Measurement | None = None
    """what stands where a program would: the rows of a trace"""


class Arch(Struct, frozen=True, kw_only=True):
    """A causal language model of `dims.layers` equal blocks between an embedding and a head."""

    name: str
    model_type: str
    dims: Dims
    block: Block
    outer: tuple[Row, ...]
    """embedding, final norm, head"""
    tied: bool
    """the head is the embedding: one tensor, one gradient"""
    dtype: str
    """dtype of the checkpoint"""
    max_len: int
    qkv_bias: bool
    output_bias: bool
    qk_norm: bool
    mlp_bias: bool
    multiplies: bool = False
    """constants multiply the embedding, what attention and MLP add to the residual, and the logits"""
    shares_keys: bool
    """fewer key heads than query heads"""
    small_heads: bool
    """head_dim of at most 128: the flash kernel pads it to 32, above to 64"""
    window: Size = 0
    """tokens that sliding layers see; 0: none slides"""
    sliding_layers: Size = 0
    default_targets: tuple[str, ...]
    """linear layers PEFT adapts when none are named"""

    @property
    def linears(self) -> tuple[str, ...]:
        """Names of the linear layers of a block: what `all-linear` means."""
        return tuple(row.linear for row in self.block.rows if row.linear)

    def tensors(self) -> Iterable[tuple[Row, Size]]:
        """(row, how many of it), over the whole model; a tied head is not a tensor of its own."""
        for row in self.outer:
            if not (self.tied and row.module == "lm_head"):
                yield row, 1
        for row in self.block.rows:
            yield row, self.dims.layers


def _size(dims: Dims, name: str) -> Size:
    return dims.size(name) if name else 1
