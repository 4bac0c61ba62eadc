"""TRL's fused head, whose Triton kernels run on CUDA only: their wrapper allocates everything they write."""

from __future__ import annotations

from typing import Any

from vramcast.trace.child.patches.patch import Patch, Replacement
from vramcast.trace.child.tracker import Tracker
from vramcast.trace.question import Question


class _NoKernel:
    """Stands where a Triton kernel is: everything it writes to exists already."""

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **kwargs: None


class _Launches:
    """Stands where Triton is not installed."""

    @staticmethod
    def cdiv(a: int, b: int) -> int:
        return -(-a // b)


def _fused_head(question: Question, tracker: Tracker) -> list[Replacement]:
    from trl.kernels import chunked_logprob
    from trl.trainer import utils

    if not hasattr(chunked_logprob, "triton"):
        chunked_logprob.triton = _Launches
    return [
        Replacement(chunked_logprob, "_use_triton", lambda _: lambda device: True),
        Replacement(utils, "_use_triton", lambda _: lambda device: True),
        Replacement(chunked_logprob, "_forward_kernel", lambda _: _NoKernel()),
        Replacement(chunked_logprob, "_backward_kernel", lambda _: _NoKernel()),
        Replacement(chunked_logprob, "_addmm_fp32", lambda _: _add_product),
    ]


def _add_product(acc: Any, a: Any, b: Any) -> None:
    """In place, as addmm with out_dtype is on CUDA: nothing is allocated."""
    acc.relu_()


PATCHES = [
    Patch(
        "TRL's fused head",
        "its Triton kernels run on CUDA only; their wrapper allocates everything they write",
        "trl/kernels/chunked_logprob.py",
        applies=lambda question: question.loss == "fused",
        replaces=_fused_head,
    ),
]
