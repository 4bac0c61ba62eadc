"""What one rank holds: tensor, pipeline and expert parallel shares, and ZeRO-3 or FSDP shares of those.

Sources: vLLM 0.33 `distributed/utils.py` get_pp_indices (pipeline stages), `layers/vocab_parallel_embedding.py`
(padding to 64), `layers/linear.py` QKVParallelLinear (replicated key heads); Megatron-Core (equal stages); DeepSpeed
`stage3_param_persistence_threshold`; torch FSDP1 flattens a unit, FSDP2 cuts dimension 0 of each tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from math import prod
from typing import Literal, TypeAlias

from msgspec import Struct

from vramcast.errors import Mistakes
from vramcast.models.layout import Blocks, Kind, Layout, Piece, Weight
from vramcast.num import Size, let, shard, total, up_to
from vramcast.units import divisors

Rule: TypeAlias = Literal["vllm", "even"]
Zero: TypeAlias = Literal["none", "zero3", "fsdp1", "fsdp2"]
VOCAB_MULTIPLE = 64
"""vLLM pads the vocabulary to it before it cuts."""
PERSISTENT = 100_000
"""DeepSpeed keeps smaller parameters whole."""


class Sharded(Struct, frozen=True):
    """How pieces of a kind are divided: a row of the table below is all that a sharding axis is."""

    ranks: str = ""
    """the field of `Cut` that divides them; "": every rank holds all"""
    in_experts: str = ""
    """the field that divides those of a routed expert's tensor"""
    repeats: bool = False
    """where there are more ranks than units, some ranks hold the same one"""
    pads: bool = False
    """the count is padded before it is cut, so every number of ranks divides it"""

    def by(self, expert: bool) -> str:
        """The field of `Cut` that divides a piece."""
        return self.in_experts if expert else self.ranks


SHARDED: dict[Kind, Sharded] = {
    "": Sharded(),
    "tp": Sharded("tp", "etp"),
    "kv": Sharded("tp", "etp", repeats=True),
    "vocab": Sharded("tp", "etp", pads=True),
    "expert": Sharded("ep", "ep"),
}
"""kind of a piece → how it is divided"""


class Cut(Struct, frozen=True, kw_only=True):
    """A way of dividing a model over ranks."""

    tp: Size = 1
    ep: Size = 1
    etp: Size = 1
    """tensor parallel ranks of an expert"""
    pp: int = 1
    rule: Rule = "vllm"
    """how layers are spread over pipeline stages"""
    vocab_multiple: Size = 1
    """what the vocabulary is padded to before it is cut (vLLM: 64)"""

    def ranks(self, kind: Kind, expert: bool) -> Size:
        """How many ranks divide a piece of this kind; `expert`: of a routed expert's tensor."""
        name = SHARDED[kind].by(expert)
        return getattr(self, name) if name else 1


def is_expert(weight: Weight) -> bool:
    """A tensor of routed experts: its first dimension counts them."""
    return any(piece.kind == "expert" for one in weight.axes for piece in one.pieces)


def share(piece: Piece, cut: Cut, expert: bool) -> Size:
    """Elements of a dimension that one rank holds, padding included."""
    count = up_to(piece.count, cut.vocab_multiple) if SHARDED[piece.kind].pads else piece.count
    return shard(count, cut.ranks(piece.kind, expert)) * piece.width


def held(weight: Weight, cut: Cut) -> Size:
    """Elements of a tensor that one rank holds."""
    expert = is_expert(weight)
    return prod(total(share(piece, cut, expert) for piece in one.pieces) for one in weight.axes)


