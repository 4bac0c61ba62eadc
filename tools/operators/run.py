"""One operator alone on fake tensors, forward and backward some times, recorded like a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from tools.operators import experts, liger, plain
from tools.operators.component import Component
from tools.operators.inputs import Inputs

from vramcast.errors import refuse
from vramcast.trace.cache import installed as installed_versions
from vramcast.trace.child.fakes import fake_mode
from vramcast.trace.child.losses.cut import cut_cross_entropy
from vramcast.trace.child.patches import installed, patches_of
from vramcast.trace.child.tracker import Tracker
from vramcast.trace.question import Question
from vramcast.trace.recording import Recording

Forward: TypeAlias = Callable[[Inputs], torch.Tensor]
FORWARDS: dict[tuple[str, str], Forward] = {
    ("cross_entropy", "torch"): plain.cross_entropy,
    ("cross_entropy", "liger"): liger.cross_entropy,
    ("linear_cross_entropy", "torch"): plain.linear_cross_entropy,
    ("linear_cross_entropy", "liger"): liger.linear_cross_entropy,
    ("linear_cross_entropy", "cut"): lambda inputs: cut_cross_entropy(inputs.rows, inputs.head, inputs.labels),
    ("vocab_parallel_cross_entropy", "liger"): liger.vocab_parallel,
    ("vocab_parallel_cross_entropy", "megatron"): plain.vocab_parallel,
    **{(kind, "torch"): plain.preference for kind in ("orpo", "cpo", "simpo", "dpo")},
    **{(kind, "liger"): liger.preference for kind in ("orpo", "cpo", "simpo", "dpo")},
    ("kto", "torch"): plain.kto,
    ("kto", "liger"): liger.kto,
    ("grpo", "torch"): plain.grpo,
    ("grpo", "liger"): liger.grpo,
    ("moe", "torch"): experts.plain,
    ("moe", "liger"): experts.liger,
}


def run_component(component: Component) -> Recording:
    """Run a component and record it: phases `load`, `forward` and `backward`, the later iterations `steady`.

    Raises:
        Refused: this code has no such component.
        Moved: a patch did not apply.
    """
    forward = FORWARDS.get((component.kind, component.code))
    if forward is None:
        raise refuse(f"{component.code} has no {component.kind}")
    mode = fake_mode()
    tracker = Tracker(mode)
    question = _question(component)
    with installed(patches_of(question), question, tracker) as applied:
        tracker.mark("load", "built", "first")
        with mode, tracker:
            inputs = Inputs(component, tracker)
            for iteration in range(component.iterations):
                _iterate(forward, inputs, tracker, "first" if iteration == 0 else "steady")
        return tracker.recording(installed_versions(), applied)


def _iterate(forward: Forward, inputs: Inputs, tracker: Tracker, when: str) -> None:
    tracker.mark("forward", "head", when)
    if not inputs.component.keeps_gradients:
        inputs.forget()
    out = forward(inputs)
    tracker.mark("backward", "loss", when)
    whole = out.ndim == 0
    out.backward(None if whole else torch.empty_like(out), retain_graph=not whole)
    inputs.relabel()


def _question(component: Component) -> Question:
    """A question that chooses the patches of a component."""
    return Question(
        config={},
        weights_dtype=component.dtype,
        compute_dtype=component.dtype,
        autocast=False,
        tuning="full",
        sequences=component.sequences,
        seq_len=component.length,
        scored_len=component.length,
        accumulation=1,
        trainer="loop",
        loss="liger" if component.code == "liger" else "full",
        outputs_kept=False,
        outputs_fp32=False,
        clips=False,
        recompute="none",
        optimizer="sgd",
        optimizer_impl="loop",
        attention="flash",
        capability=component.capability,
        cublas_bytes=0,
        cublaslt_bytes=0,
    )
