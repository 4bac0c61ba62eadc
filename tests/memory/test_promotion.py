"""Dtypes that two dtypes make together."""

from __future__ import annotations

import pytest

from vramcast.memory.promotion import promoted


@pytest.mark.parametrize(
    ("left", "right", "together"),
    [
        ("bf16", "bf16", "bf16"),
        ("fp16", "bf16", "fp32"),
        ("bf16", "fp16", "fp32"),
        ("fp32", "fp16", "fp32"),
        ("bf16", "fp32", "fp32"),
    ],
)
def test_sixteen_bits_of_two_kinds_have_only_fp32_in_common(left: str, right: str, together: str) -> None:
    assert promoted(left, right) == together
