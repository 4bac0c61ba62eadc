"""A language model: embedding, layers of two parts and their norms, final norm, head. Its table row says which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from msgspec import Struct, structs

from vramcast.models.cache.windows import window_of
from vramcast.models.fields import Fields
from vramcast.models.layout import Blocks, Ends, Logits, Weight, axis
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
)
from vramcast.num import Size

ATTENTION_KINDS = ("full_attention", "sliding_attention", "chunked_attention", "hybrid", "indexed_attention")
"""What `layer_types` may say where it only changes what a layer attends to."""
PRE_NORM = "input_layernorm post_attention_layernorm"
Order: TypeAlias = Literal["pre", "post", "sandwich", "parallel", "branches", "joined"]
"""Where norms stand: before attention and MLP, behind them, on both sides, or before both at once: what
both give is added to the hidden states one by one (parallel), or to each other first, in a new tensor (branches) or in
the MLP's (joined)."""


class Layer(Struct, frozen=True):
    """The forward of a decoder layer: attention and MLP, their norms, and what they add to the hidden states."""

    attention: Forward | None
    mlp: Forward | None
    order: Order
    norms: tuple[str, ...]
    norm: str
    multiplies: bool = False
    """a constant multiplies what is added (Granite)"""
    drops: bool = False
    """what is added goes through a dropout while the model trains"""
    holds: Literal["", "output", "both"] = ""
    """what attention gave, or what it was given too, stays a variable until the layer is through"""

    def __call__(self, ops: Operators, hidden: Tensor) -> Tensor:
        if self.order in ("parallel", "branches"):
            return self._parallel(ops, hidden)
        if self.order == "joined":
            return self._joined(ops, hidden)
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
        holds = self.holds if part is self.attention else ""
        late = self.holds == "output" and given is not x  # its name stands for the sum next
        if holds == "both":
            ops.keep(given)
        elif not late and given is not x and not getattr(part, "takes", False):
            ops.drop(given)
        if behind:
            plain, added = added, ops.norm(self.norm, behind, added)
            ops.drop(plain)
        out = self._residual(ops, x, added, holds=bool(holds))
        if late:
            ops.drop(given)
        return out

    def _residual(self, ops: Operators, x: Tensor, added: Tensor, *, holds: bool) -> Tensor:
        ops.scope("residual")
        if holds:
            added = self._dropped(ops, added)
            ops.keep(added)
            return ops.add(x, added)
        if self.multiplies:
            plain, added = added, ops.times(added)
            out = ops.add(x, added)
            ops.drop(added, plain)
            return out
        added = self._dropped(ops, added)
        out = ops.add(x, added)
        ops.drop(added)
        return out

    def _parallel(self, ops: Operators, x: Tensor) -> Tensor:
        """Attention and MLP are given the same, or each its own norm; both are added."""
        assert self.attention is not None
        assert self.mlp is not None
        first = ops.norm(self.norm, self.norms[0], x)
        attended = self._dropped(ops, self.attention(ops, first))
        second = first
        if len(self.norms) > 1:
            ops.drop(first)
            second = ops.norm(self.norm, self.norms[1], x)
        mixed = self._dropped(ops, self.mlp(ops, second))
        if second is not first:
            ops.drop(second)
        ops.scope("residual")
        last, other = (x, mixed) if self.order == "branches" else (mixed, x)
        both = ops.add(attended, other)
        out = ops.add(both, last)
        ops.drop(both, attended, mixed)
        if second is first:
            ops.drop(first)
        return out

    def _joined(self, ops: Operators, x: Tensor) -> Tensor:
        """All norms first; what attention gave is added into what the MLP gave: FalconDecoderLayer."""
        assert self.attention is not None
        assert self.mlp is not None
        normed = [ops.norm(self.norm, name, x) for name in self.norms]
        attended = self.attention(ops, normed[0])
        mixed = self.mlp(ops, normed[-1])
        ops.scope("residual")
        both = self._dropped(ops, ops.add_into(mixed, attended))
        out = ops.add(both, x)
        ops.drop(both, attended, *normed)
        return out

    def _dropped(self, ops: Operators, x: Tensor) -> Tensor:
        """x behind a dropout, and x itself gone."""
        if not self.drops:
            return x
        out = ops.dropout(x)
        ops.drop(x)
        return out


def _plain_logits(_: Fields) -> Logits:
    return ""


def scaled_logits(_: Fields) -> Logits:
    """A constant multiplies them."""
    return "scaled"


def wide_logits(_: Fields) -> Logits:
    """They are made fp32 by the model itself, whose product is gone then."""
    return "wide"


