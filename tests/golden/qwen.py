"""Qwen2.5-7B and an A100 80 GB by hand: the sizes that the golden cases are worked out from.

Everything is written out from the model's config.json, the Hugging Face class Qwen2ForCausalLM and PyTorch's sources;
nothing is taken from the package.
"""

from __future__ import annotations

MIB = 1 << 20

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB = 28, 3584, 28, 4, 128, 18944, 152064
QUERY = 28 * 128  # 3,584: width of all query heads
KV = 4 * 128  # 512: width of all key heads

# One decoder layer. Linear weights are outputs x inputs; q, k and v have a bias, o and the MLP have none.
Q_PROJ = 3584 * 3584  # 12,845,056
K_PROJ = 512 * 3584  # 1,835,008, and v_proj alike
O_PROJ = 3584 * 3584  # 12,845,056
GATE_PROJ = 18944 * 3584  # 67,895,296, and up_proj and down_proj alike
BIASES = 3584 + 512 + 512  # 4,608
NORMS = 2 * 3584  # input_layernorm, post_attention_layernorm
LAYER = Q_PROJ + 2 * K_PROJ + O_PROJ + 3 * GATE_PROJ + BIASES + NORMS
assert LAYER == 233_057_792

EMBEDDING = 152064 * 3584  # 544,997,376, and the head alike: they are not tied
PARAMS = 2 * EMBEDDING + 28 * LAYER + 3584  # the last one is the final norm
assert PARAMS == 7_615_616_512

# The card. cuda.context is what one process was measured to hold on an A100 before its first tensor: 481 MiB, and up
# to 942 MiB with all kernels loaded. A cuBLAS handle takes 8.125 MiB of workspace before Hopper
# (aten/src/ATen/cuda/CublasHandlePool.cpp: 2 x 4096 KiB + 8 x 16 KiB); cublasLt, which runs layers with a bias, 1 MiB.
CONTEXT = 481 * MIB
WORKSPACE = (2 * 4096 + 8 * 16) * 1024 + 1024 * 1024
"""of one thread; from the first backward on the autograd thread has another"""


def slack(size: int) -> int:
    """What the allocator cannot use behind one tensor: blocks are multiples of 512 bytes, and a tensor of 10 MiB or
    more has a segment of a multiple of 2 MiB for itself."""
    step = 2 * MIB if size >= 10 * MIB else 512
    return (step - size % step) % step


ROUNDING_BF16 = 2 * MIB // 2 + 28 * 3 * MIB // 2
"""what counts as allocated behind bf16 weights: half a MiB behind embedding, head and each MLP matrix. Behind q and o
it is 1.5 MiB, more than 1, and split off."""


# Keys and values of 3.5 MiB share segments of 20 MiB, five in each: 12 segments for 56 of them. All vectors together
# (28 x 11,776 numbers and the last norm's 3584) are in one small segment of 2 MiB.
SHARED_BF16 = 12 * 20 * MIB - 56 * 7 * MIB // 2 + 2 * MIB - 2 * (28 * 11_776 + 3584)
"""free ends of the segments that smaller weights share"""
assert SHARED_BF16 == 44 * MIB + 1_430_528


def remainders(slack: int, rounding: int = 0, shared: int = 0) -> dict[str, int]:
    """`slack` behind all large tensors that stay, of which `rounding` counts as allocated: up to 512 bytes behind each,
    and up to 1 MiB behind a weight that was loaded into a segment of its own. `shared`: ends of segments that smaller
    weights share."""
    return {"allocator.rounding": rounding, "allocator.cached": slack - rounding + shared}


def remainders_bf16(slack: int) -> dict[str, int]:
    """`remainders` of whole bf16 weights and of what comes later."""
    return remainders(slack, ROUNDING_BF16, SHARED_BF16)


def remainders_read(size_of_number: int, slack: int = 0) -> dict[str, int]:
    """Where weights are read onto the card (`device_map`): one segment for all of them is there before. What is left of
    it when all but the vectors are in it counts as the last one's if it is up to 1 MiB. `slack`: behind what comes
    later."""
    vectors = size_of_number * (28 * 11_776 + 3584)
    left = -(size_of_number * PARAMS) % (2 * MIB) + vectors
    rounding = left if left <= MIB else 0
    return {"allocator.rounding": rounding, "allocator.cached": left - rounding + 2 * MIB - vectors + slack}


def weights_slack(size_of_number: int) -> int:
    """`slack` of one copy of all parameters: every tensor is an allocation of its own."""
    layer = [Q_PROJ, K_PROJ, K_PROJ, 3584, 512, 512, O_PROJ, GATE_PROJ, GATE_PROJ, GATE_PROJ, 3584, 3584]
    outer = [EMBEDDING, EMBEDDING, 3584]
    return sum(slack(size_of_number * elements) for elements in [*outer, *(28 * layer)])


assert remainders_read(2) == {"allocator.rounding": MIB, "allocator.cached": 1_430_528}
assert remainders_read(4) == {"allocator.rounding": 0, "allocator.cached": 2 * MIB + 763_904}
