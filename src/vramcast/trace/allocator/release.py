"""Giving cached segments back to CUDA: by age, because one allocation needs them, or all.

Source: CUDACachingAllocator.cpp: garbage_collect_cached_blocks, release_available_cached_blocks, release_blocks.
"""

from __future__ import annotations

from collections.abc import Iterable

from vramcast.trace.allocator import expandable
from vramcast.trace.allocator.blocks import Block, Pool
from vramcast.trace.allocator.card import Card


def everything(card: Card, pools: Iterable[Pool]) -> None:
    """Free every segment that is one free block, and every page of expandable segments that holds nothing."""
    for pool in pools:
        for block in pool.blocks():
            if block.expandable is None and block.whole:
                _free(card, block)
        for block in pool.blocks():
            if block.expandable is not None:
                expandable.give(card, block)


def oversize(card: Card, pool: Pool, size: int, limit: int) -> bool:
    """Free the smallest cached block that is large enough and not split by `limit`, max_split_size; if there is none,
    several from the largest down. True if that is as much as the allocation needs."""
    size = max(size, limit)
    index = pool.first_fit(size)
    if index < len(pool.keys) and pool.at(index).expandable is None:
        _free(card, pool.at(index))
        return True
    freed = 0
    for block in reversed(pool.blocks()[:index]):
        if freed >= size or block.size < limit:
            break
        if block.expandable is None:
            freed += block.size
            _free(card, block)
    return freed >= size


def by_age(card: Card, pools: Iterable[Pool], searches: int, threshold: int) -> None:
    """Free segments that are at least as old as the average, until the process is below its threshold.

    An age is the number of searches for a large block since this one became free. A round does not stop when enough is
    free, so that the next one is long in coming.
    """
    target = card.reserved - threshold
    if target <= 0:
        return
    blocks = [block for pool in pools for block in pool.blocks() if block.whole]
    freed, age = 0, sum(searches - block.since for block in blocks)
    while freed < target and blocks:
        average, kept = age / len(blocks), list[Block]()
        for block in blocks:
            if searches - block.since >= average and block.expandable is None:
                freed += block.size
                age -= searches - block.since
                _free(card, block)
            else:
                kept.append(block)
        if len(kept) == len(blocks):
            return
        blocks = kept


def _free(card: Card, block: Block) -> None:
    block.pool.remove(block)
    card.give(block.size)
    card.tell("segment_free", block.address, block.size, block.pool.stream)
