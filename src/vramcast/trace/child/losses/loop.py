"""Transformers' loss: in a plain loop, or in its Trainer, which drops the outputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from vramcast.trace.child.losses.calls import Batch, language_batch
from vramcast.trace.child.model import Parts
from vramcast.trace.question import Question


class Loop:
    """`outputs = model(**batch); outputs.loss.backward()`."""

    def __init__(self, question: Question, parts: Parts) -> None:
        self.question = question
        self.model = parts.model

    def batches(self) -> Iterable[Batch]:
        """One after the other, as a data loader gives them."""
        for _ in range(self.question.accumulation):
            yield language_batch(self.question)

    def loss(self, batch: Batch) -> tuple[torch.Tensor, Any]:
        outputs = self.model(**batch)
        return outputs["loss"], outputs if self.question.outputs_kept else None
