"""What the GRPO cases share: an H100 80 GB and what is measured on it, and a comparison that tells roles apart.

As in `qwen.py`, nothing is taken from the package.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tests.golden.qwen import MIB
from tests.jobs import Instant, check, phases

TOTAL = 85_029_027_840
"""bytes cudaMemGetInfo reports: 79.19 GiB"""
CONTEXT = 547_608_330
"""0.51 GiB: one CUDA context, from start-up logs on H100"""
WORKSPACE = 32 * MIB
"""a cuBLAS handle from Hopper on; cublasLt shares it. From the first backward on the autograd thread has another"""
NCCL = 721_420_288
"""688 MiB: one communicator of 3 or 4 ranks (measured); the nearest to 8 that is known by itself"""
GRAPHS = 977_105_060
"""0.91 GiB: CUDA graphs of an 8B model in vLLM (measured)"""
RUNTIME = {1: 268_435_456, 2: 2_233_382_994}
"""0.25 GiB at one rank and 2.08 GiB at two: what vLLM takes outside PyTorch while it is profiled (measured)"""


@cache
def ask(*arguments: str) -> dict[str, Any]:
    """What `check` answers: once for all tests that look at it."""
    return check(*arguments)


def assert_group(answer: dict[str, Any], expected: dict[Instant, dict[str, int]]) -> None:
    """Every instant holds exactly these terms and bytes, and no other instant exists. A term that is not the policy's
    has its role behind its name; terms called `engine.` need none."""
    found = {instant: {_owned(term): term["bytes"] for term in phase["terms"]} for instant, phase in
             phases(answer).items()}  # fmt: skip
    assert list(found) == list(expected)
    for instant, by_hand in expected.items():
        assert {name: size for name, size in found[instant].items() if size} == {
            name: size for name, size in by_hand.items() if size
        }, instant
        assert phases(answer)[instant]["bytes"] == sum(by_hand.values()), instant


def states(answer: dict[str, Any], phase: str) -> dict[str, str]:
    """Role → what it does in a phase."""
    return next(found["states"] for (name, _, _), found in phases(answer).items() if name == phase)


def _owned(term: dict[str, Any]) -> str:
    plain = term["role"] == "policy" or term["name"].startswith("engine.")
    return term["name"] if plain else f"{term['name']} ({term['role']})"
