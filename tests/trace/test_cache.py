"""The cache of recordings: one file a question and versions, whole or not at all, whoever writes beside."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.trace.scripts import Script
from tests.trace.traced import CONFIG, question

from vramcast.trace import cache as caching
from vramcast.trace import record
from vramcast.trace.cache import Cache
from vramcast.trace.process import Child, Tell
from vramcast.trace.question import Asked, Question
from vramcast.trace.recording import Mark, Recording, Storage

HOUR = 3600


def recording(size: int = 1) -> Recording:
    script = Script().mark("load", "built", "first")
    for index in range(300):
        script.born(str(index), size * index, f"layers.{index % 7}")
    return script.recording()


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "kept")


def files(cache: Cache, pattern: str = "*") -> list[Path]:
    return sorted(cache.directory.glob(pattern))


class Counted(Child):
    """Answers without a process, and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def record(self, question: Asked, tell: Tell = lambda progress: None) -> Recording:
        self.asked += 1
        return recording()


def test_a_recording_comes_back_as_it_was(cache: Cache) -> None:
    assert cache.load(question()) is None
    cache.save(question(), recording())
    assert cache.load(question()) == recording()


def test_equal_questions_share_a_file_and_others_do_not(cache: Cache) -> None:
    cache.save(question(), recording())
    turned = dict(reversed(CONFIG.items()))
    assert list(turned) != list(CONFIG)
    assert cache.load(question(config=turned)) == recording()
    for other in (question(seq_len=65), question(config=CONFIG | {"vocab_size": 8193}), question(cublas_bytes=1)):
        assert cache.load(other) is None


def test_what_was_kept_is_not_traced_again(cache: Cache) -> None:
    child = Counted()
    assert record(question(), child, cache=cache) == record(question(), child, cache=cache) == recording()
    assert child.asked == 1
    record(question(), child)
    assert child.asked == 2


def test_a_place_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VRAMCAST_CACHE", str(tmp_path))
    Cache().save(question(), recording())
    assert files(Cache(tmp_path / "trace"), "*.recording")


