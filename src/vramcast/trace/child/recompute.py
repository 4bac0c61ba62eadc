"""What a checkpointed block keeps: nothing, or what a policy saves."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from vramcast.trace.question import Question

aten = torch.ops.aten
_PRODUCTS = frozenset({aten.mm.default, aten.addmm.default})
_ATTENTION = frozenset(
    {
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
    }
)


def checkpoint_kwargs(question: Question) -> dict[str, Any]:
    """What `gradient_checkpointing_enable` is told."""
    if question.recompute == "selective":
        return {"use_reentrant": False, "context_fn": _contexts}
    return {"use_reentrant": question.recompute == "reentrant"}


def _contexts() -> Any:
    """Attention and every second matrix product are kept, the rest is computed again.

    Source: torchtitan/distributed/activation_checkpoint.py, _apply_op_sac (`selective`, `op`).
    """
    seen = {False: 0, True: 0}
    return create_selective_checkpoint_contexts(partial(_policy, seen))


def _policy(seen: dict[bool, int], context: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    if func in _ATTENTION:
        return CheckpointPolicy.MUST_SAVE
    if func in _PRODUCTS:
        seen[context.is_recompute] += 1
        if seen[context.is_recompute] % 2:
            return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE
