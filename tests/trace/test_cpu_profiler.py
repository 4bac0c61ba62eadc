"""Steps that really run, on the CPU, under PyTorch's profiler: what it saw allocated beside the trace of the same step.

The same loop, the same hooks; here tensors have data and kernels run. CUDA's own patches are left out of the trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

import pytest
from tests.trace.traced import CONFIG, question

from vramcast.trace.question import Question
from vramcast.trace.recording import NO_BLOCK, Mark, Recording

pytestmark = [pytest.mark.trace, pytest.mark.filterwarnings("ignore")]
TOLERANCE = 0.001
SCALARS = 2048
"""bytes of numbers that an operator of the CPU makes for itself"""
PHASES = ("forward", "loss", "backward", "step")
MODEL = CONFIG | {"num_hidden_layers": 3, "vocab_size": 1024}
Event = tuple[str, int]
"""("mark", number) or ("bytes", how many more)"""


class Borders:
    """Stands where the tracker is: marks become ranges of the profiler, nothing else is recorded."""

    def __init__(self) -> None:
        self.marks: list[Mark] = []
        self.modules: list[str] = []
        self.storages: list[Any] = []

    @property
    def phase(self) -> str:
        return self.marks[-1].phase

    def mark(self, phase: str, instant: str, when: Any, block: int = NO_BLOCK) -> None:
        from torch.profiler import record_function

        with record_function(f"mark {len(self.marks)}"):
            self.marks.append(Mark(0, phase, instant, when, block))

    def enter_block(self, block: int) -> None:
        last = self.marks[-1]
        self.mark(last.phase, last.instant, last.when, block)

    def __getattr__(self, name: str) -> Any:
        """What a storage is for."""
        return lambda *args, **kwargs: None


def really(asked: Question) -> tuple[list[Mark], list[Event]]:
    """Run a step's own code on data."""
    import torch
    from torch.profiler import ProfilerActivity, profile
    from transformers import AutoConfig, AutoModelForCausalLM

    from vramcast.trace.child.model import DTYPES, Parts
    from vramcast.trace.child.optimizers import optimizer_of
    from vramcast.trace.child.recompute import checkpoint_kwargs
    from vramcast.trace.child.step import _train
    from vramcast.trace.child.watch import Watch

    fields = dict(asked.config)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields, use_cache=False)
    model = AutoModelForCausalLM.from_config(
        config, dtype=DTYPES[asked.weights_dtype], attn_implementation="eager"
    ).train()
    if asked.recompute != "none":
        on_the_host = {"preserve_rng_state": False}  # the generators' states lie where all tensors do here
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=checkpoint_kwargs(asked) | on_the_host)
    borders: Any = Borders()
    parts = Parts(model)
    watch, optimizer = Watch(parts, borders), optimizer_of(asked, parts, borders)
    with (
        torch.backends.mkldnn.flags(enabled=False),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
    ):
        _train(asked, parts, watch, optimizer, lambda *_: None)
        borders.mark("end", "end", "steady")
    return borders.marks, list(_events(profiler.profiler.kineto_results.events()))


def _events(found: Iterable[Any]) -> Iterator[Event]:
    for event in sorted(found, key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            yield "bytes", event.nbytes()
        elif event.name().startswith("mark "):
            yield "mark", int(event.name().split()[1])


def in_trace(recording: Recording) -> tuple[list[Mark], list[Event]]:
    """The same of a recording."""
    found: list[Event] = []
    for number, (_, first, end) in enumerate(recording.spans()):
        found.append(("mark", number))
        for event in recording.events[first:end]:
            size = recording.storages[event >> 1].bytes
            found.append(("bytes", -size if event & 1 else size))
    return recording.marks, found


def peaks(marks: list[Mark], events: list[Event]) -> dict[tuple[str, str, int], int]:
    """(phase, run, how often it came before) -> the peak above where it began."""
    found: dict[tuple[str, str, int], int] = {}
    key, level, start, last = ("", "", 0), 0, 0, ""
    for kind, value in events:
        if kind == "bytes":
            level += value
            found[key] = max(found.get(key, 0), level - start)
        elif (mark := marks[value]).phase != last:
            count = sum(known[:2] == (mark.phase, mark.when) for known in found)
            key, start, last = (mark.phase, mark.when, count), level, mark.phase
            found[key] = 0
    return {key: peak for key, peak in found.items() if key[0] in PHASES}


def made(marks: list[Mark], events: list[Event]) -> Counter[tuple[str, str, str]]:
    """(run, phase, instant) -> all bytes that were taken in it, whether they stayed or not."""
    found: Counter[tuple[str, str, str]] = Counter()
    key = ("", "", "")
    for kind, value in events:
        if kind == "mark":
            key = (marks[value].when, marks[value].phase, marks[value].instant)
        elif value > 0 and key[1] in PHASES:
            found[key] += value
    return found


CASES = list(product(["fp32", "bf16"], ["none", "plain", "reentrant"], ["foreach", "fused"]))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    torch = pytest.importorskip("torch", reason="not run (extra `trace`)")
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # small kernels wait for each other otherwise
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("dtype", "recompute", "how"), CASES)
def test_every_phase_peaks_where_the_real_one_does(dtype: str, recompute: str, how: str) -> None:
    """Attention is eager and products are not oneDNN's: those kernels have buffers of their own. Qwen2 has biases."""
    from vramcast.trace.child.patches import CPU
    from vramcast.trace.child.step import run

    asked = question(
        config=MODEL | {"model_type": "llama" if how == "foreach" else "qwen2"}, weights_dtype=dtype,
        compute_dtype=dtype, recompute=recompute, optimizer_impl=how, attention="eager", accumulation=2, clips=True,
    )  # fmt: skip
    real, traced = really(asked), in_trace(run(asked, patches=CPU))
    assert len(peaks(*real)) == 2 * (2 * 3 + 1)
    assert peaks(*traced) == {key: pytest.approx(peak, rel=TOLERANCE) for key, peak in peaks(*real).items()}
    assert made(*traced) == {key: pytest.approx(size, abs=SCALARS) for key, size in made(*real).items()}
