"""The settings of PYTORCH_ALLOC_CONF, read as PyTorch reads them.

Source: c10/core/AllocatorConfig.cpp and c10/cuda/CUDAAllocatorConfig.cpp (torch 2.13). Of the variables
PYTORCH_CUDA_ALLOC_CONF, PYTORCH_HIP_ALLOC_CONF and PYTORCH_ALLOC_CONF the first that is set is read, alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from msgspec import Struct

from vramcast.errors import Mistakes, near, refuse
from vramcast.memory.alloc_words import UNLIMITED, Value, Words, decimal, is_power, mib, whole
from vramcast.memory.segments import LARGE, SHARED
from vramcast.units import MIB

INTERVALS = 16
"""sizes from 1 MiB to 64 GiB, by powers of two: each has its own number of divisions"""
_THREADS = 128


class AllocatorSettings(Struct, frozen=True, kw_only=True):
    """What the text sets; the defaults are PyTorch's."""

    text: str = ""
    large_segment_size: int = SHARED
    """a segment that tensors from 1 to 10 MiB share; the page of expandable segments of the large pool"""
    max_split_size: int = UNLIMITED
    """blocks from this size on are not split"""
    max_non_split_rounding: int = SHARED
    """a block that is not split serves what is less than this smaller"""
    roundup_power2_divisions: tuple[int, ...] = (0,) * INTERVALS
    """steps between two powers of two to which a size is rounded up; 0 and 1: none"""
    garbage_collection_threshold: float = 0.0
    """share of the allowed memory above which unused segments are freed; 0: never"""
    per_process_memory_fraction: float = 1.0
    """share of the card that may be reserved"""
    expandable_segments: bool = False
    throw_on_cudamalloc_oom: bool = False
    """an allocation above the allowed memory fails at once: the cache is not freed for it"""

    def allowed(self, total: int | None) -> int | None:
        """Bytes that the process may reserve on a card of `total` bytes; None: as many as it gets."""
        if total is None or self.per_process_memory_fraction >= 1:
            return None
        return int(self.per_process_memory_fraction * total)  # setMemoryFraction computes in double as well


Changes: TypeAlias = dict[str, Any]
Read: TypeAlias = Callable[[str, Value, Mapping[str, Any]], Changes]
"""(key, value, fields so far) -> fields that change"""


@lru_cache(16)
def parse(text: str, where: str = "PYTORCH_ALLOC_CONF") -> AllocatorSettings:
    """The settings of a text; `where` it was said.

    Raises:
        Refused: PyTorch would raise, or what the text asks for is not modelled.
    """
    mistakes = Mistakes()
    entries: list[tuple[str, Value]] = []
    with mistakes.collect():
        entries.extend(Words(text).entries())
    # large_segment_size_mb first: other sizes may not be below it
    entries.sort(key=lambda entry: entry[0] != "large_segment_size_mb")
    fields: dict[str, Any] = {}
    for key, value in entries:
        with mistakes.collect():
            fields |= _reader(key)(key, value, fields)
    for mistake in mistakes.found:
        mistake.said = {"in": where, **mistake.said}
    mistakes.done()
    fields.setdefault("max_non_split_rounding", fields.get("large_segment_size", SHARED))
    return AllocatorSettings(text=text, **fields)


def _reader(key: str) -> Read:
    try:
        return _KEYS[key]
    except KeyError:
        raise refuse(
            f"unknown allocator setting {key!r}", near=lambda: near(key, _KEYS), allowed=", ".join(_KEYS)
        ) from None


# --- values -----------------------------------------------------------------------------------------------------------


def _count(key: str, value: Value) -> int:
    number = whole(value) if isinstance(value, str) else None
    if number is None:
        raise refuse(f"{key}:{_shown(value)} is not a whole number", allowed=f"{key}:64")
    return number


def _segment(key: str, value: Value, _: Mapping[str, Any]) -> Changes:
    count, least = _count(key, value), LARGE // MIB + 1
    if count < least:
        raise refuse(f"{key}:{count} is too small", allowed=f"MiB, from {least} up")
    return {"large_segment_size": mib(count)}


def _limit(field: str) -> Read:
    """A size that may not be below a shared segment's."""

    def read(key: str, value: Value, so_far: Mapping[str, Any]) -> Changes:
        count, least = _count(key, value), so_far.get("large_segment_size", SHARED) // MIB
        if count < least:
            raise refuse(f"{key}:{count} is too small", allowed=f"MiB, from {least} (large_segment_size_mb) up")
        return {field: mib(count)}

    return read


