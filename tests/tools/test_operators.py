"""Operators alone beside what their makers measured on cards (extra `trace`).

The readings are Liger's: benchmark/data/all_benchmark_data.csv, in MiB of torch.cuda.max_memory_allocated, with the
gradients, and the weights of all candidates. Cut cross-entropy: arXiv 2411.09009, table 1.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("trl")  # and with it torch, transformers, accelerate
pytest.importorskip("liger_kernel")

from tools.operators.component import Component

from vramcast.trace.recording import Recording
from vramcast.units import MIB

pytestmark = [pytest.mark.trace, pytest.mark.filterwarnings("ignore")]

A100: dict[str, Any] = {"capability": "8.0", "cublas_bytes": 8_519_680}
H100: dict[str, Any] = {"capability": "9.0", "cublas_bytes": 32 * MIB}
LLAMA: dict[str, Any] = {"hidden": 4096, "vocab": 128256, "unused_heads": 1, **A100}
ROW = 4096 * 2
LEFT = 2 * 128256 * ROW
"""a head and its gradient, which functions compiled before still hold: from what plain torch reads beside its own"""


def _peak(component: Component, when: str = "steady") -> int:
    """With the allocator's blocks of 512 bytes."""
    from tools.operators.run import run_component

    recording: Recording = run_component(component)
    sizes = [-(-storage.bytes // 512) * 512 for storage in recording.storages]
    held, highest = 0, 0
    for mark, first, end in recording.spans():
        for event in recording.events[first:end]:
            held += -sizes[event >> 1] if event & 1 else sizes[event >> 1]
            highest = max(highest, held) if mark.when == when else highest
    return highest


def _heads(kind: str, code: str, **more: Any) -> Component:
    return Component(kind=kind, code=code, **{**LLAMA, **more})  # type: ignore[arg-type]


def _logits(kind: str, code: str, vocab: int, **more: Any) -> Component:
    return Component(kind=kind, code=code, vocab=vocab, **more)  # type: ignore[arg-type]


def _pairs(kind: str, code: str, sequences: int, version: str) -> Component:
    left = LEFT + 10 * 1024 * ROW  # and its hidden states
    return _heads(kind, code, sequences=sequences, length=1024, version=version, left_bytes=left)


def _kto(code: str, sequences: int) -> Component:
    return Component(
        kind="kto", code=code, version="0.5.4", sequences=sequences, length=512, hidden=1024, vocab=128256,
        unused_heads=2, input_learns=False, left_bytes=5 * 128256 * 2048 + 15 * 512 * 2048, **H100,
    )  # type: ignore[arg-type] # fmt: skip


def _moe(code: str) -> Component:
    return Component(
        kind="moe", code=code, sequences=1, length=8192, hidden=2048, experts=8, intermediate=768, chosen=8, **H100
    )  # type: ignore[arg-type]


MEASURED: dict[str, tuple[Component, float]] = {
    "cross-entropy torch": (_logits("cross_entropy", "torch", 16384, sequences=8, length=2048, dtype="fp32"), 5120.13),
    "cross-entropy liger": (_logits("cross_entropy", "liger", 16384, sequences=8, length=2048, dtype="fp32"), 1024.33),
    "megatron": (
        _logits("vocab_parallel_cross_entropy", "megatron", 8192, sequences=2048, length=4, keeps_gradients=False),
        768.17,
    ),
    "megatron liger": (
        _logits("vocab_parallel_cross_entropy", "liger", 8192, sequences=2048, length=4, keeps_gradients=False),
        512.16,
    ),
    "head torch": (_heads("linear_cross_entropy", "torch", sequences=1, length=8192), 9162.31),
    "head liger 0.4": (_heads("linear_cross_entropy", "liger", sequences=1, length=8192, version="0.4.2"), 4466.97),
    "orpo torch": (_pairs("orpo", "torch", 4, "0.4.0"), 12184.33),
    "orpo liger": (_pairs("orpo", "liger", 4, "0.4.0"), 8209.36),
    "simpo liger": (_pairs("simpo", "liger", 4, "0.4.1"), 7723.34),
    "kto torch": (_kto("torch", 8), 9613.31),
    "kto liger": (_kto("liger", 8), 3361.00),
    "grpo torch": (_heads("grpo", "torch", sequences=4, length=1024, unused_heads=2), 13138.31),
    "grpo liger": (_heads("grpo", "liger", sequences=4, length=1024, unused_heads=2, version="0.6.1"), 7408.80),
    "experts torch": (_moe("torch"), 1761.77),
    "experts liger": (_moe("liger"), 1249.38),
}


@pytest.mark.parametrize("name", MEASURED)
def test_the_peak_is_the_reading(name: str):
    component, mib = MEASURED[name]
    assert _peak(component) == pytest.approx(mib * MIB, rel=1e-3)


def test_cut_cross_entropy_takes_its_gradients_and_a_megabyte():
    """Gemma 2 2B, 8,192 tokens: 1,163 MB for loss and gradients, beside inputs."""
    hidden, vocab, tokens = 2304, 256_000, 8192
    component = Component(
        kind="linear_cross_entropy", code="cut", sequences=1, length=tokens, hidden=hidden, vocab=vocab, iterations=1
    )
    inputs = 2 * hidden * (vocab + tokens) + 8 * tokens
    assert 1163 * MIB <= _peak(component, "first") - inputs <= 1164 * MIB
