"""Exact bytes of a checkpoint on this machine, from the headers of its safetensors files; no weight is read.

The header is read here and not with the `safetensors` package: that gives dtypes and shapes but no bytes, refuses
dtypes that are newer than itself, and needs numpy or torch to open a file. The format is eight bytes of length, little
endian, and JSON: name → dtype, shape, first and last byte behind the header (safetensors 0.8 README, "Format").
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping
from math import prod
from typing import Any, cast

import msgspec

from vramcast.catalog.userfile import read_bytes
from vramcast.errors import Mistakes, refuse

LONGEST_HEADER = 100_000_000
"""what the safetensors package accepts"""
INDEX = "model.safetensors.index.json"
_LARGEST_INDEX = 200 * 10**6
BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
"""bits of an element; a dtype that is not here is taken at the bytes that the header gives"""


class Entry(msgspec.Struct, frozen=True):
    """A tensor of a file."""

    dtype: str
    shape: tuple[int, ...]
    bytes: int
    file: str


class Checkpoint(msgspec.Struct, frozen=True):
    """The tensors of a folder."""

    folder: str
    tensors: dict[str, Entry]

    @property
    def bytes(self) -> int:
        """Of all tensors, without headers."""
        return sum(entry.bytes for entry in self.tensors.values())

    def dtypes(self) -> dict[str, int]:
        """dtype → bytes."""
        found: dict[str, int] = {}
        for entry in self.tensors.values():
            found[entry.dtype] = found.get(entry.dtype, 0) + entry.bytes
        return found


def read_checkpoint(folder: str) -> Checkpoint:
    """The tensors of a folder with one safetensors file, several, or an index of shards.

    Raises:
        Refused: no such folder, no safetensors file, a shard or a tensor that the index names is not there, a file that
            is cut off or has no correct header. All files' mistakes at once.
    """
    if not os.path.isdir(folder):
        raise refuse(f"no such folder: {folder}")
    mistakes, tensors = Mistakes(), dict[str, Entry]()
    wanted = _index(folder)
    for file in _files(folder, wanted):
        with mistakes.collect():
            for name, entry in read_header(os.path.join(folder, file)).items():
                if name in tensors:
                    mistakes.add(f"tensor {name} is in {tensors[name].file} and in {file}", **{"from": folder})
                tensors[name] = entry
    mistakes.done()
    lost = sorted(set(wanted or ()) - set(tensors))
    if lost:
        raise refuse(f"{len(lost)} tensors of {INDEX} are in no file, the first is {lost[0]}", **{"from": folder})
    return Checkpoint(folder, {name: tensors[name] for name in tensors if wanted is None or name in wanted})


def _index(folder: str) -> dict[str, str] | None:
    """tensor → file, by the folder's index; None if it has none."""
    path = os.path.join(folder, INDEX)
    if not os.path.isfile(path):
        return None
    try:
        content = msgspec.json.decode(read_bytes(path, _LARGEST_INDEX, "index"))
    except msgspec.DecodeError as error:
        raise refuse(f"{path} is not JSON: {error}") from None
    found: Any = cast("dict[str, Any]", content).get("weight_map") if isinstance(content, dict) else None
    if not isinstance(found, dict) or not all(
        isinstance(file, str) for file in cast("dict[str, object]", found).values()
    ):
        raise refuse(f"{path} has no weight_map from tensors to files")
    return cast("dict[str, str]", found)


def _files(folder: str, wanted: Mapping[str, str] | None) -> list[str]:
    """The files to read, refused if one is missing."""
    there = sorted(os.path.basename(path) for path in glob.glob(os.path.join(glob.escape(folder), "*.safetensors")))
    if wanted is not None:
        files = sorted(set(wanted.values()))
    elif "model.safetensors" in there:  # beside it there may be the same weights in another layout (consolidated)
        files = ["model.safetensors"]
    else:
        files = there
        for file in there:
            if shard := re.fullmatch(r"(.*-)(\d+)(-of-)(\d+)(\.safetensors)", file):
                lead, first, middle, last, end = shard.groups()
                numbers = range(1, int(last) + 1)
                files = sorted(f"{lead}{number:0{len(first)}}{middle}{last}{end}" for number in numbers)
                break
    if not files:
        pickled = any(name.endswith((".bin", ".pt", ".pth")) for name in os.listdir(folder))
        raise refuse(
            f"{folder} holds no safetensors file",
            reason="its weights are pickles, whose sizes are only known by loading them" if pickled else "",
            help="save it with safe_serialization, or give the model's config.json" if pickled else "",
        )
    lost = sorted(set(files) - set(there))
    if lost:
        raise refuse(f"{len(lost)} of {len(files)} shards are missing: {', '.join(lost[:3])}", **{"from": folder})
    return files


def read_header(path: str) -> dict[str, Entry]:
    """The tensors of one file.

    Raises:
        Refused: not readable, too short, no correct header, or cut off.
    """
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or not 2 <= length <= LONGEST_HEADER or length > size - 8:
                raise refuse(f"{path} is no safetensors file, or is cut off in its header", **{"from": f"{size} bytes"})
            content = file.read(length)
    except OSError as error:
        raise refuse(f"cannot read {path!r}: {error.strerror or error}") from None
    try:
        header = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise refuse(f"the header of {path} is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise refuse(f"the header of {path} is not an object")
    return _entries(cast("dict[str, Any]", header), path, size - 8 - length)


def _entries(header: dict[str, Any], path: str, data_bytes: int) -> dict[str, Entry]:
    """Every tensor, checked against the file's length."""
    found: dict[str, Entry] = {}
    end = 0
    for name, value in header.items():
        if name == "__metadata__":
            continue
        entry, last = _entry(name, value, path)
        found[name] = entry
        end = max(end, last)
    total = sum(entry.bytes for entry in found.values())
    if end > data_bytes:
        raise refuse(f"{path} is cut off: {end - data_bytes:,} of {end:,} bytes are missing")
    if end != total or end != data_bytes:
        raise refuse(f"the tensors of {path} are {total:,} bytes of {data_bytes:,}: its header is wrong")
    return found


def _entry(name: str, value: Any, path: str) -> tuple[Entry, int]:
    """(tensor, its last byte)."""
    try:
        row = msgspec.convert(value, _Row)
    except msgspec.ValidationError as error:
        raise refuse(f"the header of {path} is wrong at {name}: {error}") from None
    first, last = row.data_offsets
    size = last - first
    bits = BITS.get(row.dtype)
    if size < 0 or first < 0 or any(one < 0 for one in row.shape) or (bits and -(-prod(row.shape) * bits // 8) != size):
        shape = " × ".join(map(str, row.shape))
        raise refuse(f"the header of {path} is wrong at {name}: {shape} of {row.dtype} are not {size:,} bytes")
    return Entry(row.dtype, row.shape, size, os.path.basename(path)), last


class _Row(msgspec.Struct):
    """A tensor in a header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]
