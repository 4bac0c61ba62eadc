"""A recording: what a traced step allocated and released, in order, and what each storage was for.

Written by the child process that runs the step, read by the replay, the timeline, the snapshot and the cache. It knows
nothing of torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

from msgspec import Struct

Purpose: TypeAlias = Literal[
    "weight", "adapter", "buffer", "gradient", "state", "input", "tower", "hidden", "cast", "cache", "activation",
    "workspace",
]
"""What a storage is for. `tower` is what was made of images before the first block, `hidden` the input of a block or of
the head, `cast` a weight in another dtype, `workspace` what a library keeps without a tensor that Python sees,
`activation` everything else that an operator makes."""
When: TypeAlias = Literal["first", "steady"]
EMPTY_CACHE = -1
"""the event of torch.cuda.empty_cache()"""
NO_BLOCK = -1
"""outside of every block: embedding, head, optimizer"""


class Storage(Struct, frozen=True, array_like=True):
    """One storage, as it was born. `op`, `module` and `shape` are indices into the recording's `names`."""

    bytes: int
    purpose: Purpose
    op: int
    """the operator that made it: `aten.mm.default`"""
    module: int
    """the module that was running: `model.layers.3.mlp.up_proj`"""
    shape: int
    """shape and dtype of the first tensor on it: `2×1024×3584 bf16`"""
    block: int = NO_BLOCK
    """the block that it belongs to; the output of a block belongs to the next one"""
    stream: int = 0


class Mark(Struct, frozen=True, array_like=True):
    """From this event on the step is at an instant of a phase, and in a block."""

    event: int
    """index of the first event that belongs to it"""
    phase: str
    instant: str
    when: When
    block: int = NO_BLOCK


class Recording(Struct, frozen=True, kw_only=True):
    """Births and deaths in true order. An event is 2 × storage for a birth, 2 × storage + 1 for a death, or
    `EMPTY_CACHE`."""

    versions: dict[str, str]
    """of what ran: torch, transformers, peft ..."""
    patches: list[str]
    """the patches that applied, by their names in the table"""
    names: list[str]
    storages: list[Storage]
    events: list[int]
    marks: list[Mark]
    assumed: list[str] = []
    """what the step assumed about data: values that an operator asked for"""

    @property
    def sound(self) -> bool:
        """Whether it can be what a step left: every number points at something, nothing dies before it is born."""
        names, count, end = len(self.names), len(self.storages), len(self.events)
        born: set[int] = set()
        dead: set[int] = set()
        for code in self.events:
            storage = code >> 1
            if code == EMPTY_CACHE:
                continue
            known = (
                storage in born and storage not in dead if code & 1 else 0 <= storage < count and storage not in born
            )
            if not known:
                return False
            (dead if code & 1 else born).add(storage)
        at = [mark.event for mark in self.marks]
        return (
            bool(at)
            and at == sorted(at)
            and 0 <= at[0] <= at[-1] <= end
            and all(
                one.bytes >= 0 and 0 <= min(one.op, one.module, one.shape) <= max(one.op, one.module, one.shape) < names
                for one in self.storages
            )
        )

    def spans(self) -> Iterator[tuple[Mark, int, int]]:
        """(mark, first event, one past the last) of every mark, in order. Marks of one instant may follow each other:
        its blocks."""
        ends = [*(mark.event for mark in self.marks[1:]), *([len(self.events)] if self.marks else [])]
        for mark, end in zip(self.marks, ends, strict=True):
            yield mark, mark.event, end
