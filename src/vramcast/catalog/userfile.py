"""Bytes of a file that a user named: bounded, and with one clear refusal for each way in which it can be wrong."""

from __future__ import annotations

from vramcast.errors import refuse

LIMIT_BYTES = 2 * 10**6


def read_bytes(path: str) -> bytes:
    """The content of `path`.

    Raises:
        Refused: missing, a folder, not readable, empty, binary or larger than `LIMIT_BYTES`.
    """
    try:
        # One byte more than allowed is enough to know, and ends with an endless file as well.
        with open(path, "rb") as file:
            content = file.read(LIMIT_BYTES + 1)
    except FileNotFoundError:
        raise refuse(f"no such file: {path}") from None
    except IsADirectoryError:
        raise refuse(f"{path} is a folder, not a file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise refuse(f"cannot read {path!r}: {reason}") from None
    check(content, path)
    return content


def check(content: bytes, name: str) -> None:
    """Refuse what cannot be a text file of reasonable size.

    Raises:
        Refused: empty, binary or larger than `LIMIT_BYTES`.
    """
    if len(content) > LIMIT_BYTES:
        raise refuse(f"{name} is larger than {LIMIT_BYTES // 10**6} MB: not a configuration file")
    if not content.strip():
        raise refuse(f"{name} is empty")
    if b"\0" in content:
        raise refuse(f"{name} is binary, not text")
