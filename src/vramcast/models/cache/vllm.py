"""How vLLM (0.33) cuts the room for its cache into blocks: pages, groups of layers, blocks of a request, concurrency.

Sources: vllm 0.33 `v1/kv_cache_interface.py` (specs, blocks of a request), `v1/core/kv_cache_planning.py` (groups,
bytes of a block), `v1/core/kv_cache_utils.py` (capacity), `platforms/interface.py` (block of hybrid models). Planning
compares sizes, so it takes plain numbers and gives plain numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Literal, TypeAlias

from msgspec import Struct, structs

from vramcast.errors import refuse
from vramcast.models.cache.formats import Formats
from vramcast.models.cache.kinds import LayerKind
from vramcast.models.cache.part import Part
from vramcast.models.cache.sizes import WHOLE, unit_bytes
from vramcast.models.place import Cut, stages
from vramcast.num import shard, total, up_to

BLOCK = 16
"""tokens of a block (`--block-size`); some kernels raise it to 64 or 128"""
MLA_ALIGNMENT = 128
Sort: TypeAlias = Literal["full", "window", "chunk", "state"]


class Page(Struct, frozen=True):
    """One block of one layer, for `layers` alike."""

    name: str
    sort: Sort
    layers: tuple[int, ...]
    block: int
    """tokens; of a state, all of a request"""
    bytes: int
    span: int = 0
    """window or chunk"""
    pads: bool = True
    """it can be padded to a larger page (a latent cannot)"""

    def blocks(self, tokens: int, run: Run) -> int:
        """Blocks of one layer that a request of `tokens` takes."""
        if self.sort == "state":
            return (2 if run.aligned else 1) + run.drafted
        if self.sort == "full":
            return shard(shard(tokens, run.dcp), self.block)
        if self.sort == "chunk":
            return shard(min(self.span + run.in_flight, tokens), self.block)
        return shard(min(self.span - 1 + run.in_flight, tokens), self.block) + 1


class Group(Struct, frozen=True):
    """Layers that share a block table: one block of it is a page of each."""

    pages: tuple[Page, ...]


class Run(Struct, frozen=True):
    """What of an engine's settings decides the blocks of a request."""

    in_flight: int
    """max_num_batched_tokens × steps that are under way at once (two with asynchronous scheduling, since 0.21)"""
    aligned: bool = False
    """prefix caching of states: one more state than the one in use"""
    drafted: int = 0
    """tokens of speculative decoding"""
    dcp: int = 1


