"""What CUDA kernels hold while they run, beside their outputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from vramcast.trace.child.patches.patch import Patch

aten = torch.ops.aten
_FLASH = "aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp: mha_bwd"
_SORTED = 3072
"""indices up to which the gradient of an embedding needs no sort"""


def _up_to(value: int, step: int) -> int:
    return -(-value // step) * step


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _flash_backward(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Iterable[int]:
    """An fp32 row sum and an fp32 dq over padded rows; expanded dk and dv when heads share keys."""
    query, key = args[1], args[2]
    batch, heads, length, width = query.shape
    rows = batch * heads * _up_to(length, 128)
    yield 4 * rows
    yield 4 * rows * _up_to(width, 32 if width <= 128 else 64)
    if key.shape[1] != heads:
        yield from [query.element_size() * batch * key.shape[2] * heads * width] * 2


def _efficient_backward(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Iterable[int]:
    """An fp32 row sum over padded rows."""
    batch, heads, length, _ = args[1].shape
    yield 4 * batch * heads * _up_to(length, 32)


def _softmax_backward(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Iterable[int]:
    """The product of gradient and output."""
    yield _bytes(args[0])


def _log_sum_exp(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Iterable[int]:
    """Exponentials of what is left above the largest."""
    yield _bytes(args[0])


def _embedding_backward(args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Iterable[int]:
    """Sorted indices, their order, counts and the sort's own space, 8 bytes an index each."""
    count = args[1].numel()
    return [8 * count] * 4 if count > _SORTED else []


PATCHES = [
    Patch(
        "attention backward",
        "flash and efficient attention hold fp32 sums in backward",
        f"{_FLASH}; aten/src/ATen/native/transformers/cuda/attention_backward.cu",
        temporaries=lambda question: {
            aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
            aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
        },
    ),
    Patch(
        "softmax backward",
        "the CUDA kernel multiplies gradient and output first",
        "aten/src/ATen/native/cuda/SoftMax.cu: softmax_backward_cuda_out",
        temporaries=lambda question: {aten._softmax_backward_data.default: _softmax_backward},
    ),
    Patch(
        "log-sum-exp",
        "exponentials of its input are a tensor before they are summed",
        "aten/src/ATen/native/ReduceOps.cpp: logsumexp_out_impl",
        temporaries=lambda question: {aten.logsumexp.default: _log_sum_exp},
    ),
    Patch(
        "embedding backward",
        "the CUDA kernel sorts the indices when there are many",
        "aten/src/ATen/native/cuda/Embedding.cu, EmbeddingBackwardKernel.cu",
        temporaries=lambda question: {aten.embedding_dense_backward.default: _embedding_backward},
    ),
]
