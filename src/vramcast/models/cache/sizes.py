"""Bytes of what is kept: for a token, for a sequence of a length, once for a sequence; on one rank of a layout.

Heads are cut by tensor parallelism and repeated when there are fewer than ranks, a latent is whole on every rank, and
decode context parallelism spreads the tokens of layers that see all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vramcast.models.cache.formats import Formats
from vramcast.models.cache.kinds import LayerKind
from vramcast.models.cache.part import Part
from vramcast.models.place import Cut, stages
from vramcast.num import Size, shard, total

WHOLE = Cut()


def unit_bytes(part: Part, formats: Formats, cut: Cut = WHOLE) -> Size:
    """Bytes of a part on one rank, kept once."""
    return total(
        shard(piece.count, cut.ranks(piece.kind, False)) * formats.size(part.dtype, piece.width * part.times)
        for piece in part.axis.pieces
    )


def layer_bytes(
    kind: LayerKind, formats: Formats, tokens: Size, cut: Cut = WHOLE, *, dcp: Size = 1, encoder: Size = 0
) -> Size:
    """Bytes that one layer keeps of one sequence of `tokens` on one rank."""
    return total(
        part.count(shard(tokens, dcp) if part.grows else tokens, encoder) * unit_bytes(part, formats, cut)
        for part in kind.parts
    )


def on_stage(kinds: Iterable[LayerKind], cut: Cut, stage: int) -> list[tuple[LayerKind, int]]:
    """(kind, how many of its layers) of a pipeline stage."""
    kinds = list(kinds)
    own = stages(sum(len(kind.layers) for kind in kinds), cut.pp, cut.rule)[stage]
    found = [(kind, sum(layer in own for layer in kind.layers)) for kind in kinds]
    return [(kind, count) for kind, count in found if count]


def bytes_of_sequence(
    kinds: Iterable[LayerKind], formats: Formats, tokens: Size, cut: Cut = WHOLE,
    *, stage: int = 0, dcp: Size = 1, encoder: Size = 0,
) -> Size:  # fmt: skip
    """Bytes that one sequence of `tokens` keeps on a rank of a stage: windows capped, states once.

    `encoder`: tokens of the encoder or of images that cross attention reads.
    """
    return total(
        count * layer_bytes(kind, formats, tokens, cut, dcp=dcp, encoder=encoder)
        for kind, count in on_stage(kinds, cut, stage)
    )


def bytes_per_token(
    kinds: Iterable[LayerKind], formats: Formats, cut: Cut = WHOLE,
    *, stage: int = 0, dcp: Size = 1, windowed: bool = False,
) -> Size:  # fmt: skip
    """Bytes that a further token adds, rounded up where several tokens share an entry.

    Only layers that see all tokens; with `windowed` also those whose window is not full yet.
    """
    return total(
        count * total(_marginal(part, formats, cut, dcp, windowed) for part in kind.parts)
        for kind, count in on_stage(kinds, cut, stage)
    )


def _marginal(part: Part, formats: Formats, cut: Cut, dcp: Size, windowed: bool) -> Size:
    size = unit_bytes(part, formats, cut)
    if part.keeps == "entry":
        return shard(shard(size, part.span), dcp)
    if part.keeps != "token":
        return 0
    return shard(size, dcp) if part.grows else size if windowed else 0


def state_per_sequence(
    kinds: Iterable[LayerKind], formats: Formats, cut: Cut = WHOLE, *, stage: int = 0, names: Sequence[str] = ()
) -> Size:
    """Bytes of recurrent and convolution states of one sequence; `names`: only those ("state", "conv state")."""
    return total(
        count * total(_state(part, formats, cut, names) for part in kind.parts)
        for kind, count in on_stage(kinds, cut, stage)
    )


def _state(part: Part, formats: Formats, cut: Cut, names: Sequence[str]) -> Size:
    wanted = part.keeps == "sequence" and (not names or part.name in names)
    return unit_bytes(part, formats, cut) if wanted else 0
