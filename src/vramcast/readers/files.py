"""The text of a configuration, from a file or standard input."""

from __future__ import annotations

import os
from typing import TextIO

from vramcast.catalog.userfile import LIMIT_BYTES, check, read_bytes
from vramcast.errors import refuse
from vramcast.readers.document import Document, parse


def read_text(source: str, stdin: TextIO | None) -> tuple[str, str]:
    """(name for origins and messages, text) of a file, or of `stdin` when the source is `-`.

    Raises:
        Refused: missing, a folder, empty, binary, or larger than 2 MB.
    """
    if source != "-":
        return os.path.basename(source), _decode(read_bytes(source), source)
    if stdin is None:
        raise refuse("there is no standard input to read")
    return "stdin", _read_stdin(stdin)


def _read_stdin(stdin: TextIO) -> str:
    try:
        text = stdin.read(LIMIT_BYTES + 1)
        content = text.encode()
    except UnicodeError:
        raise refuse("stdin is binary, not text") from None
    check(content, "stdin")
    return text


def _decode(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise refuse(f"{name} is binary, not text", help="a configuration is read as UTF-8") from None


def place_of(path: str, folder: str) -> str | None:
    """Where a file that a configuration names is, relative to here or to the configuration."""
    return next((each for each in (path, os.path.join(folder, path)) if os.path.isfile(each)), None)


def named_file(path: str, where: str, folder: str) -> tuple[Document, str]:
    """A file that a script names, relative to here or to the script, and its name in origins.

    Raises:
        Refused: there is none, or it cannot be read.
    """
    found = place_of(path, folder)
    if found is None:
        raise refuse(f"no such file: {path}", **{"from": where, "help": "it is looked for here and beside the script"})
    name, text = read_text(found, None)
    return parse(name, text), name
