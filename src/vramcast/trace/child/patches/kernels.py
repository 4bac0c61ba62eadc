"""Kernels that CUDA has and the CPU has not: attention, dropout, softmax of half precision."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from vramcast.trace.child.patches.patch import Patch, Replacement
from vramcast.trace.child.tracker import Tracker
from vramcast.trace.question import Question

aten = torch.ops.aten


def _attention(question: Question, tracker: Tracker) -> list[Replacement]:
    def make(old: Any) -> Any:
        def attention(
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            attn_mask: torch.Tensor | None = None,
            dropout_p: float = 0.0,
            is_causal: bool = False,
            scale: float | None = None,
            enable_gqa: bool = False,
        ) -> torch.Tensor:
            if torch.is_autocast_enabled("cpu"):
                dtype = torch.get_autocast_dtype("cpu")
                query, key, value = (x.to(dtype) for x in (query, key, value))
                if attn_mask is not None and attn_mask.is_floating_point():  # autocast_mode.h, cached_cast
                    attn_mask = attn_mask.to(dtype)
            kernel = question.attention
            if kernel == "flash" and (attn_mask is not None or not _flash_takes(query, value)):
                kernel = "efficient"
            if kernel == "flash":
                return _flash(query, key, value, dropout_p, is_causal, scale)
            if kernel == "math":
                return old(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
            if enable_gqa:
                group = query.size(-3) // key.size(-3)
                key, value = (x.repeat_interleave(group, -3) for x in (key, value))
            return _masked(kernel, query, key, value, attn_mask, dropout_p, is_causal, scale)

        return attention

    return [Replacement(F, "scaled_dot_product_attention", make)]


_WIDEST = 256
"""head width that flash attention has kernels for"""


def _flash_takes(query: torch.Tensor, value: torch.Tensor) -> bool:
    """It takes no mask, and heads of one width (MLA has two). Source: sdp_utils.cpp check_head_dim_size_flash."""
    return query.shape[-1] == value.shape[-1] <= _WIDEST


def _flash(query: Any, key: Any, value: Any, dropout: float, causal: bool, scale: float | None) -> torch.Tensor:
    """Heads are padded to a multiple of 8, as the kernel does."""
    width = query.shape[-1]
    if width % 8:
        query, key, value = (F.pad(x, (0, 8 - width % 8)) for x in (query, key, value))
    out = aten._scaled_dot_product_flash_attention(query, key, value, dropout, causal, False, scale=scale)[0]
    return out[..., :width] if width % 8 else out


def _masked(
    kernel: str, query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, scale: float | None
) -> torch.Tensor:
    if mask is not None and mask.dtype == torch.bool:
        allowed, refused = torch.zeros((), dtype=query.dtype), torch.full((), float("-inf"), dtype=query.dtype)
        mask = torch.where(mask, allowed, refused)
    if mask is not None:
        mask = mask.expand(query.size(0), query.size(1), query.size(2), key.size(2))
    grads = torch.is_grad_enabled()
    if kernel == "cudnn":
        return aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, grads, dropout, causal, False, scale=scale
        )[0]
    return aten._scaled_dot_product_efficient_attention(query, key, value, mask, grads, dropout, causal, scale=scale)[0]


def _dropout(question: Question, tracker: Tracker) -> list[Replacement]:
    def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        return torch.native_dropout(input, p, True)[0] if training and p > 0 else input

    def forward(self: torch.nn.Dropout, input: torch.Tensor) -> torch.Tensor:
        return dropout(input, self.p, self.training)

    return [Replacement(F, "dropout", lambda _: dropout), Replacement(torch.nn.Dropout, "forward", lambda _: forward)]


def _softmax(question: Question, tracker: Tracker) -> list[Replacement]:
    def make(old: Any) -> Any:
        def softmax(input: torch.Tensor, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> torch.Tensor:
            if dtype == torch.float32 and input.dtype == torch.float16 and dim is not None:
                return aten._softmax(input, dim, True)
            return old(input, dim, _stacklevel, dtype)

        return softmax

    return [Replacement(F, "softmax", make)]


def _rng(question: Question, tracker: Tracker) -> list[Replacement]:
    def make(old: Any) -> Any:
        def get_rng_state() -> torch.Tensor:
            with tracker.paused():
                return old()

        return get_rng_state

    return [Replacement(torch, "get_rng_state", make)]


def _grouped(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A grouped product of other dtypes has the shape of one in bf16."""
    left, right, *others = args
    if left.dtype == torch.bfloat16:
        return NotImplemented
    with tracker.paused():
        low = func(left.to(torch.bfloat16), right.to(torch.bfloat16), *others, **kwargs)
    out = aten.new_empty_strided.default(left, low.shape, low.stride())
    tracker.track(out, str(func))
    return out


PATCHES = [
    Patch(
        "grouped products",
        "the meta kernel knows bf16 only; the card's takes fp32 and fp16 too, expert by expert",
        "aten/src/ATen/native/cuda/GroupedBlas.cpp: _grouped_mm_cuda",
        stands=lambda question: {aten._grouped_mm.default: _grouped},
    ),
    Patch(
        "attention kernel",
        "the CPU has other kernels; the card's own keeps output, log-sum-exp and no scores",
        "aten/src/ATen/native/transformers/cuda/sdp_utils.cpp chooses; the meta kernels have the CUDA shapes",
        applies=lambda question: question.attention != "eager",
        replaces=_attention,
    ),
    Patch(
        "dropout mask",
        "CUDA keeps a mask of a byte an element, the CPU noise in the input's dtype",
        "aten/src/ATen/native/cuda/Dropout.cu: native_dropout",
        replaces=_dropout,
    ),
    Patch(
        "fused fp16 softmax",
        "softmax of fp16 into fp32 makes no fp32 copy of its input on CUDA",
        "aten/src/ATen/native/cuda/SoftMax.cu: half_to_float, fp16 only",
        replaces=_softmax,
    ),
    Patch(
        "generator states",
        "a checkpoint keeps the generators' states on the host",
        "torch/utils/checkpoint.py: preserve_rng_state",
        applies=lambda question: question.recompute != "none",
        replaces=_rng,
    ),
]
