"""Heads that are neither Transformers' nor TRL's: the backbone runs, then a function of hidden states, head, labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from vramcast.trace.child.losses.calls import Batch
from vramcast.trace.child.losses.compiled import compiled_cross_entropy
from vramcast.trace.child.losses.cut import cut_cross_entropy
from vramcast.trace.child.losses.loop import Loop
from vramcast.trace.child.model import Parts
from vramcast.trace.question import Question

HeadLoss: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Question], torch.Tensor]
"""(hidden states by row, weight of the head, labels by row, question) -> loss"""
_IGNORED = -100


class Head(Loop):
    """The backbone's hidden states, and a head's own loss."""

    def __init__(self, question: Question, parts: Parts, function: HeadLoss) -> None:
        super().__init__(question, parts)
        plain = parts.plain

        def forward(*args: Any, labels: torch.Tensor, **kwargs: Any) -> dict[str, torch.Tensor]:
            hidden = plain.base_model(*args, use_cache=False, **kwargs).last_hidden_state
            rows = hidden[:, :-1].reshape(-1, hidden.size(-1))
            weight = plain.get_output_embeddings().weight
            return {"loss": function(rows, weight, labels[:, 1:].reshape(-1), question)}

        self._forward = forward
        self._wrapped = plain

    def loss(self, batch: Batch) -> tuple[torch.Tensor, Any]:
        self._wrapped.forward, old = self._forward, self._wrapped.forward
        try:
            return self.model(**batch)["loss"], None
        finally:
            self._wrapped.forward = old


def chunked(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, question: Question) -> torch.Tensor:
    """Logits in chunks of tokens, each with a loss of its own, all logits kept for backward.

    Source: litgpt/model.py (lm_head_chunk_size) and litgpt/utils.py, chunked_cross_entropy (chunks of 128).
    """
    size = question.loss_chunk or 128
    logits = [rows @ weight.t() for rows in hidden.split(size)]
    parts = [
        F.cross_entropy(rows, targets, ignore_index=_IGNORED, reduction="none")
        for rows, targets in zip(logits, labels.split(size), strict=True)
    ]
    return torch.cat(parts).sum() / (labels != _IGNORED).sum().clamp(min=1)


def checkpointed(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, question: Question) -> torch.Tensor:
    """Logits of labelled tokens in chunks, made once more in backward from an fp32 copy of the head; entropy and
    accuracy beside the loss.

    Source: trl/trainer/sft_trainer.py, _chunked_cross_entropy_loss (1.7 to 1.14, chunks of 256).
    """
    valid = labels != _IGNORED
    hidden, labels = hidden[valid], labels[valid]
    size = question.loss_chunk or 256
    loss = hidden.new_zeros((), dtype=torch.float32)
    for rows, targets in zip(hidden.split(size), labels.split(size), strict=True):
        loss = loss + checkpoint(_chunk, rows, weight, targets, use_reentrant=False)[0]
    return loss / max(len(hidden), 1)


def _chunk(rows: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, ...]:
    logits = rows.float() @ weight.float().t()
    logs = F.log_softmax(logits, dim=-1)
    loss = F.nll_loss(logs, targets, reduction="sum")
    right = (logits.argmax(dim=-1) == targets).sum().float()
    return loss, right, -(logs.exp() * logs).sum(dim=-1).sum()


def compiled(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, question: Question) -> torch.Tensor:
    """Full logits, and a cross-entropy that torch.compile made."""
    return compiled_cross_entropy(hidden @ weight.t(), labels)


def single(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, question: Question) -> torch.Tensor:
    """Logits in fp32 from the start, one loss over all of them."""
    return F.cross_entropy((hidden @ weight.t()).float(), labels, ignore_index=_IGNORED)


def cut(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, question: Question) -> torch.Tensor:
    """No logits at all."""
    return cut_cross_entropy(hidden, weight, labels, scored=question.scored_len * question.sequences)


HEADS: dict[str, HeadLoss] = {"chunked": chunked, "compiled": compiled, "fp32": single, "cut": cut}
