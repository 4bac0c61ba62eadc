"""Liger's heads: its own functions where their kernels only write, and what torch.compile makes of the chunked ones."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from packaging.version import Version
from tools.operators.inputs import Inputs

Rows: TypeAlias = torch.Tensor


def cross_entropy(inputs: Inputs) -> torch.Tensor:
    """The kernel: the gradient overwrites the logits."""
    from liger_kernel.transformers import LigerCrossEntropyLoss

    return LigerCrossEntropyLoss()(inputs.logits, inputs.labels)


def vocab_parallel(inputs: Inputs) -> torch.Tensor:
    """The kernel that Megatron calls, then a sum."""
    from liger_kernel.megatron import LigerMegatronCrossEntropy

    return LigerMegatronCrossEntropy()(inputs.logits, inputs.labels).sum()


def linear_cross_entropy(inputs: Inputs) -> torch.Tensor:
    """The fused head; before 0.5 it worked on fp32 logits of a chunk."""
    if inputs.component.version and Version(inputs.component.version) < Version("0.5"):
        return _Wide.apply(inputs.rows, inputs.head, inputs.labels)
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    return LigerFusedLinearCrossEntropyLoss()(inputs.head, inputs.rows, inputs.labels)


class _Wide(torch.autograd.Function):
    """A chunk's logits in 16 bits, in fp32 for the kernel, in 16 bits again, and a scaled copy; what a variable holds
    lives until the next chunk replaces it.

    Source: liger_kernel/ops/fused_linear_cross_entropy.py of 0.4.2.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Rows, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        width, vocab = hidden.size(1), len(weight)
        size = _power_of_2(-(-len(hidden) // -(-vocab // width)))
        weight_gradient, hidden_gradient = torch.zeros_like(weight), torch.zeros_like(hidden)
        losses = torch.zeros(len(hidden), dtype=torch.float32)
        for start in range(0, len(hidden), size):
            rows = hidden[start : start + size]
            logits = rows @ weight.t()
            logits = logits.float()
            logits = logits.to(hidden.dtype)
            scaled = logits * 0.5
            hidden_gradient[start : start + size] = scaled @ weight
            weight_gradient.addmm_(logits.t(), rows)
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        return *ctx.saved_tensors, None


def _power_of_2(value: int) -> int:
    return 1 << (value - 1).bit_length()


# --- chunked heads, compiled ------------------------------------------------------------------------------------------


def preference(inputs: Inputs) -> torch.Tensor:
    """Chosen and rejected sequences in pairs."""
    return _Chunked.apply(inputs.hidden, inputs.head, inputs, 2)


def kto(inputs: Inputs) -> torch.Tensor:
    """Sequence by sequence."""
    return _Chunked.apply(inputs.hidden, inputs.head, inputs, 1)


grpo = kto
"""the same loop (liger_kernel/chunked_loss/fused_linear_ppo.py)"""


class _Chunked(torch.autograd.Function):
    """Loss and gradients of a chunk in one compiled function (`torch.func.grad_and_value`), summed outside of it.

    Source: liger_kernel/chunked_loss/fused_linear_{preference,unpaired_preference,ppo}.py.
    """

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, inputs: Inputs, together: int) -> torch.Tensor:
        total = torch.zeros_like(weight)
        found: list[torch.Tensor] = []
        for rows in hidden.split(together):
            chunk = torch.cat(list(rows.split(together // 2))) if together > 1 else rows
            found.append(_compiled(chunk, weight, total, inputs))
        gradient = torch.cat(found)
        ctx.save_for_backward(gradient, total)
        return torch.zeros((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        hidden_gradient, weight_gradient = ctx.saved_tensors
        return hidden_gradient if ctx.needs_input_grad[0] else None, weight_gradient, None, None


def _compiled(chunk: torch.Tensor, weight: torch.Tensor, total: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    """What the compiler allocates for a chunk: logits, an fp32 tensor into which the labels' gradients are scattered,
    and the logits' gradient: in the logits' own place if nothing else reads them. Casts, exponentials and sums are
    fused into those kernels. A reference's logits are gone before.

    Source: torch/_inductor, its output code for this function (2.13, CPU). Its predecessors (2.5, 2.6) kept the logits
    where a second loss reads them: the cross-entropy of ORPO and CPO, the sums of KTO.
    """
    if hasattr(inputs, "reference_head"):
        reference = inputs.reference_hidden[: len(chunk)] @ inputs.reference_head.t()
        del reference
    logits = chunk @ weight.t()
    scattered = torch.empty_like(logits, dtype=torch.float32)
    gradient = torch.empty_like(logits) if _read_twice(inputs) else logits
    del scattered, logits
    hidden_gradient = gradient @ weight
    rows, flat = chunk.reshape(-1, chunk.size(-1)), gradient.view(-1, gradient.size(-1))
    weight_gradient = flat.t() @ rows
    del gradient, flat
    total.add_(weight_gradient)
    return hidden_gradient


def _read_twice(inputs: Inputs) -> bool:
    component = inputs.component
    return component.kind in ("orpo", "cpo", "kto") and Version(component.version or "1") < Version("0.6")
