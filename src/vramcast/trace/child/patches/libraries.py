"""What CUDA's libraries keep in PyTorch's allocator: workspaces of cuBLAS and cublasLt."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.trace.child.patches.patch import Patch
from vramcast.trace.child.tracker import Stand, Tracker
from vramcast.trace.question import Question

aten = torch.ops.aten
_PRODUCTS = (
    aten.mm.default, aten.mm.out, aten.addmm.default, aten.addmm.out, aten.addmm_.default, aten.bmm.default,
    aten.bmm.out, aten.baddbmm.default,
)  # fmt: skip


def _stands(question: Question) -> dict[Any, Stand]:
    """Each thread has a handle: the main one, and on a GPU autograd's own, which runs every backward."""
    handles: set[tuple[str, str]] = set()

    def product(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        thread = "autograd" if tracker.phase == "backward" else "main"
        if ("cublas", thread) not in handles and tracker.phase not in ("", "load"):
            handles.add(("cublas", thread))
            tracker.workspace(question.cublas_bytes, f"cuBLAS workspace of the {thread} thread")
        return NotImplemented

    def biased(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        thread = "autograd" if tracker.phase == "backward" else "main"
        if ("cublasLt", thread) not in handles and question.cublaslt_bytes and args[0].ndim == 1:
            handles.add(("cublasLt", thread))
            tracker.workspace(question.cublaslt_bytes, f"cublasLt workspace of the {thread} thread")
        return product(tracker, func, args, kwargs)

    return {**dict.fromkeys(_PRODUCTS, product), aten.addmm.default: biased}


PATCHES = [
    Patch(
        "cuBLAS workspaces",
        "each thread that multiplies matrices has a handle with a workspace, taken once and kept",
        "aten/src/ATen/cuda/CublasHandlePool.cpp; CUDABlas.cpp: cublasLt for products with a bias",
        stands=_stands,
    ),
]