def _share(key: str, value: Value, _: Mapping[str, Any]) -> Changes:
    """A share of the card may be all of it or nothing; a threshold may not."""
    number = decimal(value) if isinstance(value, str) else None
    ends = key == "per_process_memory_fraction"
    if number is None or not (0 <= number <= 1 if ends else 0 < number < 1):
        allowed = "from 0 to 1" if ends else "above 0 and below 1"
        raise refuse(f"{key}:{_shown(value)} is no share", allowed=allowed)
    return {key: number}


def _flag(key: str, value: Value, _: Mapping[str, Any]) -> Changes:
    if value not in ("True", "False"):
        raise refuse(f"{key}:{_shown(value)} is neither True nor False", allowed="True, False")
    return {key: value == "True"}


def _divisions(key: str, value: Value, so_far: Mapping[str, Any]) -> Changes:
    """`[256:1,512:2,>:8]`, sizes in MiB: sizes below the first named one get its divisions, `>` those above the last.
    A single number is for all sizes."""
    if isinstance(value, str):
        count = _count(key, value)
        if not is_power(count):
            raise refuse(f"{key}:{value} is no power of two", allowed=f"{key}:4")
        return {key: (count,) * INTERVALS}
    divisions: list[int] = list(so_far.get(key, (0,) * INTERVALS))
    last, first = 0, True
    for name, text in value:
        count = _count(f"{key}: {name}", text)
        if count and not is_power(count):
            raise refuse(f"{key}: {name}:{text} has no power of two", allowed="powers of two; 0 for none")
        if name == ">":
            divisions[last + 1 :] = [count] * (INTERVALS - 1 - last)
            continue
        size = whole(name) or 0
        if not is_power(size):
            raise refuse(f"{key}: {name}:{text} is for no power of two of MiB", allowed="powers of two, and >")
        last = min(size.bit_length() - 1, INTERVALS - 1)
        if first:
            divisions[:last] = [count] * last
            first = False
        divisions[last] = count
    return {key: tuple(divisions)}


def _backend(key: str, value: Value, _: Mapping[str, Any]) -> Changes:
    native = "native: PyTorch's caching allocator, the default"
    if value in ("cudaMallocAsync", "hipMallocAsync"):
        raise refuse(f"{key}:{value} is not modelled: CUDA's own pool decides what it reserves", allowed=native)
    if value != "native":
        raise refuse(f"{key}:{_shown(value)} is unknown", allowed=native)
    return {}


def _unused(read: Read) -> Read:
    """Checked, without effect on the GPU's memory: of the host's allocator, of locks, of CUDA graphs."""

    def checked(key: str, value: Value, so_far: Mapping[str, Any]) -> Changes:
        read(key, value, so_far)
        return {}

    return checked


def _number(holds: Callable[[int], bool] = lambda count: True, allowed: str = "") -> Read:
    def read(key: str, value: Value, _: Mapping[str, Any]) -> Changes:
        if not holds(_count(key, value)):
            raise refuse(f"{key}:{_shown(value)} is out of range", allowed=allowed)
        return {}

    return read


def _passed(key: str, value: Value, _: Mapping[str, Any]) -> Changes:
    """PyTorch passes over wrong values as well."""
    return {}


def _shown(value: Value) -> str:
    return value if isinstance(value, str) else f"[{','.join(f'{name}:{text}' for name, text in value)}]"


_KEYS: dict[str, Read] = {
    "expandable_segments": _flag,
    "max_split_size_mb": _limit("max_split_size"),
    "max_non_split_rounding_mb": _limit("max_non_split_rounding"),
    "large_segment_size_mb": _segment,
    "roundup_power2_divisions": _divisions,
    "garbage_collection_threshold": _share,
    "per_process_memory_fraction": _share,
    "throw_on_cudamalloc_oom": _flag,
    "backend": _backend,
    # address space only; main of August 2026
    "expandable_segments_reserve": _passed,
    "expandable_segments_reserve_by_class": _passed,
    "graph_capture_record_stream_reuse": _unused(_flag),
    "release_lock_on_cudamalloc": _unused(_flag),
    "release_lock_on_hipmalloc": _unused(_flag),
    "pinned_use_cuda_host_register": _unused(_flag),
    "pinned_use_hip_host_register": _unused(_flag),
    "pinned_use_background_threads": _unused(_flag),
    "pinned_free_catch_all": _unused(_flag),
    "pinned_num_register_threads": _number(
        lambda count: is_power(count) and count <= _THREADS, f"powers of two up to {_THREADS}"
    ),
    "pinned_reserve_segment_size_mb": _number(lambda count: count > 0, "MiB, from 1 up"),
    "pinned_max_round_threshold_mb": _number(),
    "pinned_max_cached_size_mb": _number(),
}
