"""The training step: load, then forward, loss, backward and step, at least twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vramcast.trace.cache import installed as installed_versions
from vramcast.trace.child.fakes import fake_mode
from vramcast.trace.child.losses import Batch, Path, path_of
from vramcast.trace.child.model import Parts, build
from vramcast.trace.child.optimizers import optimizer_of
from vramcast.trace.child.patches import Patch, installed, patches_of
from vramcast.trace.child.tracker import Tracker
from vramcast.trace.child.watch import Watch
from vramcast.trace.question import Question
from vramcast.trace.recording import Recording

Tell = Callable[[str, int, int], None]
"""(what, how much is done, of how much)"""


def run(question: Question, tell: Tell = lambda what, done, of: None, patches: list[Patch] | None = None) -> Recording:
    """Run the step of a question and record it. `patches`: others than those that make it a step on the card.

    Raises:
        Refused: the question cannot be run.
        Moved: a patch did not apply.
    """
    mode = fake_mode()
    tracker = Tracker(mode)
    with installed(patches_of(question) if patches is None else patches, question, tracker) as applied:
        tell("building the model", 0, 0)
        tracker.mark("load", "reading", "first")
        parts = build(question, mode, tracker)
        watch = Watch(parts, tracker)
        with mode:
            optimizer = optimizer_of(question, parts, tracker)
            tracker.mark("load", "built", "first")
            with tracker:
                _train(question, parts, watch, optimizer, tell)
        return tracker.recording(installed_versions(), applied)


def _train(question: Question, parts: Parts, watch: Watch, optimizer: Any, tell: Tell) -> None:
    path = path_of(question, parts, watch)
    chosen = _chosen(question.accumulation, watch.tracker)
    for step in range(question.steps):
        watch.when = "first" if step == 0 else "steady"
        watch.mark("forward", "last block")
        held: Any = None
        for micro, batch in enumerate(path.batches()):
            if micro not in chosen:
                continue
            tell("running the step", step * len(chosen) + chosen.index(micro), question.steps * len(chosen))
            held = None
            held = _micro_batch(batch, parts, watch, path)
        watch.mark("step", "update")
        if question.clips:
            torch.nn.utils.clip_grad_norm_(parts.trainable, 1.0, foreach=True)
        optimizer.step()
        _relabel_states(optimizer, parts, watch.tracker)
        optimizer.zero_grad(set_to_none=True)
        del held  # a loop that keeps its outputs has them until the next batch


def _chosen(accumulation: int, tracker: Tracker) -> list[int]:
    """The micro-batches of a step that are run: the first makes gradients, all others add to them; with the third one
    the allocator's cache is as it stays."""
    chosen = sorted({*range(min(accumulation, 3)), accumulation - 1})
    if len(chosen) < accumulation:
        left = accumulation - len(chosen)
        tracker.assumed.setdefault(f"of {accumulation} micro-batches, {left} do what the third one does")
    return chosen


def _micro_batch(batch: Batch, parts: Parts, watch: Watch, path: Path) -> Any:
    """Forward and backward; gives what the caller still holds."""
    watch.mark("forward", "last block")
    for tensor in batch.values():
        if isinstance(tensor, torch.Tensor):
            watch.tracker.relabel(tensor, "input")
    loss, held = path.loss(batch)
    watch.mark("backward", "loss")
    loss.backward()
    for parameter in parts.trainable:
        if parameter.grad is not None:
            watch.tracker.relabel(parameter.grad, "gradient", parts.places.get(parameter))
    return held


def _relabel_states(optimizer: Any, parts: Parts, tracker: Tracker) -> None:
    for parameter, state in optimizer.state.items():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                tracker.relabel(value, "state", parts.places.get(parameter))
