"""A predicted memory snapshot: its entries, its segments, its bytes, and whether PyTorch's own viewer reads it."""

from __future__ import annotations

import os
import pickle
import pickletools
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.trace.scripts import Script

from vramcast.errors import Refused
from vramcast.trace.allocator import parse
from vramcast.trace.recording import Recording
from vramcast.trace.snapshot import snapshot, write_snapshot
from vramcast.units import MIB

_READ_BY_THE_VIEWER = set(
    "PROTO FRAME STOP MARK MEMOIZE BINGET LONG_BINGET EMPTY_DICT SETITEM SETITEMS EMPTY_LIST APPEND APPENDS BININT "
    "BININT1 BININT2 LONG1 BINFLOAT NONE NEWTRUE NEWFALSE SHORT_BINUNICODE BINUNICODE".split()
)
"""opcodes of MemoryViz.js, as far as plain data needs them"""


def step() -> Recording:
    script = Script().mark("load", "weights", "first").born("w", 30 * MIB, "model.layers.0.mlp", "weight", "empty")
    script.mark("update", "forward").born("a", 3 * MIB, "model.layers.0.mlp.up").born("b", 0).born("c", 100)
    return script.mark("update", "backward").dead("a", "b").empty().recording()


def actions(made: dict[str, Any]) -> list[str]:
    return [entry["action"] for entry in made["device_traces"][0]]


def test_entries_are_what_the_allocator_does() -> None:
    assert actions(snapshot(step(), parse(""))) == [
        *("segment_alloc", "alloc"),  # w
        *("segment_alloc", "alloc"),  # a
        *("segment_alloc", "alloc"),  # c; b has no bytes
        *("free_requested", "free_completed", "segment_free"),  # a, and the empty cache
    ]


def test_expandable_segments_are_mapped_and_unmapped() -> None:
    made = snapshot(step(), parse("expandable_segments:True"))
    assert actions(made)[:4] == ["segment_map", "alloc", "alloc", "segment_map"]  # a lies behind w in its pages
    assert all(segment["is_expandable"] for segment in made["segments"])


def test_an_allocation_says_its_tensor_its_operator_its_modules_and_its_phase() -> None:
    entry = snapshot(step(), parse(""))["device_traces"][0][3]
    assert (entry["size"], entry["category"], entry["time_us"]) == (3 * MIB, "activation", 1)
    assert [f"{frame['filename']}: {frame['name']}" for frame in entry["frames"]] == [
        "tensor: 3145728 bytes (activation)",
        "operator: mm",
        "module: model.layers.0.mlp.up",
        "module: model.layers.0.mlp",
        "module: model.layers.0",
        "module: model.layers",
        "module: model",
        "phase: update, forward, steady step",
    ]


def test_segments_are_those_of_the_end() -> None:
    large, small = snapshot(step(), parse(""))["segments"]
    assert (large["total_size"], large["allocated_size"], large["segment_type"]) == (30 * MIB, 30 * MIB, "large")
    assert (small["total_size"], small["allocated_size"], small["requested_size"]) == (2 * MIB, 512, 100)
    assert [(block["size"], block["state"]) for block in small["blocks"]] == [
        (512, "active_allocated"),
        (2 * MIB - 512, "inactive"),
    ]


def test_it_ends_where_memory_does() -> None:
    entry = snapshot(step(), parse(""), capacity=35 * MIB)["device_traces"][0][-1]
    assert (entry["action"], entry["size"], entry["device_free"]) == ("oom", 3 * MIB, 5 * MIB)


def test_instants_are_annotations() -> None:
    marks = [
        (each["name"], each["stage"], each["time_us"]) for each in snapshot(step(), parse(""))["external_annotations"]
    ]
    assert marks[:3] == [
        ("load, weights, first step", "START", 0),
        ("load, weights, first step", "END", 1),
        ("update, forward, steady step", "START", 1),
    ]


