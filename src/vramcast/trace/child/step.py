"""The training step: load, then forward, loss, backward and step, at least twice."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.trace.child.fakes import fake_mode
from vramcast.trace.child.losses import Batch, Loss, loss_of
from vramcast.trace.child.model import Parts, build
from vramcast.trace.child.optimizers import optimizer_of
from vramcast.trace.child.patches import installed, patches_of
from vramcast.trace.child.tracker import Tracker
from vramcast.trace.child.versions import versions
from vramcast.trace.child.watch import Watch
from vramcast.trace.question import Question
from vramcast.trace.recording import Recording


def run(question: Question) -> Recording:
    """Run the step of a question and record it.

    Raises:
        Refused: the question cannot be run.
        Moved: a patch did not apply.
    """
    mode = fake_mode()
    tracker = Tracker(mode)
    with installed(patches_of(question), question, tracker) as applied:
        tracker.mark("load", "built", "first")
        parts = build(question, mode, tracker)
        watch = Watch(parts, tracker)
        with mode:
            optimizer = optimizer_of(question, parts.trainable)
            with tracker:
                _train(question, parts, watch, optimizer)
        return tracker.recording(versions(), applied)


def _train(question: Question, parts: Parts, watch: Watch, optimizer: Any) -> None:
    loss_path = loss_of(question, parts)
    for step in range(question.steps):
        watch.when = "first" if step == 0 else "steady"
        for _ in range(question.accumulation):
            _micro_batch(question, parts, watch, loss_path)
        watch.mark("step", "update")
        if question.clips:
            torch.nn.utils.clip_grad_norm_(parts.trainable, 1.0, foreach=True)
        optimizer.step()
        _relabel_states(optimizer, watch.tracker)
        optimizer.zero_grad(set_to_none=True)


def _micro_batch(question: Question, parts: Parts, watch: Watch, loss_path: Loss) -> None:
    watch.mark("forward", "last block")
    batch = _batch(question, watch.tracker)
    loss, held = loss_path(batch)
    watch.mark("backward", "loss")
    loss.backward()
    for parameter in parts.trainable:
        if parameter.grad is not None:
            watch.tracker.relabel(parameter.grad, "gradient")
    del loss, held


def _batch(question: Question, tracker: Tracker) -> Batch:
    """Token ids, mask and labels of full sequences."""
    size = (question.sequences, question.seq_len)
    batch = {
        "input_ids": torch.zeros(size, dtype=torch.long),
        "attention_mask": torch.ones(size, dtype=torch.long),
        "labels": torch.zeros(size, dtype=torch.long),
    }
    for tensor in batch.values():
        tracker.relabel(tensor, "input")
    return batch


def _relabel_states(optimizer: Any, tracker: Tracker) -> None:
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                tracker.relabel(value, "state")
