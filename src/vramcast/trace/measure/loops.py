"""Loops over chunks of tokens: how often they run depends on the sizes, and two rounds say all."""

from __future__ import annotations

from vramcast.models.measured import NEVER
from vramcast.trace.measure.part import Cut

_LONGEST = 40
"""tensors of a round"""
_ROUNDS = 3
"""the least that are a loop"""
_STAYS = 20
"""of a round's bytes at most one in so many outlives the next round"""


def folded(cut: Cut) -> Cut:
    """The part with two rounds of each loop."""
    kept: list[int] = []
    index = 0
    keys = [tensor.key for tensor in cut.tensors]
    while index < len(keys):
        length, rounds = _loop(cut, keys, index)
        kept.extend(range(index, index + min(rounds, 2) * length))
        index += rounds * length
    return _only(cut, kept)


def _loop(cut: Cut, keys: list[tuple[str, ...]], start: int) -> tuple[int, int]:
    """(tensors of a round, rounds) of the loop that begins here; one of one where none does."""
    for length in range(1, _LONGEST + 1):
        first = keys[start : start + length]
        rounds = 1
        while keys[start + rounds * length : start + (rounds + 1) * length] == first:
            rounds += 1
        if rounds >= _ROUNDS and _repeats(cut, start, length):
            return length, rounds
    return 1, 1


def _repeats(cut: Cut, start: int, length: int) -> bool:
    """Whether the second round makes what the first one made, which is gone after it."""
    later = cut.tensors[start + 2 * length].born
    made, again = (cut.tensors[at : at + length] for at in (start, start + length))
    if any(one.bytes != other.bytes for one, other in zip(made, again, strict=True)):
        return False
    stays = sum(tensor.bytes for tensor in made if tensor.dies == NEVER or tensor.dies > later)
    return stays * _STAYS <= sum(tensor.bytes for tensor in made)


def _only(cut: Cut, kept: list[int]) -> Cut:
    """The part with these tensors alone, its steps counted anew."""
    tensors = [cut.tensors[index] for index in kept]
    steps = sorted(step for tensor in tensors for step in (tensor.born, tensor.dies) if step != NEVER)
    number = {step: index for index, step in enumerate(steps)} | {NEVER: NEVER}
    return Cut(
        tuple(sum(step < border for step in steps) for border in cut.borders),
        tuple(tensor._replace(born=number[tensor.born], dies=number[tensor.dies]) for tensor in tensors),
    )
