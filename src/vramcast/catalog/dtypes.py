"""Dtypes as blocks: so many elements in so many bytes, scales and zero points included."""

from __future__ import annotations

import os

import msgspec

from vramcast.num import Size, stored


class Dtype(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`elements` elements take `bytes` bytes; a tensor takes `tensor_bytes` beside (one scale, code tables)."""

    id: str
    elements: int
    bytes: int
    tensor_bytes: int
    source: str

    def size(self, elements: Size) -> Size:
        """Bytes of a tensor; the last block is padded."""
        return stored(elements, self.elements, self.bytes) + self.tensor_bytes

    @property
    def bits(self) -> float:
        """Bits per element of a large tensor."""
        return 8 * self.bytes / self.elements


def _read() -> dict[str, Dtype]:
    with open(os.path.join(os.path.dirname(__file__), "dtypes.json"), "rb") as file:
        rows = msgspec.json.decode(file.read(), type=tuple[Dtype, ...])
    return {row.id: row for row in rows}


DTYPES = _read()
"""Every dtype by its name."""

BYTES = {row.id: row.bytes for row in DTYPES.values() if row.elements == 1}
"""Bytes per element of the dtypes that are no blocks."""
