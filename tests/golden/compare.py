"""Compares a forecast with figures worked out by hand."""

from __future__ import annotations

from typing import Any

from tests.jobs import Instant, phases, terms


def assert_phases(answer: dict[str, Any], expected: dict[Instant, dict[str, int]]) -> None:
    """Every instant holds exactly these terms and bytes, and no other instant exists."""
    found = {instant: _held(terms(phase)) for instant, phase in phases(answer).items()}
    assert list(found) == list(expected)
    for instant, by_hand in expected.items():
        assert found[instant] == _held(by_hand), instant
        assert phases(answer)[instant]["bytes"] == sum(by_hand.values()), instant


def _held(sizes: dict[str, int]) -> dict[str, int]:
    """Terms that hold something: one may be 0 and have a high end."""
    return {name: size for name, size in sizes.items() if size}
