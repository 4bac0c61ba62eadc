"""PyTorch's caching allocator, as far as a formula can know it: what rounding keeps beyond the tensors themselves.

Source: c10/cuda/CUDACachingAllocator.cpp and c10/core/AllocatorConfig.h (torch 2.13).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

from vramcast.memory.plans import planned
from vramcast.memory.seat import Seat
from vramcast.memory.segments import BLOCK, LARGE, SEGMENT, Placed, place
from vramcast.memory.term import TERMS, Term, term
from vramcast.num import Size, gather, let, total

CACHED = "allocator.cached"
FRAGMENTED = "allocator.fragmented"
_SOURCE = "c10/cuda/CUDACachingAllocator.cpp: round_size, get_allocation_size, should_split"


@term("allocator.rounding", lives=lambda seat: True, basis="derived", source=_SOURCE)
def allocator_rounding(seat: Seat) -> Size:
    """What PyTorch counts as allocated beyond the tensors: the rounding of those that stay.

    Every tensor is rounded to 512 bytes. Weights are loaded first, one after the other: one of 10 MiB or more into a
    segment of its own, rounded to 2 MiB, smaller ones into segments of 20 MiB. An end of up to 1 MiB stays with its
    tensor, unusable. A layer of 43 MiB takes 44; 108 of them in a model are 108 MiB. Where Transformers reads weights
    onto the card (`device_map`; TRL from 0.26 on, one GPU) a segment for all of them is there first, and expandable
    segments have no ends: the 512 bytes remain. What blocks save for backward is placed in the same way, in the order
    in which it is saved. Left out are tensors that come for a moment, and the inputs of checkpointed blocks between
    them: they reuse what is cached.
    """

    def rule(entry: Term) -> Callable[[tuple[int, ...]], int]:
        if _placed(entry, seat):
            return _unsplit_of_one if seat.recipe.device_map else _unsplit
        return _unsplit if entry.kept(seat) and not seat.expandable else _pages

    return _over_terms(seat, "rounding", rule)


@term(CACHED, lives=lambda seat: not seat.expandable, counter="cached", basis="derived", source=_SOURCE)
def allocator_cached(seat: Seat) -> Size:
    """What the caching allocator reserves beyond what is allocated: the ends of segments that another tensor could use.

    Of later tensors of 10 MiB or more, the whole end of a segment. The high value adds the blocks kept from an earlier
    phase: they are given back before an allocation fails, but other processes cannot use them.
    """
    free = _free_of_one if seat.recipe.device_map else _free
    return _over_terms(seat, "ends", lambda entry: free if _placed(entry, seat) else _ends)


@term(
    FRAGMENTED,
    lives=lambda seat: False,  # a share of all that the instants allocate: estimate/kept.py
    counter="cached",
    basis="calibrated",
    source="catalog/spread.json: reserved over allocated memory of measured runs, by kind of job",
)
def allocator_fragmented(seat: Seat) -> Size:
    """Cached blocks that fit no later tensor: what nvidia-smi shows beyond the forecast's point.

    Tensors of many sizes come and go, and what they leave behind in split segments stays reserved. How much depends on
    their order, which a formula does not replay; a trace does. The high value is measured: nine of ten public runs of
    the same kind reserved no more (the largest such share when any one source is left out). PyTorch gives these blocks
    back before an allocation fails, so a job whose point fits gets through as a rule, slower; other processes on the
    card cannot use them. `expandable_segments:True` avoids most of it.
    """
    return 0


def _placed(entry: Term, seat: Seat) -> bool:
    return entry.fresh(seat) and not seat.expandable


def _over_terms(seat: Seat, what: str, rule: Callable[[Term], Callable[[tuple[int, ...]], int]]) -> Size:
    entries = [entry for entry in TERMS.values() if entry.tensors and entry.lives(seat) and entry.rounds(seat)]

    def rounded(entry: Term) -> Size:
        name = f"{entry.name} {what}"
        return planned(seat, name, lambda seat: (let(name, gather(rule(entry), _sizes(entry, seat))),))[0]

    return total(seat.once(f"{entry.name} {what}", lambda entry=entry: rounded(entry)) for entry in entries)


def _sizes(entry: Term, seat: Seat) -> list[Size]:
    """Bytes of every tensor of a term, layer by layer."""
    return seat.once(f"{entry.name} tensors", lambda: _by_layer(entry.tensors(seat) if entry.tensors else ()))


def _by_layer(tensors: Iterable[tuple[Size, Size]]) -> list[Size]:
    layers: dict[int, list[Size]] = {}
    for count, size in tensors:
        layers.setdefault(int(count), []).append(size)
    return [size for count, layer in sorted(layers.items()) for size in layer * count]


@lru_cache(64)
def _place(sizes: tuple[int, ...], cached: int = 0) -> Placed:
    return place(sizes, cached=cached)


def _unsplit(sizes: tuple[int, ...]) -> int:
    return _place(sizes).allocated - sum(sizes)


def _unsplit_of_one(sizes: tuple[int, ...]) -> int:
    """With one segment for all that was there before."""
    return _place(sizes, sum(sizes)).allocated - sum(sizes)


def _free(sizes: tuple[int, ...]) -> int:
    placed = _place(sizes)
    return placed.reserved - placed.allocated


def _free_of_one(sizes: tuple[int, ...]) -> int:
    placed = _place(sizes, sum(sizes))
    return placed.reserved - placed.allocated


def _pages(sizes: tuple[int, ...]) -> int:
    return sum([-size % BLOCK for size in sizes])


def _ends(sizes: tuple[int, ...]) -> int:
    """Ends of segments behind large tensors, without their own 512 bytes."""
    return sum([-size % SEGMENT - -size % BLOCK for size in sizes if size >= LARGE])
