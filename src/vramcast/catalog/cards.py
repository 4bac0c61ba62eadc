"""The cards of this machine, as nvidia-smi or rocm-smi lists them: which row of the catalogue, how many, how busy.

Everything but `_answer` is a function of text, so that recorded answers test it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from vramcast.catalog.gpus import Gpu, find_gpu, gpus, named
from vramcast.errors import Refused, near, refuse
from vramcast.units import MIB, gib

NVIDIA = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total,memory.used,mig.mode.current",
          "--format=csv,noheader,nounits")  # fmt: skip
ROCM = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json")
_TIMEOUT_S = 20
_CATALOGUE = "--gpu NAME, from `vramcast list gpus`"
_CHOOSERS = {
    "nvidia-smi": ("CUDA_VISIBLE_DEVICES",),
    "rocm-smi": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
}
"""Variables that choose cards, the strongest first."""
_NEAR_PERCENT = 10
"""How far a total may be from a row's: inline ECC takes 6 %, old drivers print what is usable."""


class Card(Struct, frozen=True):
    """One card as a tool lists it. None: the tool does not say (memory shared with the CPU)."""

    index: str
    uuid: str
    name: str
    total_bytes: int | None
    used_bytes: int | None
    mig: bool = False
    arch: str = ""
    """AMD's `gfx942`; some tools give no other name"""


class Machine(Struct, frozen=True):
    """What `--gpu auto` found."""

    gpu: Gpu
    count: int
    busy_bytes: int
    """the most that is in use on any of the cards"""
    tool: str
    warnings: list[str]


def this_machine() -> Machine:
    """The cards that a job started here would see.

    Raises:
        Refused: no tool, no card, an unknown card, cards that differ, slices.
    """
    failure: Refused | None = None
    for command, parse in ((NVIDIA, parse_nvidia), (ROCM, parse_rocm)):
        if shutil.which(command[0]) is None:
            continue
        try:
            return machine(chosen(parse(_answer(command)), os.environ, command[0]), command[0])
        except Refused as refused:
            failure = failure or refused
    raise failure or refuse("no GPU found: neither nvidia-smi nor rocm-smi is here", help=_CATALOGUE)


def _answer(command: tuple[str, ...]) -> str:
    """What a tool prints. The only place that runs one."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise refuse(f"{command[0]} did not answer within {_TIMEOUT_S} seconds", help="--gpu NAME") from None
    except (OSError, UnicodeDecodeError) as error:
        raise refuse(f"{command[0]} does not run: {error}", help="--gpu NAME") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[0]
        raise refuse(f"{command[0]} failed: {said}", help="--gpu NAME")
    return done.stdout


def parse_nvidia(text: str) -> list[Card]:
    """The lines of nvidia-smi's CSV (`NVIDIA` asks for it); memory is in MiB there."""
    found: list[Card] = []
    for line in text.strip().splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(NVIDIA[1].split(",")):
            raise refuse(f"nvidia-smi said {line.strip()!r}, which is no list of cards", help="--gpu NAME")
        index, uuid, name, total, used, mig = cells
        found.append(Card(index, uuid, name, _bytes(total, MIB), _bytes(used, MIB), mig == "Enabled"))
    return found


def parse_rocm(text: str) -> list[Card]:
    """rocm-smi's JSON: one object a card, with keys whose capitals differ by version; warnings may stand before it."""
    try:
        content = msgspec.json.decode(text[max(text.find("{"), 0) :].strip(), type=dict[str, dict[str, Any]])
    except msgspec.DecodeError:
        raise refuse("rocm-smi's answer is not the JSON that was asked for", help="--gpu NAME") from None
    found: list[Card] = []
    for card, values in content.items():
        fields = {key.lower(): str(value).strip() for key, value in values.items()}
        total, used = fields.get("vram total memory (b)", ""), fields.get("vram total used memory (b)", "")
        if card.startswith("card") and total:
            name = next((fields[key] for key in ("card series", "device name", "card model") if fields.get(key)), card)
            index = card.removeprefix("card")
            found.append(Card(index, fields.get("unique id", ""), name, _bytes(total), _bytes(used),
                              arch=fields.get("gfx version", "")))  # fmt: skip
    return found


def _bytes(text: str, unit: int = 1) -> int | None:
    """A count in a unit; None for `[N/A]`."""
    return int(text) * unit if text.isdecimal() else None


def chosen(cards: list[Card], environment: Mapping[str, str], tool: str) -> list[Card]:
    """The cards left by CUDA_VISIBLE_DEVICES or its like: numbers or the beginning of a UUID, up to the first that is
    none.

    Raises:
        Refused: there is no card, or none is left, or a slice is chosen.
    """
    if not cards:
        raise refuse("no GPU found on this machine", help=_CATALOGUE)
    variable = next((name for name in _CHOOSERS[tool] if name in environment), None)
    if variable is None:
        return cards
    found: list[Card] = []
    for word in environment[variable].split(","):
        if word.strip().startswith("MIG"):
            raise _sliced(f"{variable}={environment[variable]}")
        card = next((card for card in cards if _is_meant(card, word.strip())), None)
        if card is None:
            break
        found.append(card)
    if not found:
        raise refuse(
            f"{variable}={environment[variable]} leaves no GPU", **{"found": _listed(cards), "help": "--gpu NAME"}
        )
    return found


