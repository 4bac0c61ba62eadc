"""The cache of keys and values that Transformers' generate reads."""

from __future__ import annotations

from vramcast.catalog.dtypes import BYTES
from vramcast.memory.seat import Seat
from vramcast.memory.term import term
from vramcast.num import Size, at_most, let, shard, whole, worst

GROUP, RESIDUAL = 64, 128
"""QuantizedCache's q_group_size and residual_length: transformers/cache_utils.py"""
_QUANTISED_BITS = {"int8": 8, "int4": 4}


def kv_per_token(seat: Seat) -> Size:
    """Bytes that one token of one sequence adds to one layer: a key and a value."""
    return let("kv_per_token", 2 * seat.arch.dims.kv * BYTES[seat.weights_dtype])


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
    if seat.cache == "quantised":
        return _quantised(seat)
    layers, slides = seat.arch.dims.layers, seat.arch.sliding_layers
    length = seat.longest if seat.cache == "static" else seat.cached_len
    if seat.cache == "offloaded":  # the layer at work, and the next one on its way: the largest two
        slides = at_most(2 - at_most(2, layers - slides), slides)
        layers = at_most(2, layers)
    if not seat.windows or (seat.instant != "decode" and seat.cache != "static"):
        return seat.sequences * layers * length * kv_per_token(seat)
    window = let("window", at_most(seat.arch.window, length))
    return seat.sequences * ((layers - slides) * length + slides * window) * kv_per_token(seat)


def _quantised(seat: Seat) -> Size:
    """The prompt packed in groups with a scale and a shift; steps in full until there are 128, then packed too. A run
    that has packed some was largest one step before."""
    flushed = let("flushed", whole(seat.cached_len - seat.prompt_len, RESIDUAL) * RESIDUAL)
    before = worst(flushed - RESIDUAL, 0)
    now = _partly_packed(seat, "now", seat.prompt_len + flushed, seat.cached_len - seat.prompt_len - flushed)
    then = _partly_packed(seat, "then", seat.prompt_len + before, worst(flushed - 1, 0) - before)
    return seat.arch.dims.layers * worst(now, then)


def _partly_packed(seat: Seat, when: str, packed: Size, rest: Size) -> Size:
    """A layer's keys and values of `packed` tokens and of a `rest` in full."""
    elements = let(f"packed_{when}", seat.sequences * seat.arch.dims.kv * packed)
    bits = _QUANTISED_BITS[seat.cache_dtype]
    size = shard(elements * bits, 8) + 2 * whole(elements, GROUP) * BYTES[seat.weights_dtype]
    return let(f"layer_{when}", 2 * size + seat.sequences * rest * kv_per_token(seat))


@term(
    "kv_cache.grow",
    lives=lambda seat: _lives(seat) and seat.instant == "decode" and seat.cache == "dynamic",
    source="transformers/cache_utils.py, DynamicLayer.update: torch.cat makes a new tensor, the old one still alive",
)
def kv_cache_grow(seat: Seat) -> Size:
    """The copy that growing by one token makes: Hugging Face concatenates, so one layer's keys exist twice.

    Where every layer slides, those of a window.
    """
    old = seat.cached_len - 1
    if seat.windows:
        all_seen = at_most(1, seat.arch.dims.layers - seat.arch.sliding_layers)
        old = worst(all_seen * old, at_most(seat.arch.window, old))
    return seat.sequences * old * seat.arch.dims.kv * BYTES[seat.weights_dtype]