# --- versions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["installed", "_own_code"])
def test_versions_do_not_share(cache: Cache, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Of the frameworks, and of what records; the recordings of both stay."""
    cache.save(question(), recording(1))
    with monkeypatch.context() as patch:
        patch.setattr(caching, name, lambda: {"torch": "3.0.0"})
        assert cache.load(question()) is None
        cache.save(question(), recording(2))
        assert cache.load(question()) == recording(2)
    assert cache.load(question()) == recording(1)
    assert len(files(cache)) == 2


# --- damage -----------------------------------------------------------------------------------------------------------


def _cut(content: bytes, at: int) -> bytes:
    return content[:at]


def _flipped(content: bytes, at: int) -> bytes:
    changed = bytearray(content)
    changed[at] ^= 1
    return bytes(changed)


@pytest.mark.parametrize("damage", [_cut, _flipped])
@pytest.mark.parametrize("at", [0, 31, 32, 40, -1])
def test_a_damaged_file_is_removed_and_recorded_anew(
    cache: Cache, damage: Callable[[bytes, int], bytes], at: int
) -> None:
    """Cut off or changed, in its checksum or behind it."""
    cache.save(question(), recording())
    (file,) = files(cache)
    file.write_bytes(damage(file.read_bytes(), at))
    assert cache.load(question()) is None
    assert files(cache) == []
    child = Counted()
    record(question(), child, cache=cache)
    assert child.asked == 1
    assert cache.load(question()) == recording()


@pytest.mark.parametrize(
    "body", [b"", b"no zlib", b"x\x9c\x03\x00\x00\x00\x00\x01", b"x\x9cc`\x00\x00\x00\x02\x00\x01"]
)
def test_a_whole_file_that_is_no_recording_is_removed(cache: Cache, body: bytes) -> None:
    cache.save(question(), recording())
    (file,) = files(cache)
    file.write_bytes(caching.hashlib.sha256(body).digest() + body)
    assert cache.load(question()) is None
    assert files(cache) == []


@pytest.mark.parametrize(
    "change",
    [
        {"events": [0, 10**6]}, {"events": [0, 0]}, {"events": [1]}, {"events": [0, 1, 1]}, {"events": [-5]},
        {"marks": []}, {"names": []}, {"storages": []},
        {"marks": [Mark(10**6, "load", "built", "first")]}, {"storages": [Storage(-1, "weight", 0, 0, 0)] * 300},
    ],
)  # fmt: skip
def test_a_recording_that_no_step_left_is_recorded_anew(cache: Cache, change: dict[str, Any]) -> None:
    """Its checksum is right."""
    cache.save(question(), msgspec.structs.replace(recording(), **change))
    assert len(files(cache)) == 1
    assert cache.load(question()) is None
    assert files(cache) == []


# --- writing ----------------------------------------------------------------------------------------------------------


def test_a_directory_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    """A file stands where the directory should be."""
    (tmp_path / "file").write_text("here")
    cache = Cache(tmp_path / "file" / "below")
    cache.save(question(), recording())
    assert cache.load(question()) is None
    assert record(question(), Counted(), cache=cache) == recording()
    assert (tmp_path / "file").read_text() == "here"


def test_a_full_disk_leaves_nothing(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    cache.save(question(), recording())
    assert files(cache) == []


def test_threads_that_write_and_read_at_once(cache: Cache) -> None:
    """Nobody sees half a file, and nothing is left beside the files."""

    def work(index: int) -> bool:
        asked = question(seq_len=10 + index % 3)
        cache.save(asked, recording(index % 3))
        return cache.load(asked) == recording(index % 3)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(60)))
    assert len(files(cache)) == len(files(cache, "*.recording")) == 3


WRITER = """
import sys
from pathlib import Path

import msgspec

from vramcast.trace.cache import Cache
from vramcast.trace.question import Question
from vramcast.trace.recording import Recording

question, recording = map(msgspec.json.decode, sys.stdin.buffer)
for _ in range(20):
    Cache(Path(sys.argv[1])).save(msgspec.convert(question, Question), msgspec.convert(recording, Recording))
"""


def test_processes_that_write_while_another_reads(cache: Cache) -> None:
    command = [sys.executable, "-c", WRITER, str(cache.directory)]
    writers = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(2)]
    for writer in writers:
        assert writer.stdin is not None
        with writer.stdin as pipe:
            pipe.write(msgspec.json.encode(question()) + b"\n" + msgspec.json.encode(recording()) + b"\n")
    seen: list[Recording | None] = []
    while any(writer.poll() is None for writer in writers):
        seen.append(cache.load(question()))
    assert [writer.returncode for writer in writers] == [0, 0]
    seen.append(cache.load(question()))
    first = next(index for index, found in enumerate(seen) if found is not None)
    assert all(found == recording() for found in seen[first:])
    assert len(files(cache)) == 1


# --- how much is kept -------------------------------------------------------------------------------------------------


def _aged(cache: Cache, asked: Question, hours: float) -> None:
    """Save, and let the file look as if it was used so long ago."""
    before = set(files(cache))
    cache.save(asked, recording())
    (new,) = set(files(cache)) - before
    then = new.stat().st_mtime - hours * HOUR
    os.utime(new, (then, then))


def test_those_that_were_not_used_for_longest_go(cache: Cache) -> None:
    cache.kept = 3
    lengths = (10, 11, 12)
    for hours, length in zip((9, 8, 7), lengths, strict=True):
        _aged(cache, question(seq_len=length), hours)
    assert cache.load(question(seq_len=10)) is not None  # used just now
    cache.save(question(seq_len=13), recording())
    assert [cache.load(question(seq_len=length)) is not None for length in (*lengths, 13)] == [True, False, True, True]


def test_what_a_writer_left_is_swept_up_later(cache: Cache) -> None:
    cache.directory.mkdir()
    old, new = cache.directory / "old.part", cache.directory / "new.part"
    for part in (old, new):
        part.write_bytes(b"half")
    os.utime(old, (0, 0))
    cache.save(question(), recording())
    assert [path.name for path in files(cache, "*.part")] == ["new.part"]
