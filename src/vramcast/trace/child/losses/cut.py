"""Cut cross-entropy: a loss without logits, by what its wrapper allocates: its kernels write into that.

Source: apple/ml-cross-entropy, cut_cross_entropy/{cce,cce_lse_forward,indexed_dot,cce_backward}.py (arXiv 2411.09009).
"""

from __future__ import annotations

from typing import Any

import torch

_LOCKED_ROWS, _LOCKED_COLUMNS = 128, 64
"""rows and columns that share a lock"""


def _locks(rows: int, width: int = 1) -> tuple[int, int]:
    return -(-rows // _LOCKED_ROWS), -(-width // _LOCKED_COLUMNS)


class _Cut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, valid: Any) -> torch.Tensor:
        ctx.dtypes = hidden.dtype, weight.dtype
        if torch.is_autocast_enabled("cpu"):
            hidden, weight = (x.to(torch.get_autocast_dtype("cpu")) for x in (hidden, weight))
        rows = len(hidden) if valid is None else len(valid)
        log_sum = hidden.new_empty(rows, dtype=torch.float32)
        locks = hidden.new_empty(_locks(rows)[0], dtype=torch.int32)
        average = weight.new_empty(len(weight), dtype=torch.float32)
        picked = hidden.new_empty(rows, dtype=torch.float32)
        del locks
        ctx.save_for_backward(hidden, weight, labels, log_sum, average, valid)
        return picked.mean()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        hidden, weight, _, _, average, _ = ctx.saved_tensors
        order = torch.argsort(average).to(torch.int32)
        hidden_gradient = torch.zeros_like(hidden) if ctx.needs_input_grad[0] else None
        weight_gradient = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        locks = [hidden.new_zeros(_locks(len(x), hidden.size(1)), dtype=torch.int32) for x in (hidden, weight)]
        del order, locks
        dtypes = zip((hidden_gradient, weight_gradient), ctx.dtypes, strict=True)
        return *(None if x is None else x.to(dtype) for x, dtype in dtypes), None, None


def cut_cross_entropy(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, scored: int | None = None
) -> torch.Tensor:
    """The mean loss of labelled rows.

    Args:
        scored: rows with a label; the wrapper lists them unless all have one.
    """
    valid = None
    if scored is not None and scored < len(labels):
        found = labels.new_empty((scored, 1))  # (targets != ignore_index).nonzero()
        valid = found.to(torch.int32).squeeze(1)
        del found
    return _Cut.apply(hidden.contiguous(), weight, labels, valid)
