"""Cards: what a driver reports as total, what one context takes, how fast it is, and finding a row by the names people
write."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Literal

import msgspec

from vramcast.errors import Refused, near, refuse
from vramcast.units import gib

Mark = Literal["measured", "vendor", "derived", "unsourced"]
_SHOWN = 8
_BRANDS = frozenset("nvidia amd intel geforce tesla radeon instinct rtx rx gtx gpu graphics r tm".split())
"""Words that tell no card from another: `4090`, `RTX 4090` and `NVIDIA GeForce RTX 4090` are one name."""
_CDNA_2, _RDNA, _RDNA_3 = 0x90A, 0x1000, 0x1100
"""AMD's architectures as its compilers number them: gfx90a; gfx1010 on; gfx1100 on"""


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One quantity, in the unit of its field. `vendor`: stated by the maker of the card or of the software. `derived`:
    from other figures, as the source says. `unsourced`: nobody has been found who measured or stated it."""

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


class Gpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One card, or what a framework sees as one device (a MIG slice, half of a board). All sizes are bytes."""

    id: str
    driver_name: str
    vendor: str
    aliases: tuple[str, ...]
    compute_capability: str | None = None
    """NVIDIA's: `8.0`"""
    arch: str | None = None
    """what others call theirs: `gfx942`, `xe2-hpg`"""
    total_bytes: Figure
    """What cudaMemGetInfo reports, which is also torch's total: the capacity of a forecast."""
    seen_bytes: tuple[int, int] | None = None
    """Least and most that was seen as total: newer drivers keep more. Windows reports the whole board, never below."""
    smi_bytes: Figure | None = None
    """What nvidia-smi (rocm-smi, hl-smi) reports: the total and what the driver keeps. Null: no reading found."""
    vendor_bytes: Figure
    """The figure on the box, in GB of 10^9 bytes."""
    bandwidth_bytes_per_s: Figure | None = None
    """Of the card's own memory. Null here and below: unknown, or there is none."""
    bf16_flops_per_s: Figure | None = None
    """Dense, with fp32 accumulation."""
    fp8_flops_per_s: Figure | None = None
    link_bytes_per_s: Figure | None = None
    """To the other cards of a machine (NVLink, Infinity Fabric), both directions added."""
    context_bytes: Interval
    """Device memory of one context, outside torch's allocator."""
    cublas_workspace_bytes: Figure
    """PyTorch's default BLAS workspace (cuBLAS, hipBLAS) for one handle and stream; it lives in torch's allocator."""
    mig: bool = False
    """A slice of a card: found by its profile only."""
    modded: bool = False
    """A rebuilt board with the driver name of another: found by its id, or by name and memory."""
    usual: bool = False
    """One of the cards that a job without a card is tried on."""
    note: str = ""

    @property
    def generation(self) -> float:
        """NVIDIA's compute capability as a number: 8.0 Ampere, 9.0 Hopper. Other makers: 0."""
        return float(self.compute_capability or 0)

    @property
    def before_hopper(self) -> bool:
        """An NVIDIA card with the workspaces of Ampere and older."""
        return 0 < self.generation < 9

    @property
    def has_bf16(self) -> bool:
        """bf16 matrix units and flash attention: Ampere, CDNA 2 (gfx90a), RDNA 3 (gfx11) and newer; Intel's all."""
        if self.compute_capability is not None:
            return self.generation >= 8
        if self.arch is None or not self.arch.startswith("gfx"):
            return True
        version = int(self.arch.removeprefix("gfx"), 16)
        return _CDNA_2 <= version < _RDNA or version >= _RDNA_3


@cache
def gpus() -> tuple[Gpu, ...]:
    """Every card, in the order of the file."""
    with open(os.path.join(os.path.dirname(__file__), "gpus.json"), "rb") as file:
        return msgspec.json.decode(file.read(), type=tuple[Gpu, ...])


def usual_gpus() -> tuple[Gpu, ...]:
    """The cards that a job without a card is tried on."""
    return tuple(gpu for gpu in gpus() if gpu.usual)


def typical_gpu() -> Gpu:
    """A card for when none is named: the widest intervals of the usual cards, and no capacity of its own."""
    rows = sorted(usual_gpus(), key=lambda gpu: gpu.context_bytes.point)
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

    An id wins over a name in full, and that over words. Slices need their profile, rebuilt boards their memory.

    Raises:
        Refused: no card has all the words, or several have.
    """
    found = named(name) or _with_words(name)
    found = [gpu for gpu in found if not gpu.modded] or found
    if not found:
        raise _unknown(name)
    if len(found) > 1:
        raise _ambiguous(name, found)
    return found[0]


def named(name: str) -> list[Gpu]:
    """Every card that has this id or else is called so in full: several where one driver name stands for several."""
    plain = name.strip().lower()
    by_id = [gpu for gpu in gpus() if gpu.id == plain]
    key = _key(name)
    return by_id or [gpu for gpu in _with_digits(name) if key and key in _keys(gpu)]


def _with_digits(name: str) -> Iterator[Gpu]:
    """Rows that can match at all, found fast: they have every number of the name."""
    digits = re.findall(r"\d+", name)
    for gpu in gpus():
        text = " ".join((gpu.id, gpu.driver_name, *gpu.aliases))
        if all(number in text for number in digits):
            yield gpu


def _keys(gpu: Gpu) -> set[str]:
    """A row's full names: id, driver's name alone and with the memory on the box, aliases."""
    memory = f"{gpu.vendor_bytes.value // 10**9}GB"
    return {_key(text) for text in (gpu.id, gpu.driver_name, f"{gpu.driver_name} {memory}", *gpu.aliases)}


def _key(text: str) -> str:
    return "".join(word for word in _words(text) if word not in _BRANDS)


def _with_words(name: str) -> list[Gpu]:
    wanted = set(_words(name))
    sliced = any(word == "mig" or re.fullmatch(r"\d+g\.\d+gb", word) for word in wanted)
    return [gpu for gpu in _with_digits(name) if wanted and gpu.mig == sliced and wanted <= _row_words(gpu)]


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
    spaced = re.sub(r"\b(rtx|gtx|rx)(?=\d|pro)", r"\1 ", text.lower())
    return re.findall(r"[a-z0-9.]+", re.sub(r"\b(\d+)\s*g(?:i?b)?\b(?!\.)", r"\1gb", spaced))


def _unknown(name: str) -> Refused:
    spellings = [spelling for gpu in gpus() for spelling in (gpu.id, gpu.id.rpartition("-")[0], gpu.driver_name)]
    if name.strip().lower() == "auto":
        return refuse("gpu = auto reads this machine: only a flag can say it", use="--gpu auto")
    return refuse(f"unknown GPU {name!r}", near=near(name, spellings), help="`vramcast list gpus` shows every card")


def _ambiguous(name: str, found: list[Gpu]) -> Refused:
    """All variants with their totals; where the driver has one name for all of them, how to tell them apart."""
    shown = ", ".join(f"{gpu.id} ({gib(gpu.total_bytes.value)})" for gpu in found[:_SHOWN])
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    one_name = len({gpu.driver_name for gpu in found}) == 1
    memory = f"{found[-1].vendor_bytes.value // 10**9}GB"
    choose = f"their driver name is the same: write the id, or add the memory: {name.strip()} {memory}"
    return refuse(f"gpu {name!r} is ambiguous", **{"one of": shown + more, "help": choose if one_name else ""})
