"""At which sizes a job is traced, so that constant parts, parts by token and parts by pair of tokens can be told."""

from __future__ import annotations

from typing import Any, NamedTuple

from vramcast.models.cache.windows import spans
from vramcast.models.extents import Sizes
from vramcast.models.types import family_of

_LEAST, _MOST = 16, 131_072
"""tokens of a sequence, where the model says nothing"""
_SCORED = (100, 1000, 2600, 3500, 5100, 7700)
"""labelled tokens: a fused head needs at most two tiles of 4096, on either side of it"""
_SEQUENCES = (2, 1, 3, 11, 17, 2)


class Range(NamedTuple):
    """Sizes between which nothing but sizes changes."""

    shortest: int
    longest: int
    """tokens of a sequence"""
    fewest: int = 1
    most: int = 0
    """sequences; 0: any number"""

    def one(self) -> Range:
        """With one sequence."""
        return self._replace(most=1)

    def several(self) -> Range:
        """With more than one."""
        return self._replace(fewest=2)


def range_of(config: dict[str, Any], length: int, longest: int, source: str) -> Range:
    """The range around a job's length. Windows of attention are its borders: from that length on there is a mask
    (transformers/masking_utils.py: _ignore_causal_mask_sdpa)."""
    most = max(min(longest or _MOST, _MOST), 4096, length)
    windows = _windows(config, source)
    below = max((window for window in windows if window <= length), default=min(_LEAST, length))
    above = min((window - 1 for window in windows if window > length), default=most)
    return Range(below, above)


def _windows(config: dict[str, Any], source: str) -> list[int]:
    """Windows and chunks of attention, in tokens."""
    model_type = str(config.get("model_type"))
    layers = config.get("num_hidden_layers")
    if model_type in family_of() and isinstance(layers, int):
        return sorted({int(span.tokens) for span in spans(model_type, config, layers, source) if span.tokens})
    found = config.get("sliding_window")
    return [found] if isinstance(found, int) and found > 0 else []


def sizes_in(known: Range) -> list[Sizes]:
    """Six sizes of a range: both ends, and lengths that are no multiples of what kernels pad to."""
    found: list[Sizes] = []
    for length, target, count in zip(_lengths(known.shortest, known.longest), _SCORED, _SEQUENCES, strict=True):
        needed = -(-target // max(length - 1, 1)) if target > 3000 else 1
        sequences = known.most or max(count, known.fewest, needed)
        scored = max(min(length - 1, target // sequences), 1)
        found.append(Sizes(sequences, length, scored))
    return found


def _lengths(shortest: int, longest: int) -> list[int]:
    """Six lengths, evenly in ratio; the inner ones are 8, 16 or 24 more than a multiple of 32 where there is room."""
    ratio = (longest / shortest) ** (1 / (len(_SCORED) - 1))
    found = [shortest]
    for number in range(1, len(_SCORED) - 1):
        wished = int(shortest * ratio**number)
        found.append(max(wished // 32 * 32 + 8 * (number % 3 + 1), found[-1] + 1))
    return [min(length, longest) for length in [*found, longest]]
