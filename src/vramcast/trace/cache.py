"""Recordings by question and versions, in the user's cache directory.

A file is written beside and renamed, so that a reader never sees half of one; two writers of one question write the
same. Its first bytes are a checksum: a file that does not match, or whose content no step can have left, is removed and
recorded anew.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zlib
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import time
from typing import TypeAlias, overload

import msgspec
from platformdirs import user_cache_dir

from vramcast.models.counted import ClassCount
from vramcast.trace.question import ClassQuestion, Question
from vramcast.trace.recording import Recording

PACKAGES = ("torch", "transformers", "peft", "accelerate", "trl", "bitsandbytes", "liger-kernel")
KEPT = 200
"""files; the ones that were used longest ago go"""
_CHECKSUM = 32
_ABANDONED = 3600
"""seconds after which nobody writes a file any more"""


Answer: TypeAlias = Recording | ClassCount


class Cache:
    """A directory of at most `kept` recordings; without one, nothing is kept."""

    def __init__(self, directory: Path | None = None, kept: int = KEPT) -> None:
        self.kept = kept
        self.directory = directory or Path(os.environ.get("VRAMCAST_CACHE") or user_cache_dir("vramcast")) / "trace"

    @overload
    def load(self, question: Question) -> Recording | None: ...
    @overload
    def load(self, question: ClassQuestion, kind: type[ClassCount]) -> ClassCount | None: ...
    def load(self, question: Question | ClassQuestion, kind: type[Answer] = Recording) -> Answer | None:
        """The recording of a question under the installed versions, or the count, if it was kept whole."""
        file = self._file(question)
        try:
            content = file.read_bytes()
        except OSError:
            return None
        body = content[_CHECKSUM:]
        try:
            if hashlib.sha256(body).digest() != content[:_CHECKSUM]:
                raise ValueError("checksum")
            answer = msgspec.msgpack.decode(zlib.decompress(body), type=kind)
            if not answer.sound:
                raise ValueError("content")
        except (ValueError, zlib.error, msgspec.DecodeError):
            with suppress(OSError):
                file.unlink()
            return None
        with suppress(OSError):
            os.utime(file)
        return answer

    def save(self, question: Question | ClassQuestion, answer: Answer) -> None:
        """Keep an answer. A directory that cannot be written keeps nothing."""
        body = zlib.compress(msgspec.msgpack.encode(answer), 1)
        content = hashlib.sha256(body).digest() + body
        with suppress(OSError):
            self.directory.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.directory, suffix=".part")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                os.replace(name, self._file(question))
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(name)
            self._prune()

    def _file(self, question: Question | ClassQuestion) -> Path:
        key = msgspec.json.encode((question, installed(), _own_code()), order="deterministic")
        return self.directory / f"{hashlib.sha256(key).hexdigest()}.recording"

    def _prune(self) -> None:
        """Old recordings, and what a writer that was ended left behind."""
        files = sorted(self.directory.glob("*.recording"), key=_used, reverse=True)
        left = [part for part in self.directory.glob("*.part") if _used(part) < time() - _ABANDONED]
        for file in files[self.kept :] + left:
            with suppress(OSError):
                file.unlink()


@cache
def _own_code() -> str:
    """A digest of what runs in the child, and of what a recording is: another version of it records anew."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for file in [here / "recording.py", *sorted((here / "child").rglob("*.py"))]:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _used(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def installed() -> dict[str, str]:
    """Package → version, of those that are installed."""
    found: dict[str, str] = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
