"""What CUDA, cuBLAS and the allocator hold beside tensors."""

from __future__ import annotations

from vramcast.memory.seat import Seat
from vramcast.memory.term import Interval, term
from vramcast.num import Size

LT_WORKSPACE = 1 << 20
"""cublasLt's workspace before Hopper: aten/src/ATen/cuda/CUDABlas.cpp, CUBLASLT_WORKSPACE_SIZE (1024 KiB)"""


@term(
    "cuda.context",
    lives=lambda seat: seat.leads and seat.state != "absent",
    counter="outside",
    basis="calibrated",
    source="the card's row in the catalogue",
)
def cuda_context(seat: Seat) -> Interval:
    """The CUDA context: kernels, stacks and driver buffers of one process, outside PyTorch's counters.

    Measured by card and driver; more where all kernels are loaded eagerly. Every further process on a GPU pays it
    again.
    """
    context = seat.gpu.context_bytes
    return Interval(context.low, context.point, context.high)


@term(
    "cublas.workspace",
    lives=lambda seat: seat.leads and seat.engine is None and seat.started,
    basis="derived",
    source="aten/src/ATen/cuda/CublasHandlePool.cpp: one workspace per handle and stream, kept",
)
def cublas_workspace(seat: Seat) -> Size:
    """Scratch space of matrix products, allocated once and never given back.

    8.125 MiB a thread, 32 MiB from Hopper on. Training uses two threads: the main one and, from the first product of
    backward on, autograd's. Layers with a bias add 1 MiB of cublasLt a thread before Hopper.
    """
    size = seat.gpu.cublas_workspace_bytes.value
    if seat.arch.has_biases and seat.gpu.before_hopper:
        size += LT_WORKSPACE
    return (2 if _multiplied(seat) else 1) * size


def _multiplied(seat: Seat) -> bool:
    """Autograd's thread has come to a product: at the worst moment of a plain loss it has only softened logits, if it
    has not had a micro-batch before."""
    if (seat.trains and seat.when == "steady") or (seat.records and seat.accumulates):
        return True
    if seat.state == "backward" and seat.instant == "loss":
        return seat.loss == "fused"
    return seat.state in ("backward", "step")