def capped_logits(c: Fields) -> Logits:
    """A soft cap, unless the config clears it."""
    return "capped" if c.get("final_logit_softcapping") is not None else ""


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
    order: Order | Callable[[Fields], Order] = "pre"
    dropout: str = ""
    """the field of the dropout of what layers add"""
    holds: Literal["", "output", "both"] = ""
    """what a layer holds of its attention until it is through"""
    embeds: str = ""
    """the field of the dropout of the embedding"""
    own_positions: bool = False
    """each sequence has learned positions of its own"""
    run: str | Callable[[Fields], str] = ""
    """the norms in the order of the forward, where that is another, or where they have no parameters"""
    tables_each: bool = False
    """layers that see all and layers with a window have tables of positions of their own"""
    norm: str = "rms"
    """how the norms compute"""
    rotary: Callable[[Fields], Size] | None = head_width
    """width of the tables of rotary positions"""
    multiplies: Flag = False
    """constants multiply the embedding, what layers add, and the logits"""
    scales: Literal["", "module", "model"] = ""
    """a constant multiplies the embedding, inside its module or behind it"""
    logits: Callable[[Fields], Logits] = _plain_logits
    kernel: str = ""
    """the attention that the class takes where nobody says one"""
    alone: bool = False
    """the class has no other attention than that"""
    embed_norm: str = ""
    """the norm behind the embedding"""
    bias_apart: bool = False
    """linear layers add their bias by an operator of its own"""
    masks: Callable[[Fields], Literal["plain", "biased"]] | None = None
    """the class always gives its kernel a mask, which has the biases of every head or not"""
    fills: bool = False
    """scores are filled where a mask of true and false says so"""
    buffers: Callable[[Fields], Size] | None = None
    """bytes of masks and tables that the class keeps beside its parameters"""
    wide_tables: bool = False
    """tables of rotary positions are fp32"""
    masked: bool = False
    """every layer is given a mask"""
    slides_if: str = ""
    """the field that must be true for windows; while it is not, the class makes a mask for one of 0 tokens"""
    scales_hidden: bool = False
    """not the logits, but what the head is given is multiplied; and the embedding within its module (MiniCPM)"""
    without: str = ""
    """packages whose kernels the class takes where they are installed: its own PyTorch is counted"""
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
        if not (isinstance(self.attention, Part) and isinstance(self.mlp, Part)):
            return None
        if self.more is not none and not self.run:  # nobody says what is done with it
            return None
        attention, mlp = self.attention.forward(c, layer), self.mlp.forward(c, layer)
        for part, forward in ((self.attention, attention), (self.mlp, mlp)):
            if forward is None and list(part(c, layer)):  # tensors that nobody says what is done with
                return None
        order: Order = self.order(c) if callable(self.order) else self.order
        run = self.run if isinstance(self.run, str) else self.run(c)
        names = tuple((run or self.norms).split())
        drops = bool(self.dropout) and bool(c.get(self.dropout))
        return Layer(attention, mlp, order, names, self.norm, c.flag(self.multiplies), drops, self.holds)

    def ends(self, c: Fields) -> Ends:
        """What is before and behind the layers."""
        return Ends(
            norm=self.norm,
            without=self.without,
            final=self.final or ("norm" if self.run else ""),
            tables_each=self.tables_each,
            learned="own" if self.own_positions else "shared" if self.positions else "",
            drops=bool(self.embeds) and bool(c.get(self.embeds)),
            scales=self.scales or ("model" if c.flag(self.multiplies) and not self.scales_hidden else ""),
            logits="scaled" if c.flag(self.multiplies) and not self.scales_hidden else self.logits(c),
            kernel=self.kernel,
            alone=self.alone,
            embed_norm=self.embed_norm,
            fills=self.fills,
            bias_apart=self.bias_apart,
            masks=self.masks(c) if self.masks else "",
            buffers=self.buffers(c) if self.buffers else 0,
            wide_tables=self.wide_tables,
            spans=tuple(dict.fromkeys(int(window_of(c, layer)) for layer in range(self.layer_count(c)))),
            scales_hidden=self.scales_hidden,
            masked=self.masked,
            idle_mask=bool(self.slides_if) and not c.flag(self.slides_if),
            rotary=self.rotary(c) if self.rotary else 0,
        )

    def layer_count(self, c: Fields) -> int:
        return c.count("num_hidden_layers")

    def embedding(self, c: Fields) -> list[Weight]:
        found = [tensor(f"{self.embed}.weight", axis(c.count("vocab_size"), kind="vocab"), hidden(c))]
        if self.positions:
            name, field, added = self.positions.split()
            found.append(tensor(f"{name}.weight", c.count(field) + int(added), hidden(c)))
        shift = norm(self.embed_norm, hidden(c), c.flag(self.norm_bias)) if self.embed_norm else []
        return [*found, *shift, *self.first(c, 0)]

    def last(self, c: Fields) -> list[Weight]:
        return norm(self.final, hidden(c), c.flag(self.norm_bias)) if self.final else []

    def head_weights(self, c: Fields, name: str, tied: bool) -> list[Weight]:
        """A tied head has its own bias, if any, and the embedding's weight."""
        found = linear(name, hidden(c), axis(c.count("vocab_size"), kind="vocab"), c.flag(self.head_bias))
        return [structs.replace(weight, module=self.head_module) for weight in (found[1:] if tied else found)]
