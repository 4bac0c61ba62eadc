"""Places where a framework behaves in another way because tensors are fake, or on the CPU."""

from __future__ import annotations

from typing import Any

from vramcast.trace.child.patches.patch import Patch, Replacement
from vramcast.trace.child.tracker import Tracker
from vramcast.trace.question import Question


def _masks(question: Question, tracker: Tracker) -> list[Replacement]:
    from transformers import masking_utils

    found = [
        Replacement(masking_utils, "is_tracing", lambda _: lambda *args, **kwargs: False),
        Replacement(masking_utils, "find_packed_sequence_indices", lambda _: lambda *args, **kwargs: None),
    ]
    if hasattr(masking_utils, "fast_all"):
        found.append(Replacement(masking_utils, "fast_all", lambda _: lambda *args, **kwargs: True))
    return found


def _padding_warning(question: Question, tracker: Tracker) -> list[Replacement]:
    from transformers import modeling_utils

    return [Replacement(modeling_utils, "is_tracing", lambda _: lambda *args, **kwargs: True)]


class _NoKernel:
    """Stands where a Triton kernel is: everything it writes to exists already."""

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **kwargs: None


def _fused_head(question: Question, tracker: Tracker) -> list[Replacement]:
    from trl.kernels import chunked_logprob
    from trl.trainer import utils

    def add_product(acc: Any, a: Any, b: Any) -> None:
        acc.relu_()  # in place, as addmm with out_dtype is on CUDA: nothing is allocated

    class Launches:
        @staticmethod
        def cdiv(a: int, b: int) -> int:
            return -(-a // b)

    return [
        Replacement(chunked_logprob, "_use_triton", lambda _: lambda device: True),
        Replacement(utils, "_use_triton", lambda _: lambda device: True),
        Replacement(chunked_logprob, "_forward_kernel", lambda _: _NoKernel()),
        Replacement(chunked_logprob, "_backward_kernel", lambda _: _NoKernel()),
        Replacement(chunked_logprob, "_addmm_fp32", lambda _: add_product),
        *([] if hasattr(chunked_logprob, "triton") else [_missing_triton(chunked_logprob, Launches)]),
    ]


def _missing_triton(module: Any, stand: Any) -> Replacement:
    module.triton = None
    return Replacement(module, "triton", lambda _: stand)


PATCHES = [
    Patch(
        "attention masks",
        "Transformers takes a fake tensor for a graph capture, and then builds a mask that no batch without padding has",
        "transformers/masking_utils.py: is_tracing",
        replaces=_masks,
    ),
    Patch(
        "padding warning",
        "a warning reads the token ids",
        "transformers/modeling_utils.py: warn_if_padding_and_no_attention_mask",
        replaces=_padding_warning,
    ),
    Patch(
        "TRL's fused head",
        "its Triton kernels run on CUDA only; their wrapper allocates everything they write",
        "trl/kernels/chunked_logprob.py",
        applies=lambda question: question.loss == "fused",
        replaces=_fused_head,
    ),
]
