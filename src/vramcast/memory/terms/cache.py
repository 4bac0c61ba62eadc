"""The cache of keys and values that Transformers' generate reads."""

from __future__ import annotations

from vramcast.memory.seat import Seat
from vramcast.memory.term import term
from vramcast.models.cache.formats import Formats, formats
from vramcast.models.cache.hf import (
    Quantised,
    dynamic_bytes,
    growth_bytes,
    offloaded_bytes,
    quantised_size,
    static_bytes,
)
from vramcast.models.cache.kinds import LayerKind, cache_kinds
from vramcast.num import Size, let, whole, worst

RESIDUAL = 128
"""QuantizedCache's residual_length: transformers/cache_utils.py"""
_BITS = {"int8": 8, "int4": 4}


def kept(seat: Seat) -> tuple[LayerKind, ...]:
    """What each layer keeps of the tokens that were."""
    arch = seat.arch
    return arch.once("kept", lambda: cache_kinds(arch.layout, arch.config, arch.source))


def _lives(seat: Seat) -> bool:
    return seat.caches and seat.state == "generate"


@term(
    "kv_cache",
    lives=_lives,
    source="transformers/cache_utils.py: DynamicCache, StaticCache, QuantizedCache, and their layers",
)
def kv_cache(seat: Seat) -> Size:
    """Keys and values of all tokens so far.

    2 × layers × key heads × head width × bytes, for every token of every sequence. Grouped-query models keep few key
    heads: Qwen2.5-7B needs 56 KiB a token where the multi-head rule of thumb says 392 KiB. Sliding layers keep their
    window, from the first step on. A static cache is whole from the first token, an offloaded one has two layers on the
    GPU, a quantised one packs all but the last tokens. When it hurts: fewer sequences at once, shorter responses, an
    8-bit cache.
    """
    kinds, stored = kept(seat), _formats(seat)
    if seat.cache == "quantised":
        return _quantised(seat)
    if seat.cache == "static":
        return static_bytes(kinds, stored, seat.sequences, seat.longest)
    if seat.cache == "offloaded":
        return offloaded_bytes(kinds, stored, seat.sequences, seat.cached_len)
    return dynamic_bytes(kinds, stored, seat.sequences, seat.cached_len, windows=seat.instant == "decode")


def _formats(seat: Seat) -> Formats:
    return formats(kept(seat), "transformers", seat.weights_dtype, "auto", seat.arch.source)


def _quantised(seat: Seat) -> Size:
    """The prompt packed in groups with a scale and a shift; steps in full until there are 128, then packed too. A run
    that has packed some was largest one step before."""
    flushed = let("flushed", whole(seat.cached_len - seat.prompt_len, RESIDUAL) * RESIDUAL)
    lengths = seat.cached_len, seat.prompt_len + worst(flushed - 1, 0)
    options = Quantised(bits=_BITS[seat.cache_dtype], residual=RESIDUAL)
    kinds, stored = kept(seat), _formats(seat)
    return worst(
        *(quantised_size(kinds, stored, seat.sequences, seat.prompt_len, length, options) for length in lengths)
    )


@term(
    "kv_cache.grow",
    lives=lambda seat: _lives(seat) and seat.instant == "decode" and seat.cache == "dynamic",
    source="transformers/cache_utils.py, DynamicLayer.update: torch.cat makes a new tensor, the old one still alive",
)
def kv_cache_grow(seat: Seat) -> Size:
    """The copy that growing by one token makes: Hugging Face concatenates, so one layer's keys exist twice.

    Where every layer slides, those of a window.
    """
    return growth_bytes(kept(seat), _formats(seat), seat.sequences, seat.cached_len)
