"""A language model: embedding, layers of two parts and their norms, final norm, head. Its table row says which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from msgspec import Struct, structs

from vramcast.models.fields import Fields
from vramcast.models.layout import Blocks, Ends, Weight, axis
from vramcast.models.ops import Forward, Operators, Tensor
from vramcast.models.parts import (
    Flag,
    Part,
    Weights,
    head_width,
    hidden,
    linear,
    none,
    norm,
    norms,
    single,
    stack,
    tensor,
    windows,
)
from vramcast.num import Size

ATTENTION_KINDS = ("full_attention", "sliding_attention", "chunked_attention", "hybrid", "indexed_attention")
"""What `layer_types` may say where it only changes what a layer attends to."""
PRE_NORM = "input_layernorm post_attention_layernorm"
Order: TypeAlias = Literal["pre", "post", "sandwich", "parallel"]
"""Where norms stand: before attention and MLP, behind them, on both sides, or before both at once."""


class Layer(Struct, frozen=True):
    """The forward of a decoder layer: attention and MLP, their norms, and what they add to the hidden states."""

    attention: Forward | None
    mlp: Forward | None
    order: Order
    norms: tuple[str, ...]
    norm: str
    multiplies: bool = False
    """a constant multiplies what is added (Granite)"""

    def __call__(self, ops: Operators, hidden: Tensor) -> Tensor:
        if self.order == "parallel":
            return self._parallel(ops, hidden)
        before, behind = self._places()
        middle = self._branch(ops, hidden, before[0], self.attention, behind[0])
        out = self._branch(ops, middle, before[1], self.mlp, behind[1])
        if middle is not hidden:
            ops.drop(middle)
        return out

    def _places(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of the norms (before attention, before MLP), (behind attention, behind MLP)."""
        if self.order == "sandwich":
            first, after, second, last = self.norms
            return (first, second), (after, last)
        names = (*self.norms, "", "")[:2]
        return (names, ("", "")) if self.order == "pre" else (("", ""), names)

    def _branch(self, ops: Operators, x: Tensor, before: str, part: Forward | None, behind: str) -> Tensor:
        """`x + norm(part(norm(x)))`; x itself where the layer has no such part."""
        if part is None:
            return x
        given = ops.norm(self.norm, before, x) if before else x
        added = part(ops, given)
        if given is not x:
            ops.drop(given)
        if behind:
            plain, added = added, ops.norm(self.norm, behind, added)
            ops.drop(plain)
        return self._residual(ops, x, added)

    def _residual(self, ops: Operators, x: Tensor, added: Tensor) -> Tensor:
        ops.scope("residual")
        if self.multiplies:
            plain, added = added, ops.times(added)
            out = ops.add(x, added)
            ops.drop(added, plain)
            return out
        out = ops.add(x, added)
        ops.drop(added)
        return out

    def _parallel(self, ops: Operators, x: Tensor) -> Tensor:
        """Attention and MLP are given the same, or each its own norm; both are added at once."""
        first = ops.norm(self.norm, self.norms[0], x)
        second = ops.norm(self.norm, self.norms[1], x) if len(self.norms) > 1 else first
        assert self.attention is not None
        assert self.mlp is not None
        attended, mixed = self.attention(ops, first), self.mlp(ops, second)
        ops.drop(first, *([second] if second is not first else []))
        ops.scope("residual")
        both = ops.add(attended, mixed)
        out = ops.add(both, x)
        ops.drop(attended, mixed, both)
        return out


class Decoder(Struct, frozen=True):
    """A row of the table of model types."""

    attention: Weights
    mlp: Weights = none
    norms: str = PRE_NORM
    norm_bias: Flag = False
    layers: str = "layers"
    embed: str = "embed_tokens"
    final: str = "norm"
    """name of the last norm; "" if it has no parameters"""
    prefix: str = "model"
    head: str = "lm_head"
    head_bias: Flag = False
    head_module: str = ""
    """the class of the head, where its name does not say it"""
    tied: Flag = "tie_word_embeddings"
    positions: str = ""
    """the learned position embedding: name, field of its length, rows added to it"""
    order: Order = "pre"
    norm: str = "rms"
    """how the norms compute"""
    rotary: Callable[[Fields], Size] | None = head_width
    """width of the tables of rotary positions"""
    multiplies: Flag = False
    """constants multiply the embedding, what layers add, and the logits"""
    scales: bool = False
    """a constant multiplies the embedding alone"""
    wide_tables: bool = False
    """those tables stay fp32"""
    eager: bool = False
    """the class has eager attention only"""
    masks: int = 1
    """kinds of layers that are given masks of their own"""
    first: Weights = none
    """what stands between embedding and layers"""
    more: Weights = none
    """further parts of a layer"""

    def blocks(self, c: Fields, prefix: str = "", head: str = "", tied: bool | None = None) -> list[Blocks]:
        """All blocks; `prefix`, `head` and `tied` where the model is the text part of a larger one."""
        lead = prefix or self.prefix
        layers = self.layer_count(c)
        below = f"{lead}.{self.layers}" if lead else self.layers
        parts = (self.attention, self.mlp, norms(self.norms, self.norm_bias), self.more)
        decoder = stack(c, "decoder", below, layers, *parts, forward=self.layer)
        if "layer_types" not in c.read:  # no part of this type depends on it
            c.words("layer_types", layers, ATTENTION_KINDS)
        return [
            *single("embedding", lead, self.embedding(c)),
            *decoder,
            *single("final norm", lead, self.last(c)),
            *single("head", "", self.head_weights(c, head or self.head, c.flag(self.tied) if tied is None else tied)),
        ]

    def layer(self, c: Fields, layer: int) -> Forward | None:
        """The forward of a layer; None while one of its parts has none."""
        if not (isinstance(self.attention, Part) and isinstance(self.mlp, Part)) or self.more is not none:
            return None
        attention, mlp = self.attention.forward(c, layer), self.mlp.forward(c, layer)
        names = tuple(self.norms.split())
        return Layer(attention, mlp, self.order, names, self.norm, c.flag(self.multiplies))

    def ends(self, c: Fields) -> Ends:
        """What is before and behind the layers."""
        return Ends(
            norm=self.norm,
            final=self.final,
            multiplies=c.flag(self.multiplies),
            scales=self.scales,
            rotary=self.rotary(c) if self.rotary else 0,
            windows=tuple(dict.fromkeys(windows(c))),
            wide_tables=self.wide_tables,
            eager=self.eager,
            masks=self.masks,
        )

    def layer_count(self, c: Fields) -> int:
        return c.count("num_hidden_layers")

    def embedding(self, c: Fields) -> list[Weight]:
        found = [tensor(f"{self.embed}.weight", axis(c.count("vocab_size"), kind="vocab"), hidden(c))]
        if self.positions:
            name, field, added = self.positions.split()
            found.append(tensor(f"{name}.weight", c.count(field) + int(added), hidden(c)))
        return [*found, *self.first(c, 0)]

    def last(self, c: Fields) -> list[Weight]:
        return norm(self.final, hidden(c), c.flag(self.norm_bias)) if self.final else []

    def head_weights(self, c: Fields, name: str, tied: bool) -> list[Weight]:
        """A tied head has its own bias, if any, and the embedding's weight."""
        found = linear(name, hidden(c), axis(c.count("vocab_size"), kind="vocab"), c.flag(self.head_bias))
        return [structs.replace(weight, module=self.head_module) for weight in (found[1:] if tied else found)]
