"""How a batch becomes a loss: Transformers' own, and the functions of TRL's trainers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from vramcast.trace.child.model import DTYPES, Parts
from vramcast.trace.question import Question

Batch: TypeAlias = dict[str, torch.Tensor]
Loss: TypeAlias = Callable[[Batch], tuple[torch.Tensor, Any]]
"""a batch -> its loss, and what the caller holds through backward"""


def loss_of(question: Question, parts: Parts) -> Loss:
    """The loss path of a question."""
    forward = _forward(question, parts)
    return _fused(forward) if question.loss == "fused" else _plain(forward, question)


def _forward(question: Question, parts: Parts) -> Callable[..., Any]:
    """The model's call as the trainer makes it: under autocast, its outputs in fp32 (accelerate `prepare_model`)."""
    model = parts.model
    if not question.autocast:
        return model

    def call(**inputs: Any) -> Any:
        with torch.autocast("cpu", dtype=DTYPES[question.compute_dtype]):
            return model(**inputs)

    if not question.outputs_fp32:
        return call
    from accelerate.utils.operations import convert_outputs_to_fp32

    return convert_outputs_to_fp32(call)


def _plain(forward: Callable[..., Any], question: Question) -> Loss:
    def loss(batch: Batch) -> tuple[torch.Tensor, Any]:
        outputs = forward(**batch)
        return outputs["loss"], outputs if question.outputs_kept else None

    return loss


def _fused(forward: Callable[..., Any]) -> Loss:
    """TRL's SFT loss over its fused head."""

    def loss(batch: Batch) -> tuple[torch.Tensor, Any]:
        outputs = forward(**batch, fused_lm_head=True)
        scored = outputs.label_mask.sum()
        return -outputs.log_probs.sum() / scored.clamp(min=1), None

    return loss
