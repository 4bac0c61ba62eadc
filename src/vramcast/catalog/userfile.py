"""Bytes of a file that a user named: bounded, and with one clear refusal for each way in which it can be wrong."""

from __future__ import annotations

import os
import re
import stat
from typing import Any

import msgspec

from vramcast.errors import refuse

LIMIT_BYTES = 2 * 10**6
_OPENED = re.compile(r"/dev/(stdin|fd/\d+)|/proc/self/fd/\d+")
"""what the shell has opened for us: `<(...)`; to wait for it is what was asked for, as with standard input"""


def read_bytes(path: str, limit_bytes: int = LIMIT_BYTES, what: str = "configuration file") -> bytes:
    """The content of `path`, which should be a `what`.

    Raises:
        Refused: missing, a folder, a pipe or a device, not readable, empty, binary or larger than `limit_bytes`.
    """
    try:
        if not stat.S_ISREG(mode := os.stat(path).st_mode) and not stat.S_ISDIR(mode) and not _OPENED.fullmatch(path):
            raise refuse(f"{path} is no regular file", help="- reads standard input")
        # One byte more than allowed is enough to know, and ends with an endless file as well.
        with open(path, "rb") as file:
            content = file.read(limit_bytes + 1)
    except FileNotFoundError:
        raise refuse(f"no such file: {path}") from None
    except IsADirectoryError:
        raise refuse(f"{path} is a folder, not a file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise refuse(f"cannot read {path!r}: {reason}") from None
    check(content, path, limit_bytes, what)
    return content


def check(content: bytes, name: str, limit_bytes: int = LIMIT_BYTES, what: str = "configuration file") -> None:
    """Refuse what cannot be a text file of reasonable size.

    Raises:
        Refused: empty, binary or larger than `limit_bytes`.
    """
    if len(content) > limit_bytes:
        raise refuse(f"{name} is larger than {limit_bytes // 10**6} MB: not a {what}")
    if not content.strip():
        raise refuse(f"{name} is empty")
    if b"\0" in content:
        raise refuse(f"{name} is binary, not text")


def read_json(content: bytes) -> Any:
    """The value in JSON text, with the `Infinity` and `NaN` that Python writes and other readers refuse.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError) as error:
        if not any(word in content for word in (b"Infinity", b"NaN")):
            raise ValueError(str(error)) from None
    import json

    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
