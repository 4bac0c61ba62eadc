"""Cards: what a driver reports as total, what one CUDA context takes, and finding a row by the names people write."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from typing import Literal

import msgspec

from vramcast.errors import Refused, near, refuse

Mark = Literal["measured", "vendor", "unsourced"]
_SHOWN = 8


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes of one quantity. `vendor`: stated by the maker of the card or of the software, not measured."""

    value: int
    mark: Mark
    source: str


class Interval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes that differ by driver and program: low <= point <= high. `assumed`: read on another card."""

    low: int
    point: int
    high: int
    mark: Literal["measured", "assumed"]
    source: str


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One card. All sizes are bytes."""

    id: str
    driver_name: str
    vendor: str
    aliases: tuple[str, ...]
    compute_capability: str
    total_bytes: Figure
    """What cudaMemGetInfo reports, which is also torch's total: the capacity of a forecast."""
    smi_bytes: Figure
    """What nvidia-smi reports: the total and what the driver keeps."""
    vendor_bytes: Figure
    """The figure on the box, in GB of 10^9 bytes."""
    context_bytes: Interval
    """Device memory of one CUDA context, outside torch's allocator."""
    cublas_workspace_bytes: Figure
    """PyTorch's default cuBLAS workspace for one handle and stream; it lives in torch's allocator."""

    @property
    def generation(self) -> float:
        """The compute capability as a number: 8.0 Ampere, 9.0 Hopper."""
        return float(self.compute_capability)

    @property
    def before_hopper(self) -> bool:
        return self.generation < 9

    @property
    def has_bf16(self) -> bool:
        """bf16 tensor cores and FlashAttention kernels: Ampere and newer."""
        return self.generation >= 8


@cache
def gpus() -> tuple[Gpu, ...]:
    """Every card, in the order of the file."""
    with open(os.path.join(os.path.dirname(__file__), "gpus.json"), "rb") as file:
        return msgspec.json.decode(file.read(), type=tuple[Gpu, ...])


def typical_gpu() -> Gpu:
    """A card for when none is named: the widest intervals of the catalogue, and no capacity of its own."""
    rows = sorted(gpus(), key=lambda gpu: gpu.context_bytes.point)
    middle = rows[len(rows) // 2]
    context = Interval(
        min(gpu.context_bytes.low for gpu in rows),
        middle.context_bytes.point,
        max(gpu.context_bytes.high for gpu in rows),
        "assumed",
        "all cards of the catalogue",
    )
    return msgspec.structs.replace(middle, id="", driver_name="any card", context_bytes=context)


def find_gpu(name: str) -> Gpu:
    """The card meant by an id (`l4-24gb`), a driver's name (`NVIDIA H100 80GB HBM3`) or words (`H100 SXM`, `rtx4090`).

    Raises:
        Refused: no card has all the words, or several have.
    """
    exact = [gpu for gpu in gpus() if name.strip().lower() in (gpu.id, gpu.driver_name.lower())]
    found = exact or _with_words(name)
    if not found:
        raise _unknown(name)
    if len(found) > 1:
        raise refuse(f"gpu {name!r} is ambiguous", **{"one of": _listed(gpu.id for gpu in found)})
    return found[0]


def _with_words(name: str) -> list[Gpu]:
    wanted = set(_words(name))
    return [gpu for gpu in gpus() if wanted and wanted <= _row_words(gpu)]


def _row_words(gpu: Gpu) -> set[str]:
    """The words of a row's names, alone and joined to their right neighbour (`rtx` and `4090` give `rtx4090`)."""
    words: set[str] = set()
    for text in (gpu.id, gpu.driver_name, *gpu.aliases):
        parts = _words(text)
        words.update(parts)
        words.update(left + right for left, right in pairwise(parts))
    return words


def _words(text: str) -> list[str]:
    """Whole words only, so that `A10` does not find an A10G; `80 GB`, `80g` and `80GiB` are all `80gb`."""
    return re.findall(r"[a-z0-9.]+", re.sub(r"\b(\d+)\s*g(?:i?b)?\b", r"\1gb", text.lower()))


def _unknown(name: str) -> Refused:
    spellings = [spelling for gpu in gpus() for spelling in (gpu.id, gpu.id.rpartition("-")[0], gpu.driver_name)]
    return refuse(f"unknown GPU {name!r}", near=near(name, spellings), help="`vramcast list gpus` shows every card")


def _listed(names: Iterable[str]) -> str:
    known = list(names)
    more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
    return ", ".join(known[:_SHOWN]) + more