class Plan(Struct, frozen=True):
    """How a model's layers are grouped, and the bytes of one block in the pool of one rank of each stage."""

    groups: tuple[Group, ...]
    block_bytes: tuple[int, ...]
    """by pipeline stage; 0 for a stage without a cache"""
    padding: int = 0
    """bytes that every state is padded by"""

    def blocks(self, *pool_bytes: int) -> int:
        """Blocks that every rank has: as many as the poorest. The pools by stage, or one that all have."""
        pools = pool_bytes if len(pool_bytes) == len(self.block_bytes) else pool_bytes[:1] * len(self.block_bytes)
        return min((pool // size for pool, size in zip(pools, self.block_bytes, strict=True) if size), default=1)

    def request_blocks(self, tokens: int, run: Run) -> int:
        """Blocks that a request of `tokens` takes in all groups.

        Raises:
            Refused: decode context parallelism with windows, which vLLM does not have.
        """
        if run.dcp > 1 and any(page.sort in ("window", "chunk") for group in self.groups for page in group.pages):
            raise refuse(f"dcp = {run.dcp} does not go with layers that have a window in vLLM", allowed="1")
        return sum(max(page.blocks(tokens, run) for page in group.pages) for group in self.groups)

    def concurrency(self, blocks: int, longest: int, run: Run) -> Fraction:
        """Requests of the longest length that fit at once, as vLLM logs it; 0 without a cache."""
        need = self.request_blocks(longest, run)
        return Fraction(blocks, need) if need else Fraction(0)

    def tokens(self, blocks: int, longest: int, run: Run) -> int:
        """The log's "KV cache size" since 0.20: concurrency × longest. A capacity only if all layers see all."""
        return int(self.concurrency(blocks, longest, run) * longest)

    def tokens_by_block(self, blocks: int) -> int:
        """The same line up to 0.19: blocks over groups, times the tokens of one."""
        sizes = [page.block for group in self.groups for page in group.pages if page.sort != "state"]
        return blocks // max(len(self.groups), 1) * min(sizes, default=BLOCK)

    def starts(self, blocks: int, longest: int, run: Run) -> bool:
        """Whether one request of the longest length fits; one block is never given out."""
        return self.request_blocks(longest, run) <= blocks - 1


def plan(
    kinds: Iterable[LayerKind],
    formats: Formats,
    cut: Cut = WHOLE,
    *,
    block: int = BLOCK,
    hybrid: bool = True,
    alignment: int = BLOCK,
    source: str = "",
) -> Plan:
    """Group the layers of a whole model and size a block for each pipeline stage.

    `hybrid`: the hybrid manager is on; without it windows and chunks are stored like full attention. `alignment`: the
    attention kernel's block, which the block of a model with states is a multiple of.

    Raises:
        Refused: layers whose pages vLLM packs side by side, or pages that cannot be made equal.
    """
    kinds = list(kinds)
    _refuse(kinds, source)
    pages, padding = _all_pages(kinds, formats, cut, block, alignment)
    if not hybrid:
        pages = [page if page.sort == "state" else structs.replace(page, sort="full", span=0) for page in pages]
    groups = _groups(pages, source)
    own = stages(sum(len(kind.layers) for kind in kinds), cut.pp, cut.rule)
    return Plan(groups, tuple(_block_bytes(groups, stage) for stage in own), padding)


def _refuse(kinds: Iterable[LayerKind], source: str) -> None:
    for kind in kinds:
        if any(part.keeps == "entry" for part in kind.parts):
            raise refuse(
                f"vLLM packs the pages of {kind.name} side by side in a block, which is not modelled",
                **{"from": source},
            )
        if any(part.keeps == "encoder" for part in kind.parts):
            raise refuse(f"the blocks of {kind.name} in vLLM are not modelled", **{"from": source})


def _block_bytes(groups: Iterable[Group], stage: range) -> int:
    """The widest group of a stage: the sum of the pages of its layers there."""
    sizes = [sum(page.bytes * sum(layer in stage for layer in page.layers) for page in group.pages) for group in groups]
    return max(sizes, default=0)


def _all_pages(
    kinds: Sequence[LayerKind], formats: Formats, cut: Cut, block: int, alignment: int
) -> tuple[list[Page], int]:
    """(every page, padding of a state). Where states are larger than attention's page, its block grows until it is as
    large, and states are padded to it."""
    states = [_state(kind, formats, cut) for kind in kinds if kind.has_state]
    largest = max((page.bytes for page in states), default=0)
    single = _pages(kinds, formats, cut, 1)
    if not states or not single:
        return [*_pages(kinds, formats, cut, block), *states], 0
    latent = any(not page.pads for page in single)
    each = max(page.bytes for page in single)
    block = max(block, attention_block(largest, each, max(alignment, block, MLA_ALIGNMENT if latent else 0)))
    common = max(block * each, largest)
    padded = [structs.replace(one, bytes=common, block=block) for one in states]
    return [*_pages(kinds, formats, cut, block), *padded], common - largest


def _pages(kinds: Iterable[LayerKind], formats: Formats, cut: Cut, block: int) -> list[Page]:
    """Pages of attention: keys and values of a layer are one, the keys of an indexer another."""
    found: list[Page] = []
    for kind in kinds:
        parts = [part for part in kind.parts if part.keeps == "token"]
        main = [part for part in parts if part.name != "index key"]
        index = [part for part in parts if part.name == "index key"]
        found += [_page(kind, one, formats, cut, block) for one in (main, index) if one]
    return found


def _page(kind: LayerKind, parts: Sequence[Part], formats: Formats, cut: Cut, block: int) -> Page:
    sort: Sort = "full" if not parts[0].span else "chunk" if kind.span.name.startswith("chunk") else "window"
    size = int(total(unit_bytes(part, formats, cut) for part in parts))
    return Page(kind.name, sort, kind.layers, block, block * size, int(parts[0].span), parts[0].name == "key")


def _state(kind: LayerKind, formats: Formats, cut: Cut) -> Page:
    size = int(total(unit_bytes(part, formats, cut) for part in kind.parts if part.keeps == "sequence"))
    return Page(kind.name, "state", kind.layers, 0, size)


def _groups(pages: Sequence[Page], source: str) -> tuple[Group, ...]:
    """One group if all layers need blocks alike, whatever their pages; else groups of equally many equal pages."""
    if len({(page.sort, page.span) for page in pages}) <= 1:
        return (Group(tuple(pages)),) if pages else ()
    layers: dict[Page, list[int]] = {}
    for page, equal in zip(pages, _equal(pages, source), strict=True):
        layers.setdefault(structs.replace(equal, layers=(), name=_sort_name(page)), []).extend(page.layers)
    fewest, most = min(map(len, layers.values())), max(map(len, layers.values()))
    size = most if 2 * most < 3 * fewest else fewest
    groups: list[Group] = []
    for page, own in layers.items():
        number = shard(len(own), size)
        own.sort()
        groups += [Group((structs.replace(page, layers=tuple(own[index::number])),)) for index in range(number)]
    return tuple(groups)


def _sort_name(page: Page) -> str:
    """Layers of one sort whose pages differ before they are made equal stay apart."""
    return f"{page.name}, {page.bytes} bytes"


def _equal(pages: Sequence[Page], source: str) -> list[Page]:
    """Smaller pages get more tokens, or padding where that does not come out even."""
    largest = max(page.bytes for page in pages)
    found: list[Page] = []
    for page in pages:
        times, rest = divmod(largest, page.bytes)
        if not rest and page.sort != "state":
            found.append(structs.replace(page, block=page.block * times, bytes=largest))
        elif page.pads:
            found.append(structs.replace(page, bytes=largest))
        else:
            raise refuse(
                f"a page of {page.bytes} bytes of {page.name} does not divide one of {largest}, and cannot be padded",
                **{"from": source, "help": "vLLM may pack such pages side by side, which is not modelled"},
            )
    return found


def attention_block(page_bytes: int, token_bytes: int, kernel: int = BLOCK) -> int:
    """Tokens of a block of attention that is as large as a state of `page_bytes`."""
    return int(up_to(shard(page_bytes, token_bytes), kernel))