def copies(piece: Piece, cut: Cut, expert: bool) -> Size:
    """How many ranks hold each element: more than one for key heads when there are more ranks than heads."""
    ranks = cut.ranks(piece.kind, expert)
    return max(1, ranks // piece.count) if SHARDED[piece.kind].repeats else 1


def owners(piece: Piece, cut: Cut, expert: bool, rank: int) -> range:
    """The units of a dimension that a rank holds, padding left out."""
    ranks = int(cut.ranks(piece.kind, expert))
    if SHARDED[piece.kind].repeats and ranks > piece.count:
        first = rank * int(piece.count) // ranks
        return range(first, first + 1)
    units = int(share(piece, cut, expert)) // max(1, int(piece.width))
    return range(min(rank * units, int(piece.count)), min((rank + 1) * units, int(piece.count)))


def check_cut(layout: Layout, cut: Cut, origins: Mapping[str, str] | None = None) -> None:
    """Refuse what no framework does: heads, widths or experts that do not divide, more stages than layers.

    `origins` says where tp, ep, etp and pp were set.

    Raises:
        Refused: with every number of ranks that does not divide the model.
    """
    said, mistakes = origins or {}, Mistakes()
    for name, ranks in (("tp", cut.tp), ("ep", cut.ep), ("etp", cut.etp)):
        pieces: dict[Piece, str] = {}
        for weight, piece in _pieces(layout):
            if _cutter(piece, weight) == name:
                pieces.setdefault(piece, weight.name)
        piece = next((piece for piece in pieces if not _divides(piece, ranks)), None)
        if piece is not None:
            allowed = [count for count in divisors(int(piece.count)) if all(_divides(one, count) for one in pieces)]
            mistakes.add(
                f"{name} = {ranks} does not divide the {piece.count} units of {pieces[piece]}",
                **{"from": said.get(name, ""), "allowed": ", ".join(map(str, allowed))},
            )
    layers = len(layout.layers())
    if cut.pp > layers:
        mistakes.add(
            f"pp = {cut.pp} is more than the {layers} layers of {layout.name}",
            **{"from": said.get("pp", ""), "allowed": f"1 to {layers}"},
        )
    elif cut.rule == "even" and layers % cut.pp:
        mistakes.add(f"pp = {cut.pp} does not divide the {layers} layers of {layout.name}")
    mistakes.done()


def _pieces(layout: Layout) -> Iterator[tuple[Weight, Piece]]:
    for block in layout.blocks:
        for weight in block.weights:
            yield from ((weight, piece) for one in weight.axes for piece in one.pieces)


def _cutter(piece: Piece, weight: Weight) -> str:
    """Which ranks cut a piece; the vocabulary is padded, so everything divides it."""
    rule = SHARDED[piece.kind]
    return "" if rule.pads else rule.by(is_expert(weight))


def _divides(piece: Piece, ranks: Size) -> bool:
    """Ranks get equal shares; of key heads there may be fewer than ranks, which then share one."""
    repeats = SHARDED[piece.kind].repeats and ranks > piece.count and ranks % piece.count == 0
    return piece.count % ranks == 0 or repeats


def stages(layers: int, pp: int, rule: Rule = "vllm") -> list[range]:
    """The layers of each pipeline stage. vLLM gives what is left over to the second-last stage and those before it."""
    sizes = [layers // pp] * pp
    for index in range(layers % pp):
        sizes[-(index + 2) if rule == "vllm" and pp > 1 else index] += 1
    starts = accumulate(sizes, initial=0)
    return [range(start, start + size) for start, size in zip(starts, sizes, strict=False)]


def on_stage(layout: Layout, cut: Cut, stage: int) -> Iterator[tuple[Blocks, int]]:
    """(blocks, how many) of a stage: embedding and towers first, norm and head last, a tied embedding on both."""
    own = stages(len(layout.layers()), cut.pp, cut.rule)[stage]
    for block in layout.blocks:
        if block.name.startswith("decoder"):
            count = sum(layer in own for layer in block.layers)
        elif block.name in ("final norm", "head"):
            count = block.count if stage == cut.pp - 1 else 0
        elif block.name == "embedding" and layout.tied and stage == cut.pp - 1:
            count = 1
        else:
            count = block.count if stage == 0 else 0
        if count:
            yield block, count


def held_by(layout: Layout, cut: Cut, stage: int = 0) -> Size:
    """Parameters that a rank of a stage holds, padding and replicas included."""
    return total(
        count * total(held(weight, cut) for weight in block.weights) for block, count in on_stage(layout, cut, stage)
    )


def zero_share(layout: Layout, ranks: Size, kind: Zero, persistent: Size = PERSISTENT) -> Size:
    """Parameters that one of `ranks` holds at rest, unit by unit: a unit is a layer, and the rest of the model is one.

    "zero3" pads every tensor and keeps small ones whole; "fsdp1" pads a flattened unit; "fsdp2" pads dimension 0.
    """
    found = resting([(block, block.count) for block in layout.blocks], ranks, kind, persistent)
    return total(count * elements for count, elements in found)


def resting(
    blocks: Iterable[tuple[Blocks, Size]],
    ranks: Size,
    kind: Zero,
    persistent: Size = PERSISTENT,
    *,
    whole: bool = False,
) -> Iterator[tuple[Size, Size]]:
    """(how many, elements of each) of the tensors that one of `ranks` holds at rest of blocks and their numbers.

    `whole`: fsdp1 without a wrap policy makes one unit of all.
    """
    blocks = list(blocks)
    if kind != "fsdp1":
        for block, count in blocks:
            yield from ((count, at_rest(weight, ranks, kind, persistent)) for weight in block.weights)
    elif whole:
        yield 1, shard(total(count * block.params for block, count in blocks), ranks)
    else:
        root = let("root", total(count * block.params for block, count in blocks if not block.layers))
        yield 1, shard(root, ranks)
        yield from ((count, shard(let(block.name, block.params), ranks)) for block, count in blocks if block.layers)


def at_rest(weight: Weight, ranks: Size, kind: Zero, persistent: Size = PERSISTENT) -> Size:
    """Elements of a tensor that one of `ranks` holds at rest, if tensors are cut one by one."""
    if kind == "fsdp2":
        return shard(weight.shape[0], ranks) * prod(weight.shape[1:])
    if kind == "zero3":
        return weight.elements if weight.elements <= persistent else shard(weight.elements, ranks)
    return weight.elements
