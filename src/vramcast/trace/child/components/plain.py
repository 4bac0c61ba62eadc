"""Heads in plain torch, as Hugging Face's trainers wrote them before fused heads."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from vramcast.trace.child.components.inputs import Inputs

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
    logits = (inputs.hidden @ inputs.head.t()).float()
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
    """Unpaired sequences: fp32 logits of the policy, copies of the halves, 16-bit ones of a reference.

    Source: trl/trainer/kto_trainer.py, forward.
    """
    half = len(inputs.hidden) // 2
    logits = (inputs.hidden @ inputs.head.t()).float()
    each = _average(logits, inputs.labels)
    halves = [torch.cat([part]) for part in logits.chunk(2)]  # logits[preference_labels]: copies
    with torch.no_grad():
        reference = _average(inputs.reference_hidden @ inputs.reference_head.t(), inputs.labels)
    ratio = each - reference
    losses = torch.cat([1 - F.sigmoid(ratio[:half]), 1 - F.sigmoid(-ratio[half:])])
    loss = losses.mean()
    for part in halves:
        part.detach().sum()
    return loss


def grpo(inputs: Inputs) -> torch.Tensor:
    """fp32 log-probabilities of all tokens of the policy, which autograd keeps, and of the reference, which live as
    long as the function.

    Source: trl/trainer/grpo_trainer.py of 2025, without selective_log_softmax.
    """
    logs = F.log_softmax((inputs.hidden @ inputs.head.t()).float(), dim=-1)
    each = logs.gather(dim=-1, index=inputs.labels.unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        logits = inputs.reference_hidden @ inputs.reference_head.t()
        reference_logs = F.log_softmax(logits.float(), dim=-1)
        reference = reference_logs.gather(dim=-1, index=inputs.labels.unsqueeze(-1)).squeeze(-1)
    ratio = torch.exp(each - each.detach())
    difference = reference - each
    return (-ratio + 0.1 * (torch.exp(difference) - difference - 1.0)).mean()


class _VocabParallel(torch.autograd.Function):
    """Megatron's own: an fp32 copy of the logits becomes their exponentials, which become the gradient.

    Source: megatron/core/fusions/fused_cross_entropy.py.
    """

    @staticmethod
    def forward(ctx, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        wide = logits.float()
        highest = torch.max(wide, dim=-1)[0]
        exponentials = torch.empty_like(wide)  # the shifted logits' exponentials; both live until the sums are made
        total = exponentials.sum(dim=-1)
        loss = torch.log(total) - highest
        exponentials.div_(total.unsqueeze(-1))
        ctx.save_for_backward(exponentials, labels)
        ctx.dtype = logits.dtype
        return loss

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        exponentials, _ = ctx.saved_tensors
        exponentials.mul_(gradient.unsqueeze(-1))
        return exponentials.to(torch.bfloat16), None


def vocab_parallel(inputs: Inputs) -> torch.Tensor:
    """Megatron's fused cross-entropy on logits that exist, then a sum."""
    return _VocabParallel.apply(inputs.logits, inputs.labels).sum()
