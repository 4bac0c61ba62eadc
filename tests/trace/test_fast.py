"""The short way through FakeTensorMode: the recording of every step is the one that the long way gives."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest
from msgspec import structs
from tests.trace.traced import CONFIG, run

from vramcast.trace.question import Adapters
from vramcast.trace.recording import Recording

pytestmark = [pytest.mark.trace, pytest.mark.filterwarnings("ignore")]
LORA = {"tuning": "lora", "adapters": Adapters(rank=8, targets=None, dtype="fp32", dropout=0.1)}
AUTOCAST = {"weights_dtype": "fp32", "autocast": True}
STEPS: dict[str, dict[str, Any]] = {
    "full, flash": {},
    "full, efficient, clipped, foreach": {"attention": "efficient", "clips": True, "optimizer_impl": "foreach"},
    "full, eager, fp16": {"attention": "eager", "weights_dtype": "fp16", "compute_dtype": "fp16"},
    "full, math, loop": {"attention": "math", "optimizer_impl": "loop", "accumulation": 2},
    "autocast, recompute": {**AUTOCAST, "recompute": "plain"},
    "LoRA with dropout": LORA,
    "LoRA, autocast, recompute": {**LORA, **AUTOCAST, "recompute": "reentrant"},
    "LoRA, trainer": {**LORA, "trainer": "sft", "loss": "fused", "autocast": True, "recompute": "plain"},
    "biases, sliding windows": {"config": CONFIG | {"model_type": "qwen2", "use_sliding_window": True}},
    "experts": {
        "config": CONFIG
        | {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
    },
}


def _in_order(recording: Recording) -> Recording:
    """Deaths between two births sorted: autocast forgets its casts in the order of their addresses."""
    found: list[int] = []
    for deaths, run_of in groupby(recording.events, key=lambda event: event & 1):
        events = list(run_of)
        found += sorted(events) if deaths else events
    return structs.replace(recording, events=found)


@pytest.mark.parametrize("name", STEPS)
def test_it_records_what_the_long_way_records(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Births, deaths, what each storage is and where it was made, in the same order between the same marks."""
    pytest.importorskip("torch", reason="not traced (extra `trace`)")
    from vramcast.trace.child.fast import Fast

    taken = 0
    call = Fast.__call__

    def counted(self: Fast, *args: Any) -> Any:
        nonlocal taken
        out = call(self, *args)
        taken += out is not NotImplemented
        return out

    with monkeypatch.context() as patch:
        patch.setattr(Fast, "__call__", counted)
        fast = run(**STEPS[name])
    monkeypatch.setattr(Fast, "__call__", lambda *_: NotImplemented)
    slow = run(**STEPS[name])
    assert taken > len(slow.storages) / 2  # it is the usual way
    assert _in_order(fast) == _in_order(slow)
