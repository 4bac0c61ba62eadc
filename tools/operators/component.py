"""One operator alone, as benchmarks of kernels measure it: a head with its loss, or a layer of experts.

A benchmark makes its tensors, runs forward and backward some times, and reads the peak; what an iteration leaves (the
gradients) is there in the next. It knows nothing of torch.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

Kind: TypeAlias = Literal[
    "cross_entropy", "linear_cross_entropy", "vocab_parallel_cross_entropy",
    "orpo", "cpo", "simpo", "dpo", "kto", "grpo", "moe",
]  # fmt: skip
PREFERENCES = ("orpo", "cpo", "simpo", "dpo")


class Component(Struct, frozen=True, kw_only=True, tag="component"):
    """What is run. A length that a kind has not is 1 or 0."""

    kind: Kind
    code: Literal["torch", "liger", "cut", "megatron"]
    """whose: plain torch as in Hugging Face's trainers, or a library's kernels"""
    version: str = ""
    """of Liger, where an older one does something else; empty: the one that is installed"""
    sequences: int
    length: int
    hidden: int = 0
    vocab: int = 0
    dtype: str = "bf16"
    experts: int = 0
    chosen: int = 0
    """experts for each token"""
    intermediate: int = 0
    unused_heads: int = 0
    """weights of heads that are on the card beside the ones that run: a benchmark makes those of all its candidates"""
    left_bytes: int = 0
    """what the process still holds from candidates that it measured before: compiled functions keep their tensors"""
    wide_logits: bool = True
    """torch's preference losses work on fp32 logits"""
    keeps_gradients: bool = True
    """gradients are summed from one iteration to the next"""
    input_learns: bool = True
    iterations: int = 3
    capability: str = "8.0"
    cublas_bytes: int = 0
    """workspace of each of two cuBLAS handles; 0 where no candidate multiplies matrices"""
