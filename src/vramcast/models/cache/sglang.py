"""How SGLang (0.5.23) divides its room: tokens of a pool, pools of sliding layers, slots for states.

Sources: sglang 0.5.23 `model_executor/pool_configurator.py` (cell, `HybridSWAPoolConfigurator`),
`mem_cache/kv_cache_configurator.py` (`_handle_max_mamba_cache`, `_calculate_mamba_ratio`), `configs/model_config.py`
(`is_hybrid_swa_model`). Ratios are in parts per million, so that no byte goes through a float.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, structs

from vramcast.models.cache.formats import Formats
from vramcast.models.cache.kinds import LayerKind
from vramcast.models.cache.sizes import WHOLE, bytes_per_token, state_per_sequence
from vramcast.models.place import Cut
from vramcast.num import Size, whole
from vramcast.units import PPM

SWA_RATIO = 800_000
"""`swa_full_tokens_ratio`: tokens of the pool of sliding layers for one of the full ones"""
STATE_RATIO = 900_000
"""`mamba_full_memory_ratio`: bytes of states for one byte of keys and values"""
TRACKED = 3
"""slots that a running request has where the radix cache keeps states; 1 without it"""
OWN_POOL = frozenset("gemma4 gpt_oss llama4 mimo_v2_flash".split())
"""types whose sliding layers have a pool of their own; the layers of others hold every token"""


class Pools(Struct, frozen=True):
    """Tokens of the pool of layers that see all, and of that of sliding layers (0: there is none)."""

    full: Size
    sliding: Size = 0


def own_windows(kinds: Iterable[LayerKind], model_type: str) -> tuple[LayerKind, ...]:
    """The kinds as SGLang stores them: without a pool of its own a window saves nothing."""
    if model_type in OWN_POOL:
        return tuple(kinds)
    return tuple(
        structs.replace(kind, parts=tuple(structs.replace(part, span=0) if part.keeps == "token" else part
                                          for part in kind.parts))
        for kind in kinds
    )  # fmt: skip


def cell_bytes(
    kinds: Iterable[LayerKind], formats: Formats, cut: Cut = WHOLE, *, stage: int = 0, draft_layers: int = 0
) -> Size:
    """Bytes of one token on one rank. The layers of a draft model count as further layers of this one (EAGLE, MTP)."""
    kinds = tuple(kinds)
    size = bytes_per_token(kinds, formats, cut, stage=stage)
    layers = sum(len(kind.layers) for kind in kinds if kind.grows)
    return size + whole(size * draft_layers, max(layers, 1)) if draft_layers else size


def pool_tokens(pool_bytes: Size, cell: Size, page: Size = 1) -> Size:
    """Tokens of a pool, in whole pages."""
    return whole(whole(pool_bytes, cell), page) * page


def allocated_bytes(tokens: Size, cell: Size, page: Size = 1) -> Size:
    """What a pool of so many tokens takes: one more page, which takes the writes of padding."""
    return (tokens + page) * cell


def sliding_pools(
    pool_bytes: Size, kinds: Iterable[LayerKind], formats: Formats, cut: Cut = WHOLE,
    *, page: Size = 1, ratio: int = SWA_RATIO, stage: int = 0,
) -> Pools:  # fmt: skip
    """Two pools in a fixed ratio of tokens, whatever the window; one if no layer sees all."""
    kinds = tuple(kinds)
    full = bytes_per_token(kinds, formats, cut, stage=stage)
    sliding = bytes_per_token(kinds, formats, cut, stage=stage, windowed=True) - full
    if not any(kind.grows for kind in kinds):
        return Pools(0, pool_tokens(pool_bytes, sliding, page))
    tokens = whole(pool_bytes * PPM, full * PPM + ratio * sliding)
    return Pools(whole(tokens, page) * page, whole(whole(tokens * ratio, PPM), page) * page)


class Slots(Struct, frozen=True):
    """Slots for states, the bytes they take, and the bytes that are left for keys and values."""

    number: Size
    bytes: Size
    left: Size

    def requests(self, tracked: int = TRACKED) -> Size:
        """Requests that run at once."""
        return whole(self.number, tracked)


def state_slots(
    pool_bytes: Size, kinds: Iterable[LayerKind], formats: Formats, cut: Cut = WHOLE, *, ratio: int = STATE_RATIO,
    stage: int = 0,
) -> Slots:  # fmt: skip
    """Slots for states out of the room that weights leave; one more is allocated than is given out."""
    each = state_per_sequence(kinds, formats, cut, stage=stage)
    number = whole(whole(pool_bytes * ratio, PPM + ratio) - each, each)
    taken = slot_bytes(number, each)
    return Slots(number, taken, pool_bytes - taken)


def slot_bytes(number: Size, each: Size) -> Size:
    """Bytes of `number` slots and the one for padding."""
    return (number + 1) * each


def request_table_bytes(requests: Size, context: Size) -> Size:
    """The table from requests to tokens, int32, which no formula of the pool counts."""
    return (requests + 1) * context * 4
