"""Heads in plain torch, as Hugging Face's trainers wrote them before fused heads."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from tools.operators.inputs import Inputs

_IGNORED = -100


def cross_entropy(inputs: Inputs) -> torch.Tensor:
    """torch's, on logits that exist."""
    return F.cross_entropy(inputs.logits, inputs.labels)


def linear_cross_entropy(inputs: Inputs) -> torch.Tensor:
    """A linear layer and torch's cross-entropy on its 16-bit logits."""
    return F.cross_entropy(F.linear(inputs.rows, inputs.head), inputs.labels)


def preference(inputs: Inputs) -> torch.Tensor:
    """Chosen and rejected sequences in one batch: fp32 logits, a cross-entropy on the chosen ones, log-probabilities.

    Source: trl/trainer/orpo_trainer.py and cpo_trainer.py, concatenated_forward.
    """
    half = len(inputs.hidden) // 2
    logits = inputs.hidden @ inputs.head.t()
    logits = logits.float() if inputs.component.wide_logits else logits
    chosen = logits[:half]
    loss = F.cross_entropy(chosen.view(-1, chosen.size(-1)), inputs.labels[:half].view(-1), ignore_index=_IGNORED)
    each = _average(logits, inputs.labels)
    difference = each[:half] - each[half:]
    return loss - F.logsigmoid(difference).mean()


def _average(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean log-probability of each sequence's labels."""
    mask = labels != _IGNORED
    picked = torch.gather(logits.log_softmax(-1), dim=2, index=torch.where(mask, labels, 0).unsqueeze(2)).squeeze(2)
    return (picked * mask).sum(-1) / mask.sum(-1)


def kto(inputs: Inputs) -> torch.Tensor:
    """Unpaired sequences: fp32 logits of the policy and copies of both halves, 16-bit ones of a reference.

    Source: trl/trainer/kto_trainer.py, forward.
    """
    half = len(inputs.hidden) // 2
    each, halves = _unpaired(inputs)
    with torch.no_grad():
        reference = _average(inputs.reference_hidden @ inputs.reference_head.t(), inputs.labels)
    ratio = each - reference
    losses = torch.cat([1 - F.sigmoid(ratio[:half]), 1 - F.sigmoid(-ratio[half:])])
    for part in halves:
        part.detach().sum()
    return losses.mean()


def _unpaired(inputs: Inputs) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Log-probabilities, and what `logits[preference_labels]` copies."""
    narrow = inputs.hidden @ inputs.head.t()
    logits = narrow.float()
    return _average(logits, inputs.labels), [torch.cat([part]) for part in logits.chunk(2)]


def grpo(inputs: Inputs) -> torch.Tensor:
    """fp32 log-probabilities of all tokens of the policy, which autograd keeps, and of the reference, which live as
    long as the function.

    Source: trl/trainer/grpo_trainer.py of 2025, without selective_log_softmax.
    """
    logits = inputs.hidden @ inputs.head.t()
    logs = F.log_softmax(logits.float(), dim=-1)
    each = logs.gather(dim=-1, index=inputs.labels.unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        reference_logits = inputs.reference_hidden @ inputs.reference_head.t()
        reference_logs = F.log_softmax(reference_logits.float(), dim=-1)
        reference = reference_logs.gather(dim=-1, index=inputs.labels.unsqueeze(-1)).squeeze(-1)
    ratio = torch.exp(each - each.detach())
    difference = reference - each
    return (-ratio + 0.1 * (torch.exp(difference) - difference - 1.0)).mean()


class _VocabParallel(torch.autograd.Function):
    """Megatron's fused one: an fp32 copy of the logits becomes their exponentials in place. Backward is compiled, so
    its writes at the labels go into a copy, and a third kernel rounds.

    Source: megatron/core/fusions/fused_cross_entropy.py (jit_fuser is torch.compile).
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        exponentials = logits.float()
        total = exponentials.sum(dim=-1)
        ctx.save_for_backward(exponentials, labels)
        ctx.dtype = logits.dtype
        return torch.log(total)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        written = ctx.saved_tensors[0].clone()
        return written.to(ctx.dtype), None


def vocab_parallel(inputs: Inputs) -> torch.Tensor:
    """Megatron's fused cross-entropy on logits that exist, then a sum."""
    return _VocabParallel.apply(inputs.logits, inputs.labels).sum()
