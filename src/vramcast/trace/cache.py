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

import msgspec
from platformdirs import user_cache_dir

from vramcast.trace.question import Question
from vramcast.trace.recording import Recording

PACKAGES = ("torch", "transformers", "peft", "accelerate", "trl", "bitsandbytes", "liger-kernel")
KEPT = 200
"""files; the ones that were used longest ago go"""
_CHECKSUM = 32
_ABANDONED = 3600
"""seconds after which nobody writes a file any more"""


class Cache:
    """A directory of at most `kept` recordings; without one, nothing is kept."""

    def __init__(self, directory: Path | None = None, kept: int = KEPT) -> None:
        self.kept = kept
        self.directory = directory or Path(os.environ.get("VRAMCAST_CACHE") or user_cache_dir("vramcast")) / "trace"

    def load(self, question: Question) -> Recording | None:
        """The recording of a question under the installed versions, if it was kept whole."""
        file = self._file(question)
        try:
            content = file.read_bytes()
        except OSError:
            return None
        body = content[_CHECKSUM:]
        try:
            if hashlib.sha256(body).digest() != content[:_CHECKSUM]:
                raise ValueError("checksum")
            recording = msgspec.msgpack.decode(zlib.decompress(body), type=Recording)
            if not recording.sound:
                raise ValueError("content")
        except (ValueError, zlib.error, msgspec.DecodeError):
            with suppress(OSError):
                file.unlink()
            return None
        with suppress(OSError):
            os.utime(file)
        return recording

    def save(self, question: Question, recording: Recording) -> None:
        """Keep a recording. A directory that cannot be written keeps nothing."""
        body = zlib.compress(msgspec.msgpack.encode(recording), 1)
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

    def _file(self, question: Question) -> Path:
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
