"""What a model is made of: every parameter tensor by name and shape, in blocks of layers, and what cuts it.

A size that can be divided over ranks carries its own cut (`Axis`), so a tensor is written once, as `linear("q_proj",
heads, hidden)`, and its share on a rank, its replicas and its module follow.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache
from math import prod
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from vramcast.num import Size

Kind: TypeAlias = Literal["", "tp", "kv", "vocab", "expert"]
Need: TypeAlias = Literal["", "images", "images, unread", "sound"]
MODULES = (
    "embedding", "lm_head", "attention", "mixer_ssm_conv", "mlp", "routed_experts", "shared_experts", "router",
    "norms", "vision", "other",
)  # fmt: skip


class Piece(Struct, frozen=True):
    """`count` units of `width` elements; a rank gets whole units.

    `kind` says what divides the count: "tp" (tensor parallel: heads, intermediate width), "kv" (key heads: the same,
    and replicated when there are more ranks than heads), "vocab" (padded, then cut), "expert" (expert parallel), or ""
    (nothing: every rank holds all).
    """

    count: Size
    width: Size = 1
    kind: Kind = ""


class Axis(Struct, frozen=True):
    """One dimension of a tensor: pieces side by side, as a fused projection has them."""

    pieces: tuple[Piece, ...]

    @property
    def size(self) -> Size:
        return sum([piece.count * piece.width for piece in self.pieces])

    def __add__(self, other: Axis) -> Axis:
        return Axis(self.pieces + other.pieces)


Width: TypeAlias = Size | Axis
"""A dimension: a number that nothing cuts, or an axis."""


def axis(count: Size, width: Size = 1, kind: Kind = "tp") -> Axis:
    """`count` units of `width`, cut by `kind`."""
    return Axis((Piece(count, width, kind),))


class Weight(Struct, frozen=True):
    """A parameter tensor: its name below its block, as transformers spells it, and its dimensions."""

    name: str
    axes: tuple[Axis, ...]
    module: str = ""
    """its class in `MODULES`, where the name does not say it"""
    used: Size = 0
    """experts of dimension 0 that one token uses; 0 for a tensor every token uses"""
    bare: bool = False
    """a matrix of a class of its own (routers), no linear layer"""

    @property
    def shape(self) -> tuple[Size, ...]:
        return tuple([one.size for one in self.axes])

    @property
    def elements(self) -> Size:
        return prod(self.shape)

    @property
    def active(self) -> Size:
        """Elements that one token goes through."""
        return self.used * prod(self.shape[1:]) if self.used else self.elements


_ALSO_LINEAR = ("per_layer_projection.weight", "per_layer_model_projection.weight")
"""linear layers of Gemma 3n by the ends of their names"""
_LINEAR = ("attention", "mlp", "shared_experts", "mixer_ssm_conv")
"""modules whose matrices are linear layers"""


class Blocks(Struct, frozen=True):
    """Equal blocks: the same tensors in each of `layers` (their indices), or a single part of the model (no index)."""

    name: str
    """what it is: decoder, embedding, vision …"""
    prefix: str
    """of the tensors' names; the index of the layer follows it"""
    layers: tuple[int, ...]
    weights: tuple[Weight, ...]
    forward: Any = None
    """its `Forward`; None where nobody wrote it (a file of a traced model has none)"""
    needs: Need = ""
    """what a batch must have for these blocks to run: towers, projectors, and layers that read what they give;
    "unread": they run, and the loss does not depend on them"""

    @property
    def count(self) -> int:
        return len(self.layers) or 1

    @property
    def is_layer(self) -> bool:
        """Whether these are layers of the language model."""
        return self.name.startswith("decoder")

    def linears(self) -> tuple[str, ...]:
        """Names of its linear layers, without `.weight`; in a tower, all matrices but tables of positions."""
        names = [weight.name.removesuffix(".weight") for weight in self.weights if self._is_linear(weight)]
        return tuple(names)

    def _is_linear(self, weight: Weight) -> bool:
        if len(weight.axes) != 2 or not weight.name.endswith(".weight"):
            return False
        module = self.module(weight)
        if module == "vision":
            return not weight.name.endswith(("embed.weight", "embedding.weight"))
        if weight.bare:
            return False
        return module in (*_LINEAR, "router") or weight.name.endswith(_ALSO_LINEAR)

    @property
    def params(self) -> Size:
        """Elements of one block."""
        return sum(weight.elements for weight in self.weights)

    @property
    def active(self) -> Size:
        return sum(weight.active for weight in self.weights)

    def names(self) -> Iterable[tuple[str, Weight]]:
        """(full name, tensor) of every parameter."""
        for layer in self.layers or ("",):
            lead = ".".join(part for part in (self.prefix, str(layer)) if part)
            for weight in self.weights:
                yield f"{lead}.{weight.name}" if lead else weight.name, weight

    def module(self, weight: Weight) -> str:
        return weight.module or module_of(f"{self.prefix}.{weight.name}")


