"""What the bytes of a measured tensor may grow with: named functions of a job's sizes."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple, TypeAlias

from vramcast.num import Size, at_most, tabulate, up_to


class Sizes(NamedTuple):
    """The sizes of a micro-batch."""

    sequences: Size
    seq_len: Size
    scored_len: Size
    """tokens of a sequence that have a label"""

    @property
    def tokens(self) -> Size:
        return self.sequences * self.seq_len

    @property
    def scored(self) -> Size:
        return self.sequences * self.scored_len


Extent: TypeAlias = Callable[[Sizes], Size]


def _sorted(ids: int) -> int:
    """Ids that an embedding's backward sorts: none up to 3072 (aten/src/ATen/native/cuda/Embedding.cu)."""
    return ids if ids > 3072 else 0


EXTENTS: dict[str, Extent] = {
    "1": lambda sizes: 1,
    "tokens": lambda sizes: sizes.tokens,
    "sequences": lambda sizes: sizes.sequences,
    "seq_len": lambda sizes: sizes.seq_len,
    "tokens*seq_len": lambda sizes: sizes.tokens * sizes.seq_len,
    "seq_len*seq_len": lambda sizes: sizes.seq_len * sizes.seq_len,
    "scored": lambda sizes: sizes.scored,
    "tokens/128": lambda sizes: sizes.sequences * up_to(sizes.seq_len, 128),
    "tokens/32": lambda sizes: sizes.sequences * up_to(sizes.seq_len, 32),
    "sorted tokens": lambda sizes: tabulate(_sorted, sizes.tokens),
    "sorted seq_len": lambda sizes: tabulate(_sorted, sizes.seq_len),
}
"""name → what it counts. "tokens/128": tokens of sequences that are padded to a multiple of 128"""
_CHUNK = re.compile(r"(tokens|scored)(<=|>|\?)([1-9]\d*)")
"""of a loop over chunks of rows: those of the first chunk, those of the second, and 1 if there is a second, else 0"""


def chunks(base: str, rows: int) -> tuple[str, ...]:
    """The names of a loop over chunks of `rows` tokens, or of scored tokens."""
    return tuple(f"{base}{sign}{rows}" for sign in ("<=", ">", "?"))


@cache
def extent(name: str) -> Extent | None:
    """The function of a name; None if there is none."""
    if name in EXTENTS:
        return EXTENTS[name]
    found = _CHUNK.fullmatch(name)
    if found is None:
        return None
    base, sign, rows = EXTENTS[found[1]], found[2], int(found[3])

    def second(sizes: Sizes) -> Size:
        return at_most(base(sizes), 2 * rows) - at_most(base(sizes), rows)

    if sign == "<=":
        return lambda sizes: at_most(base(sizes), rows)
    return second if sign == ">" else lambda sizes: at_most(1, second(sizes))
