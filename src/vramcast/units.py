"""Quantities as people write them: `4k` tokens, `80GiB`, `0.45`. Bytes are `int` inside; GiB is for people."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from math import isqrt

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
PPM = 1_000_000
LARGEST = (1 << 63) - 1
"""The largest size: an int64 of the array reading holds it."""

_BYTES = {"b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_DIGITS = 40
"""characters of a number: more are no quantity, and cost"""
_QUANTITY = re.compile(r"\s*([+-]?\d[\d_]*(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_count(text: str) -> int:
    """`4096`, `4_096`, `4k` (k = 1024: sequence lengths are written so).

    Raises:
        ValueError: not a whole number.
    """
    match = _QUANTITY.fullmatch(text)
    if not match or match[2].lower() not in ("", "k", "m"):
        raise ValueError(f"{text!r} is not a whole number such as 4096 or 4k")
    if len(match[1]) > _DIGITS:
        raise ValueError("too large")
    value = Decimal(match[1].replace("_", "")) * {"": 1, "k": KIB, "m": MIB}[match[2].lower()]
    if value != int(value):
        raise ValueError(f"{text!r} is not a whole number")
    return int(value)


def parse_bytes(text: str) -> int:
    """`80GiB`, `24GB`, `512MiB`, `1B`: a unit is required, so that nobody has to guess which giga was meant.

    Raises:
        ValueError: no number, no unit, or a fraction of a byte.
    """
    match = _QUANTITY.fullmatch(text)
    if not match or match[2].lower() not in _BYTES:
        raise ValueError(f"{text!r} needs a unit: 80GiB, 24GB, 512MiB")
    if len(match[1]) > _DIGITS:
        raise ValueError("too large")
    value = Decimal(match[1].replace("_", "")) * _BYTES[match[2].lower()]
    if value != int(value):
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(value)


def divisors(number: int) -> list[int]:
    """Every number that divides `number`, the smallest first."""
    small = [one for one in range(1, isqrt(number) + 1) if number % one == 0]
    return [*small, *(number // one for one in reversed(small) if one * one != number)]


def show_bytes(value: int) -> str:
    """Bytes as `parse_bytes` reads them back exactly: the largest binary unit that divides them."""
    for unit, size in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if value and value % size == 0:
            return f"{value // size}{unit}"
    return f"{value}B"


def gib(value: int) -> str:
    """Bytes for people: `14.19 GiB`, or MiB and KiB when a GiB figure would round to nothing."""
    if abs(value) >= GIB // 10:
        return f"{value / GIB:,.2f} GiB"
    if abs(value) >= MIB // 10:
        return f"{value / MIB:,.2f} MiB"
    return f"{value / KIB:,.2f} KiB" if abs(value) >= KIB else f"{value} B"


def ppm(fraction: float | str) -> int:
    """A fraction in parts per million, so that no byte count ever goes through a float.

    Raises:
        ValueError: not a number, or finer than one part per million.
    """
    try:
        parts = Decimal(str(fraction)) * PPM
    except InvalidOperation:
        raise ValueError(f"{fraction!r} is not a decimal fraction such as 0.45") from None
    if not parts.is_finite():
        raise ValueError(f"{fraction!r} is not a decimal fraction such as 0.45")
    if parts != int(parts):
        raise ValueError(f"{fraction!r} is finer than one part per million")
    return int(parts)
