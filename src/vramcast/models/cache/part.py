"""One thing that a layer keeps: how wide it is, what cuts it, how many of it a sequence holds, and in what dtype."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from vramcast.models.layout import Axis
from vramcast.num import Size, at_most, whole

Keeps: TypeAlias = Literal["token", "entry", "rest", "once", "sequence", "encoder"]


class Part(Struct, frozen=True):
    """`axis` × `times` elements, kept as often as `keeps` says.

    "token": for every token, or the last `span` of them if it is not 0. "entry": for every `span` tokens that are
    complete. "rest": for the tokens after the last complete `span`. "once": one as soon as a `span` is complete.
    "sequence": one. "encoder": for every token of the encoder or image that the layer reads.
    """

    name: str
    axis: Axis
    keeps: Keeps = "token"
    span: Size = 0
    times: Size = 1
    dtype: str = "cache"
    """"cache": the cache's; "model": the model's; else a name of the catalogue"""

    @property
    def grows(self) -> bool:
        return self.keeps == "entry" or (self.keeps == "token" and not self.span)

    def count(self, tokens: Size, encoder: Size = 0) -> Size:
        """How many a sequence of `tokens` keeps; `encoder`: tokens of what it reads beside."""
        if self.keeps == "token":
            return at_most(tokens, self.span) if self.span else tokens
        if self.keeps == "encoder":
            return encoder
        if self.keeps == "sequence":
            return 1
        entries = whole(tokens, self.span)
        if self.keeps == "rest":
            return tokens - entries * self.span
        return entries if self.keeps == "entry" else at_most(1, entries)
