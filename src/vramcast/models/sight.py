"""The forwards of towers: patches to hidden states, layers that see whole images or windows, and what merges patches
into tokens of the language model."""

from __future__ import annotations

from msgspec import Struct

from vramcast.models.ops import Heads, Operators, Tensor
from vramcast.models.parts import Plain
from vramcast.num import Size


class Patches(Struct, frozen=True):
    """Pixels to hidden states: a convolution, a class token, positions, a norm, each where the tower has it."""

    convolution: str
    positions: str = ""
    """the table of positions that is added"""
    gathers: Size = 0
    """rows of the table that make one position (Qwen3-VL resamples it); 0: one, and the table is added as it is"""
    extra: bool = False
    """a class token before the patches"""
    norm: str = ""
    sorts: bool = False
    """patches are put into the order of windows"""

    @property
    def changes(self) -> bool:
        """Something is made of what the convolution gives before it is a layer's input."""
        return bool(self.positions or self.norm or self.extra or self.sorts)

    def __call__(self, ops: Operators, pixels: Tensor) -> Tensor:
        out = ops.convolve(self.convolution, pixels)
        ops.scope("embeddings")
        if self.extra:
            out = _then(ops, out, ops.prepend(out))
        if self.positions:
            out = _then(ops, out, ops.add_positions(self.positions, out, self.gathers))
        if self.norm:
            out = _then(ops, out, ops.norm("layer", self.norm, out))
        return _then(ops, out, ops.permute(out)) if self.sorts else out


class Packed(Struct, frozen=True):
    """Attention of Qwen's towers: one projection, positions in fp32, each image or window by itself."""

    heads: Heads

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        ops.scope("attn")
        fused = ops.linear("attn.qkv", x)
        query, key, value = ops.unbind(fused, 3)
        ops.drop(fused)
        wide = ops.widen(query), ops.widen(key)
        turned = ops.rope(wide[0]), ops.rope(wide[1])
        low = [_then(ops, one, ops.cast_as(one, value)) for one in turned]
        ops.drop(*wide, query, key)
        mixed = ops.attention_of_parts(low[0], low[1], value, self.heads)
        out = ops.linear("attn.proj", mixed)
        ops.drop(mixed, *low, value)
        return out


class Merger(Struct, frozen=True):
    """Qwen's projector: a norm, neighbouring patches side by side, two layers with GELU between them."""

    norm: str
    name: str
    layers: str
    patches: Size
    sorts: bool = False
    first: bool = True
    """the norm comes before patches are put together"""

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        if self.first:
            normed = ops.norm(self.norm, self.name, x)
            wide = ops.side_by_side(normed, self.patches)
        else:
            normed = ops.side_by_side(x, self.patches)
            wide = ops.norm(self.norm, self.name, normed)
        ops.drop(normed)
        out = Plain(self.layers, "gelu")(ops, wide)
        ops.drop(wide)
        return _then(ops, out, ops.permute(out)) if self.sorts else out


class Projector(Struct, frozen=True):
    """LLaVA's: two layers with an activation, for patches without the class token."""

    layers: str
    activation: str

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        patches = ops.without_class(x)
        out = Plain(self.layers, self.activation)(ops, patches)
        ops.drop(patches)
        return out


class Pool(Struct, frozen=True):
    """Gemma 3's: patches averaged, normed, multiplied with a matrix."""

    patches: Size

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        rows = ops.permute(x)
        pooled = ops.pool(rows, self.patches)
        ops.drop(rows)
        normed = ops.norm("rms_shifted", "mm_soft_emb_norm", pooled)
        out = ops.matmul("mm_input_projection_weight", normed)
        ops.drop(pooled, normed)
        return out


class Normed(Struct, frozen=True):
    """A norm behind the layers."""

    name: str

    def __call__(self, ops: Operators, x: Tensor) -> Tensor:
        return ops.norm("layer", self.name, x)


def _then(ops: Operators, old: Tensor, new: Tensor) -> Tensor:
    """A variable that is given a new value."""
    ops.drop(old)
    return new

