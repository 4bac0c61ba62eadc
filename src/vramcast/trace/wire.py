"""What parent and child say to each other: questions as JSON lines, answers as frames of msgpack."""

from __future__ import annotations

from typing import IO, BinaryIO, TypeAlias

import msgspec
from msgspec import Struct

from vramcast.models.adapters.adapter import AdapterCount
from vramcast.models.counted import ClassCount
from vramcast.trace.recording import Recording

_LENGTH = 8


class Progress(Struct, frozen=True, tag=True):
    """Where the child is."""

    what: str
    done: int = 0
    of: int = 0


class Recorded(Struct, frozen=True, tag=True):
    """The answer to a question."""

    recording: Recording


class Wrong(Struct, frozen=True, tag=True):
    """The question was wrong: (fact, context) of every mistake."""

    mistakes: list[tuple[str, dict[str, str]]]


class Failed(Struct, frozen=True, tag=True):
    """The traced code, or a patch, did not work: no number."""

    fact: str
    context: dict[str, str]


Answer: TypeAlias = Recorded | ClassCount | AdapterCount
Frame: TypeAlias = Progress | Answer | Wrong | Failed
_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Frame)


def send(out: BinaryIO, frame: Frame) -> None:
    """Write a frame: its length, then its bytes."""
    content = _encoder.encode(frame)
    out.write(len(content).to_bytes(_LENGTH, "big") + content)
    out.flush()


def receive(source: IO[bytes]) -> Frame | None:
    """The next frame; None if the other side is gone."""
    head = source.read(_LENGTH)
    if len(head) < _LENGTH:
        return None
    size = int.from_bytes(head, "big")
    content = source.read(size)
    return _decoder.decode(content) if len(content) == size else None
