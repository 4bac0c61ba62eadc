"""Headers of safetensors files: dtypes, shapes and bytes, shards, and every way in which a folder can be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramcast.catalog.checkpoint import BITS, INDEX, Entry, read_checkpoint, read_header
from vramcast.errors import Refused

Tensors = dict[str, tuple[str, list[int], int]]
TENSORS: Tensors = {
    "a.weight": ("BF16", [4, 8], 64),
    "a.weight_packed": ("I32", [4, 1], 16),
    "b.weight": ("F8_E4M3", [4, 4], 16),
    "b.scale": ("F8_E8M0", [4], 4),
    "c": ("F4", [4, 4], 8),
    "d": ("U8", [0], 0),
}


def write(path: Path, tensors: Tensors, lost: int = 0, **changes: Any) -> None:
    """A file with these tensors; `lost` bytes are missing at its end."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    header.update(changes)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(end - lost))


def test_one_file(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", TENSORS)
    write(tmp_path / "consolidated.safetensors", {"same": ("BF16", [4, 8], 64)})  # the same weights once more
    found = read_checkpoint(str(tmp_path))
    assert found.bytes == 64 + 16 + 16 + 4 + 8
    assert found.tensors["a.weight"] == Entry("BF16", (4, 8), 64, "model.safetensors")
    assert found.dtypes() == {"BF16": 64, "I32": 16, "F8_E4M3": 16, "F8_E8M0": 4, "F4": 8, "U8": 0}


def test_shards_with_an_index(tmp_path: Path) -> None:
    write(tmp_path / "x-1.safetensors", {"a": ("BF16", [2], 4)})
    write(tmp_path / "x-2.safetensors", {"b": ("F32", [2], 8), "unused": ("F32", [2], 8)})
    write(tmp_path / "other.safetensors", {"z": ("F32", [2], 8)})
    index = {"metadata": {}, "weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}}
    (tmp_path / INDEX).write_text(json.dumps(index))
    found = read_checkpoint(str(tmp_path))
    assert {name: entry.file for name, entry in found.tensors.items()} == index["weight_map"]
    assert found.bytes == 12


def test_shards_without_an_index(tmp_path: Path) -> None:
    for number in (1, 2):
        write(tmp_path / f"model-0000{number}-of-00002.safetensors", {f"t{number}": ("BF16", [2], 4)})
    assert read_checkpoint(str(tmp_path)).bytes == 8


def test_a_dtype_that_is_newer_than_this_file(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {"a": ("F2_NEW", [4, 4], 4)})
    assert read_checkpoint(str(tmp_path)).dtypes() == {"F2_NEW": 4}
    assert "F2_NEW" not in BITS


def _refusal(folder: Path) -> str:
    with pytest.raises(Refused) as caught:
        read_checkpoint(str(folder))
    return str(caught.value)


def test_no_folder_and_no_files(tmp_path: Path) -> None:
    assert "no such folder" in _refusal(tmp_path / "nowhere")
    assert "holds no safetensors file" in _refusal(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    assert "its weights are pickles" in _refusal(tmp_path)


def test_a_missing_shard(tmp_path: Path) -> None:
    write(tmp_path / "model-00001-of-00003.safetensors", {"a": ("BF16", [2], 4)})
    lost = "2 of 3 shards are missing: model-00002-of-00003.safetensors, model-00003-of-00003.safetensors"
    assert lost in _refusal(tmp_path)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    assert "1 of 1 shards are missing: gone.safetensors" in _refusal(tmp_path)


def test_a_tensor_that_no_file_has(tmp_path: Path) -> None:
    write(tmp_path / "x.safetensors", {"a": ("BF16", [2], 4)})
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "x.safetensors", "b": "x.safetensors"}}))
    assert f"1 tensors of {INDEX} are in no file, the first is b" in _refusal(tmp_path)


@pytest.mark.parametrize("text", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}'])
def test_an_index_without_a_map(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_text(text)
    assert "has no weight_map" in _refusal(tmp_path)


def test_an_index_that_is_no_json(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text("{")
    assert "is not JSON" in _refusal(tmp_path)


def test_all_files_that_are_cut_off(tmp_path: Path) -> None:
    for number in (1, 2):
        write(tmp_path / f"x-0000{number}-of-00002.safetensors", {f"t{number}": ("BF16", [512], 1024)}, lost=24)
    text = _refusal(tmp_path)
    assert text.count("is cut off: 24 of 1,024 bytes are missing") == 2


@pytest.mark.parametrize("content", [b"", b"1234", b"\xff" * 8, (1 << 40).to_bytes(8, "little"), b"\x02" + bytes(7)])
def test_no_safetensors_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    assert "is no safetensors file, or is cut off in its header" in _refusal(tmp_path)


@pytest.mark.parametrize("header", [b"{]", b"[1]", b'{"a": 1}', b'{"a": {"dtype": "F32"}}'])
def test_wrong_headers(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert "the header of" in _refusal(tmp_path)


@pytest.mark.parametrize(
    "row",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]},
        {"dtype": "NEW", "shape": [2], "data_offsets": [8, 0]},
    ],
)
def test_shapes_that_are_not_their_bytes(tmp_path: Path, row: dict[str, Any]) -> None:
    write(tmp_path / "model.safetensors", {"a": ("F32", [2], 8)}, a=row)
    assert "is wrong at a" in _refusal(tmp_path)


def test_bytes_that_belong_to_no_tensor(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {"a": ("F32", [2], 8)}, lost=-8)
    assert "are 8 bytes of 16: its header is wrong" in _refusal(tmp_path)


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    for number in (1, 2):
        write(tmp_path / f"x-0000{number}-of-00002.safetensors", {"t": ("BF16", [2], 4)})
    assert "tensor t is in x-00001-of-00002.safetensors and in x-00002-of-00002.safetensors" in _refusal(tmp_path)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot read"):
        read_header(str(tmp_path / "nothing.safetensors"))