class Sight(Struct, frozen=True, kw_only=True):
    """What a tower runs on for the image tokens that its language model is given."""

    width: Size
    """of the tower's hidden states"""
    patches: Size
    """of an image, for each of its tokens"""
    pixels: Size
    """numbers of a patch"""
    image: Size = 0
    """tokens of an image, where all images are of one size; 0: an image has any number"""
    extra: Size = 0
    """rows of an image beside its patches: a class token"""
    learned: Literal["", "shared", "own"] = ""
    """learned positions are added to the embedding: the same rows for all sequences, or rows of each"""
    drops: bool = False
    """the embedding goes through a dropout while the model trains"""
    tables_each: bool = False
    """each of these has tables of positions of its own"""
    rotary: Size = 0
    """width of the tables of rotary positions, which are fp32"""
    listed: bool = False
    """tokens come image by image, and the model puts them together"""
    narrow: bool = False
    """nothing is added to what the convolution gives: see `Ends.narrow`"""


Logits: TypeAlias = Literal["", "scaled", "capped", "wide"]


class Ends(Struct, frozen=True, kw_only=True):
    """What a language model computes before and behind its layers."""

    norm: str = "rms"
    final: str = "norm"
    """the last norm's name; "" for none"""
    scales: Literal["", "module", "model"] = ""
    """a constant multiplies the embedding: inside its own module, or in the model's forward"""
    logits: Logits = ""
    """what is done to the logits: nothing, a product with a constant, a soft cap, or a copy in fp32"""
    kernel: str = ""
    """the attention that the class takes where nobody says one; "": scaled_dot_product_attention's choice"""
    spans: tuple[int, ...] = (0,)
    """tokens that layers see at most (0: all), each once, the first layer's first: each has a mask of its own"""
    learned: Literal["", "shared", "own"] = ""
    """learned positions are added to the embedding: the same rows for all sequences, or rows of each"""
    drops: bool = False
    """the embedding goes through a dropout while the model trains"""
    tables_each: bool = False
    """each of these has tables of positions of its own"""
    scales_hidden: bool = False
    """a constant multiplies what the head is given"""
    alone: bool = False
    """the class has no other attention than that"""
    embed_norm: str = ""
    """the norm behind the embedding; "" for none"""
    masks: Literal["", "plain", "biased"] = ""
    """the class always gives its kernel a mask, which has the biases of every head or not"""
    bias_apart: bool = False
    """linear layers add their bias by an operator of its own"""
    fills: bool = False
    """eager scores are filled where a mask of true and false says so, which backward asks again"""
    buffers: Size = 0
    """bytes of masks and tables that the class keeps beside its parameters"""
    layer_inputs: Size = 0
    """width of the embedding that each layer has of its own; 0: none"""
    rotary: Size = 0
    """width of the tables of rotary positions; 0: none"""
    own_cache: bool = False
    """the language model's section says whether it makes a cache, whatever that of the whole model says"""
    own_positions: bool = False
    """each sequence has tables of its own, of positions along several axes (M-RoPE)"""
    without: str = ""
    """packages whose kernels the class takes where they are installed: its own PyTorch is counted, in training"""
    wide: bool = False
    """hidden states between layers are fp32"""
    adds_wide: bool = False
    """and so is what the last norm gives; but what the embedding gives is not"""
    idle_mask: bool = False
    """the model's forward makes a mask that no layer takes"""
    masked: bool = False
    """every layer is given a mask, whatever it sees: a scorer of keys needs it"""
    both_ways: bool = False
    """tokens of an image see each other, so every layer needs a mask"""
    complex_tables: bool = False
    """one table of complex numbers instead of cosines and sines"""
    wide_tables: bool = False
    """the tables are fp32 whatever the hidden states are"""
    narrow: bool = False
    """hidden states begin as a product, which autocast makes in low precision, and stay so"""
    sight: Sight | None = None
    """of a model that sees images, where its tower is modelled"""


    @property
    def moved(self) -> bool:
        """Hidden states begin as another tensor than the embedding's output, which the model's forward still holds."""
        return bool(self.learned or self.wide or self.embed_norm or self.drops)


