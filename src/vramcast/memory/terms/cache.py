"""The cache of keys and values that generation reads."""

from __future__ import annotations

from vramcast.catalog.dtypes import BYTES
from vramcast.memory.seat import Seat
from vramcast.memory.term import term
from vramcast.num import Size, let


def kv_per_token(seat: Seat) -> Size:
    """Bytes that one token of one sequence adds: a key and a value in every layer."""
    dims = seat.arch.dims
    return let("kv_per_token", 2 * dims.layers * dims.kv * BYTES[seat.weights_dtype])


@term(
    "kv_cache",
    lives=lambda seat: seat.caches and seat.state == "generate",
    source="transformers/cache_utils.py, DynamicCache: one key and one value tensor a layer",
)
def kv_cache(seat: Seat) -> Size:
    """Keys and values of all tokens so far.

    2 × layers × key heads × head width × bytes, for every token of every sequence. Grouped-query models keep few key
    heads: Qwen2.5-7B needs 56 KiB a token where the multi-head rule of thumb says 392 KiB. When it hurts: fewer
    sequences at once, shorter responses, an 8-bit cache.
    """
    return seat.sequences * seat.cached_len * kv_per_token(seat)


@term(
    "kv_cache.grow",
    lives=lambda seat: seat.caches and seat.state == "generate" and seat.instant == "decode",
    source="transformers/cache_utils.py, DynamicLayer.update: torch.cat makes a new tensor, the old one still alive",
)
def kv_cache_grow(seat: Seat) -> Size:
    """The copy that growing by one token makes: Hugging Face concatenates, so one layer's keys exist twice."""
    return seat.sequences * (seat.cached_len - 1) * seat.arch.dims.kv * BYTES[seat.weights_dtype]
