"""Quantities as people write them, read and written back exactly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.units import GIB, KIB, LARGEST, MIB, TIB, gib, parse_bytes, parse_count, ppm, show_bytes


@given(st.integers(0, LARGEST))
def test_shown_bytes_read_back_exactly(value: int) -> None:
    assert parse_bytes(show_bytes(value)) == value


@given(st.integers(-LARGEST, LARGEST))
def test_counts_read_back_exactly(value: int) -> None:
    assert parse_count(str(value)) == value
    assert parse_count(f"{value:_}") == value


@given(st.integers(0, 10**6))
def test_a_fraction_is_parts_per_million(parts: int) -> None:
    assert ppm(f"{parts / 10**6:.6f}") == parts
    assert ppm(parts / 10**6) == parts


@pytest.mark.parametrize(
    ("text", "value"),
    [("4096", 4096), ("4k", 4096), (" 4K ", 4096), ("4_096", 4096), ("0.5k", 512), ("1m", MIB), ("-3", -3), ("7.0", 7)],
)
def test_counts(text: str, value: int) -> None:
    assert parse_count(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("80GiB", 80 * GIB), ("24GB", 24 * 10**9), ("512 MiB", 512 * MIB), ("1B", 1), ("0B", 0), ("2TiB", 2 * TIB),
        ("1.5gib", 3 * GIB // 2), ("1TB", 10**12), ("3KiB", 3 * KIB), ("3kb", 3000), ("79.15GB", 79_150_000_000),
    ],
)  # fmt: skip
def test_bytes(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "k", "4.5", "0.0001k", "4 096", "4x", "four", "0x10", "1e3", "4kk", "80GiB"])
def test_not_a_count(text: str) -> None:
    with pytest.raises(ValueError, match="is not a whole number"):
        parse_count(text)


@pytest.mark.parametrize("text", ["", "80", "80G", "80g", "GiB", "eighty GiB", "80 Gi B", "1e9B"])
def test_bytes_need_a_unit(text: str) -> None:
    with pytest.raises(ValueError, match="needs a unit: 80GiB, 24GB, 512MiB"):
        parse_bytes(text)


def test_no_fraction_of_a_byte() -> None:
    with pytest.raises(ValueError, match=r"'0\.3B' is not a whole number of bytes"):
        parse_bytes("0.3B")


@pytest.mark.parametrize("fraction", ["half", "", "nan", "inf", float("nan"), float("-inf")])
def test_not_a_fraction(fraction: str | float) -> None:
    with pytest.raises(ValueError, match=r"is not a decimal fraction such as 0\.45"):
        ppm(fraction)


def test_a_fraction_finer_than_one_part_per_million() -> None:
    with pytest.raises(ValueError, match=r"'0\.4500001' is finer than one part per million"):
        ppm("0.4500001")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (KIB, "1.00 KiB"), (MIB // 10 + 1, "0.10 MiB"), (300 * MIB, "0.29 GiB"),
        (80 * GIB, "80.00 GiB"), (1500 * GIB, "1,500.00 GiB"), (-2 * GIB, "-2.00 GiB"),
    ],
)  # fmt: skip
def test_bytes_for_people(value: int, text: str) -> None:
    assert gib(value) == text


@pytest.mark.parametrize(("value", "text"), [(0, "0B"), (1, "1B"), (1536, "1536B"), (3 * KIB, "3KiB"), (TIB, "1TiB")])
def test_shown_bytes(value: int, text: str) -> None:
    assert show_bytes(value) == text
