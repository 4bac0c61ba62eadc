"""A language model: embedding, layers of two parts and their norms, final norm, head. Its table row says which."""

from __future__ import annotations

from msgspec import Struct, structs

from vramcast.models.fields import Fields
from vramcast.models.layout import Blocks, Weight, axis
from vramcast.models.parts import Flag, Part, hidden, linear, none, norm, norms, single, stack, tensor

ATTENTION_KINDS = ("full_attention", "sliding_attention", "chunked_attention", "hybrid", "indexed_attention")
"""What `layer_types` may say where it only changes what a layer attends to."""
PRE_NORM = "input_layernorm post_attention_layernorm"


class Decoder(Struct, frozen=True):
    """A row of the table of model types."""

    attention: Part
    mlp: Part = none
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
    first: Part = none
    """what stands between embedding and layers"""
    more: Part = none
    """further parts of a layer"""

    def blocks(self, c: Fields, prefix: str = "", head: str = "", tied: bool | None = None) -> list[Blocks]:
        """All blocks; `prefix`, `head` and `tied` where the model is the text part of a larger one."""
        lead = prefix or self.prefix
        layers = self.layer_count(c)
        below = f"{lead}.{self.layers}" if lead else self.layers
        parts = (self.attention, self.mlp, norms(self.norms, self.norm_bias), self.more)
        decoder = stack(c, "decoder", below, layers, *parts)
        if "layer_types" not in c.read:  # no part of this type depends on it
            c.words("layer_types", layers, ATTENTION_KINDS)
        return [
            *single("embedding", lead, self.embedding(c)),
            *decoder,
            *single("final norm", lead, self.last(c)),
            *single("head", "", self.head_weights(c, head or self.head, c.flag(self.tied) if tied is None else tied)),
        ]

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
