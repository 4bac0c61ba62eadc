"""Which dtype two dtypes make together."""

from __future__ import annotations

from vramcast.catalog.dtypes import BYTES


def promoted(left: str, right: str) -> str:
    """The dtype of a sum or a product: the wider one; bf16 and fp16 have none of theirs in common but fp32.

    Source: c10/core/ScalarType.h, promoteTypes.
    """
    if {left, right} == {"bf16", "fp16"}:
        return "fp32"
    return left if BYTES[left] >= BYTES[right] else right