def test_settings_are_told_as_pytorch_tells_them() -> None:
    text = "roundup_power2_divisions:[2:4]"
    told = snapshot(step(), parse(text))["allocator_settings"]
    assert (told["PYTORCH_CUDA_ALLOC_CONF"], told["max_split_size"]) == (text, -1)  # unlimited, as an int64
    assert {size: count for size, count in told["roundup_power2_divisions"].items() if count} == {"1": 4, "2": 4}


def busy() -> Recording:
    """Two streams, gaps and an empty cache."""
    script = Script()
    for index in range(60):
        if index % 20 == 0:
            script.mark("update", f"part {index}")
        script.born(str(index), (index * 7919 % 23) * MIB + index, f"model.layers.{index % 4}", stream=index % 2 * 7)
        if index % 3 == 2:
            script.dead(str(index - 1))
        if index == 40:
            script.empty()
    return script.recording()


@pytest.mark.parametrize("text", ["", "expandable_segments:True", "max_split_size_mb:20"])
@pytest.mark.parametrize("capacity", [None, 300 * MIB])
def test_the_entries_lead_to_the_segments(text: str, capacity: int | None) -> None:
    """What the viewer does: it runs the entries, and finds every block in a segment."""
    made = snapshot(busy(), parse(text), capacity)
    blocks: dict[int, int] = {}
    reserved = 0
    for entry in made["device_traces"][0]:
        action, size = entry["action"], entry["size"]
        if action == "alloc":
            blocks[entry["addr"]] = size
        elif action == "free_completed":
            assert blocks.pop(entry["addr"]) == size
        elif action in ("segment_alloc", "segment_map"):
            reserved += size
        elif action in ("segment_free", "segment_unmap"):
            reserved -= size
    assert reserved == sum(segment["total_size"] for segment in made["segments"])
    assert blocks == {
        block["address"]: block["requested_size"]
        for segment in made["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }


# --- the file ---------------------------------------------------------------------------------------------------------


def test_the_same_recording_gives_the_same_bytes(tmp_path: Path) -> None:
    """Also after it was stored: equal texts need not be one object then."""
    copy = msgspec.msgpack.decode(msgspec.msgpack.encode(busy()), type=Recording)
    for name, recording in (("first", busy()), ("second", copy)):
        write_snapshot(recording, parse("expandable_segments:True"), str(tmp_path / name))
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def test_the_file_is_plain_data_that_the_viewer_reads(tmp_path: Path) -> None:
    write_snapshot(busy(), parse(""), str(tmp_path / "file"))
    content = (tmp_path / "file").read_bytes()
    assert {opcode.name for opcode, _, _ in pickletools.genops(content)} <= _READ_BY_THE_VIEWER
    assert pickle.loads(content) == snapshot(busy(), parse(""))
    assert any(entry.get("category") == "unknown" for entry in pickle.loads(content)["device_traces"][0])


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    write_snapshot(step(), parse(""), str(path))
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert pickle.loads(path.read_bytes())["segments"]


@pytest.mark.parametrize("name", ["", "missing/file", "nul\0"])
def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path, name: str) -> None:
    """A folder, a folder that is not there, no path at all."""
    with pytest.raises(Refused, match="cannot write the snapshot"):
        write_snapshot(step(), parse(""), f"{tmp_path}/{name}")
    assert list(tmp_path.iterdir()) == []


def test_a_device_is_written_to_and_not_replaced() -> None:
    write_snapshot(step(), parse(""), os.devnull)
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


@pytest.mark.trace
def test_pytorchs_viewer_reads_it(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="not opened with PyTorch (extra `trace`)")
    from torch.cuda import _memory_viz as viewer

    for name, text, capacity in [("plain", "", None), ("full", "expandable_segments:True", 300 * MIB)]:
        write_snapshot(busy(), parse(text), str(tmp_path / name), capacity)
        made = pickle.loads((tmp_path / name).read_bytes())
        assert "total_reserved" in viewer.segsum(made)
        assert "entries" in viewer.trace(made)
        assert "model.layers.3" in viewer.memory(made, format_flamegraph=str)
        assert "seg_" in viewer.segments(made, format_flamegraph=str)
        assert "snapshot.pickle" in viewer.trace_plot(made)
        assert "snapshot.pickle" in viewer.segment_plot(made)
