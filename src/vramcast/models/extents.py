"""What the bytes of a measured tensor may grow with: named functions of a job's sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from vramcast.num import Size, at_most, tabulate, up_to


class Sizes(NamedTuple):
    """The sizes of a micro-batch."""

    sequences: Size
    seq_len: Size
    scored_len: Size
    """tokens of a sequence that have a label"""
    tile: Size
    """tokens in a tile of a fused head; 0: no tiles"""

    @property
    def tokens(self) -> Size:
        return self.sequences * self.seq_len

    @property
    def scored(self) -> Size:
        return self.sequences * self.scored_len


def _sorted(tokens: int) -> int:
    """Ids that the embedding's backward sorts: none up to 3072 (aten/src/ATen/native/cuda/Embedding.cu)."""
    return tokens if tokens > 3072 else 0


def _next_tile(sizes: Sizes) -> Size:
    """Tokens of the second tile."""
    return at_most(sizes.scored, 2 * sizes.tile) - at_most(sizes.scored, sizes.tile)


EXTENTS: dict[str, Callable[[Sizes], Size]] = {
    "1": lambda sizes: 1,
    "tokens": lambda sizes: sizes.tokens,
    "sequences": lambda sizes: sizes.sequences,
    "seq_len": lambda sizes: sizes.seq_len,
    "tokens*seq_len": lambda sizes: sizes.tokens * sizes.seq_len,
    "seq_len*seq_len": lambda sizes: sizes.seq_len * sizes.seq_len,
    "scored": lambda sizes: sizes.scored,
    "tokens/128": lambda sizes: sizes.sequences * up_to(sizes.seq_len, 128),
    "tokens/32": lambda sizes: sizes.sequences * up_to(sizes.seq_len, 32),
    "sorted": lambda sizes: tabulate(_sorted, sizes.tokens),
    "sorted positions": lambda sizes: tabulate(_sorted, sizes.seq_len),
    "tile": lambda sizes: at_most(sizes.scored, sizes.tile),
    "next tile": _next_tile,
    "more tiles": lambda sizes: at_most(1, _next_tile(sizes)),
}
"""name → what it counts. "tokens/128": tokens of sequences that are padded to a multiple of 128; "more tiles": 1 if one
tile is not enough, else 0"""