def _is_meant(card: Card, word: str) -> bool:
    return word == card.index or (len(word) > len("GPU-") and card.uuid.startswith(word))


def machine(cards: list[Card], tool: str) -> Machine:
    """The row that all the cards have in common.

    Raises:
        Refused: the cards differ, are cut into slices or are not in the catalogue.
    """
    if any(card.mig for card in cards):
        raise _sliced(_listed(cards))
    kinds: dict[tuple[str, int | None], Gpu | Refused] = {}
    for card in cards:
        kinds.setdefault((card.name, card.total_bytes), _row_or_refusal(card))
    rows = list(kinds.values())
    if len({row.id if isinstance(row, Gpu) else str(row) for row in rows}) > 1:
        choose = "CUDA_VISIBLE_DEVICES with CUDA_DEVICE_ORDER=PCI_BUS_ID, or --gpu NAME"
        raise refuse("the GPUs of this machine differ", **{"found": _listed(cards), "choose": choose})
    row = rows[0]
    if isinstance(row, Refused):
        raise row
    return Machine(row, len(cards), max(card.used_bytes or 0 for card in cards) + _lacking(cards, row), tool,
                   _warnings(cards, row, tool))  # fmt: skip


def _row_or_refusal(card: Card) -> Gpu | Refused:
    try:
        return identify(card)
    except Refused as refused:
        return refused


def identify(card: Card) -> Gpu:
    """The row of a card: by its name in full, by the words of its name, by its architecture; then the nearest memory.

    Raises:
        Refused: no row is called so, or none of that name has such memory.
    """
    for rule in (_by_name, _by_words, _by_arch):
        found = rule(card)
        if found:
            return _by_memory(card, found)
    spellings = [gpu.driver_name for gpu in gpus()]
    raise refuse(f"this machine's GPU is not in the catalogue: {_shown(card)}",
                 **{"near": near(card.name, spellings), "help": _CATALOGUE})  # fmt: skip


def _by_name(card: Card) -> list[Gpu]:
    return named(card.name)


def _by_words(card: Card) -> list[Gpu]:
    """rocm-smi adds words: `AMD Instinct MI300X OAM`. The longest driver name whose words are all there."""
    words = set(card.name.lower().split())
    amd = [gpu for gpu in gpus() if gpu.vendor == "AMD" and card.arch]
    found = [gpu for gpu in amd if set(gpu.driver_name.lower().split()) <= words]
    longest = max((len(gpu.driver_name.split()) for gpu in found), default=0)
    return [gpu for gpu in found if len(gpu.driver_name.split()) == longest]


def _by_arch(card: Card) -> list[Gpu]:
    """rocm-smi of some versions gives a number for a name (`0x75b0`)."""
    return [gpu for gpu in gpus() if card.arch and gpu.arch == card.arch and card.name.startswith("0x")]


def _by_memory(card: Card, rows: list[Gpu]) -> Gpu:
    """One driver name stands for boards of 8 and of 16 GB, for original and rebuilt ones, for desktop and laptop."""
    if card.total_bytes is None:
        return rows[0] if len(rows) == 1 else find_gpu(card.name)
    total = card.total_bytes
    best = min(rows, key=lambda gpu: abs(_prints(gpu) - total))
    if abs(_prints(best) - total) * 100 > _NEAR_PERCENT * total:
        known = ", ".join(f"{gpu.id} ({gib(_prints(gpu))})" for gpu in rows)
        raise refuse(f"this machine's GPU has another memory than the catalogue's: {_shown(card)}",
                     **{"known": known, "help": "--gpu NAME"})  # fmt: skip
    return best


def _prints(gpu: Gpu) -> int:
    return (gpu.smi_bytes or gpu.total_bytes).value


def _lacking(cards: list[Card], row: Gpu) -> int:
    """Memory of the row that these boards do not have (inline ECC): as good as in use."""
    return max(0, *(row.total_bytes.value - card.total_bytes for card in cards if card.total_bytes is not None), 0)


def _warnings(cards: list[Card], row: Gpu, tool: str) -> list[str]:
    found: list[str] = []
    lacking = _lacking(cards, row)
    if lacking:
        found.append(f"{tool} reports {gib(lacking)} less than a {row.id} has (ECC?): counted in busy_bytes")
    if any(card.used_bytes is None for card in cards):
        found.append(f"{tool} does not say how much of {row.driver_name} is in use: busy_bytes is taken as 0")
    return found


def _sliced(what: str) -> Refused:
    return refuse(f"MIG is on ({what}): which slice is meant is not read", help=_CATALOGUE.replace("NAME", "mig-..."))


def _listed(cards: list[Card]) -> str:
    counts = Counter(_shown(card) for card in cards)
    return ", ".join(f"{count} × {text}" for text, count in counts.items())


def _shown(card: Card) -> str:
    return f"{card.name} ({gib(card.total_bytes)})" if card.total_bytes is not None else card.name