class Layout(Struct, frozen=True, kw_only=True):
    """A model: its blocks in the order of the forward."""

    name: str
    model_type: str
    blocks: tuple[Blocks, ...]
    tied: bool
    """the head is the embedding: it has no tensor of its own"""
    dtype: str
    """dtype of the checkpoint"""
    ends: Ends = Ends()
    assumed: tuple[tuple[str, str, str], ...] = ()
    """(field, value, whose default it is) of what the config leaves out"""
    counted: str = ""
    """the class that was counted, where no table has the type: how it is cut and what it caches is not known"""
    kinds: dict[str, Any] = {}
    """of a class that was counted: module → what it is (`adapters/modules.py`: Kind)"""

    @property
    def params(self) -> Size:
        return sum(block.count * block.params for block in self.blocks)

    @property
    def active_params(self) -> Size:
        """Parameters one token goes through: of the routed experts, those it is sent to."""
        return sum(block.count * block.active for block in self.blocks)

    def modules(self) -> dict[str, Size]:
        """Elements by class of module."""
        found: Counter[str] = Counter()
        for block in self.blocks:
            for weight in block.weights:
                found[block.module(weight)] += block.count * weight.elements
        return {name: found[name] for name in MODULES if found[name]}

    def tensors(self) -> dict[str, tuple[Size, ...]]:
        """name → shape of every parameter."""
        return {name: weight.shape for block in self.blocks for name, weight in block.names()}

    def layers(self) -> list[Blocks]:
        """The decoder's layers in order, each as the blocks it belongs to."""
        found = {index: block for block in self.blocks if block.is_layer for index in block.layers}
        return [found[index] for index in sorted(found)]


_CLASSES = (
    ("vision", r"vision|visual|multi_modal_projector|mm_projector|audio"),
    ("lm_head", r"lm_head"),
    ("mixer_ssm_conv", r"\.mixer\.|mamba|linear_attn|\.conv\."),
    ("embedding", r"(?<!un)embed|\.wte|\.wpe"),
    ("norms", r"\.ln_"),
    ("attention", r"attn|attention"),
    ("norms", r"norm"),
    ("shared_experts", r"shared_expert|shared_mlp"),
    ("router", r"router|(mlp|feed_forward)\.gate\.|per_layer_input_gate"),
    ("routed_experts", r"experts"),
    ("mlp", r"mlp|feed_forward|ffn|\.fc\d"),
)


@cache
def module_of(name: str) -> str:
    """The class of a tensor, read off its name; the first rule that matches wins.

    A norm inside or right after the attention counts with it, and all of a state-space model's mixer is one class: the
    way public per-module counts are made.
    """
    return next((module for module, pattern in _CLASSES if re.search(pattern, name)), "other")
