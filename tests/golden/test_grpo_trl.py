"""Full GRPO on Qwen2.5-7B with TRL 1.16 on 8 H100 80 GB, worked by hand: `examples/trl_grpo.yaml`, once with
`examples/accelerate_fsdp2.yaml` beside it and once without (DDP).

vLLM runs inside the trainer's process with 0.3 of every GPU and does not sleep. Responses of 1024 tokens; nobody limits
prompts, 512 are assumed. 8 sequences a micro-batch, 4 micro-batches a step; every block is recomputed; TRL's fused head
works on the 1024 tokens of each response. No reference (beta 0).

Who is where: the policy's weights and, from the first step on, its moments stay throughout; so do the engine's weights,
graphs and pool. Gradients exist while a step accumulates.
"""

from __future__ import annotations

from pathlib import Path

from tests.golden.grpo import CONTEXT, GRAPHS, NCCL, RUNTIME, TOTAL, WORKSPACE, ask, assert_group, states
from tests.golden.qwen import (
    EMBEDDING,
    LAYER,
    MIB,
    PARAMS,
    remainders,
    remainders_bf16,
    slack,
    weights_slack,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
TRL, FSDP2 = str(EXAMPLES / "trl_grpo.yaml"), str(EXAMPLES / "accelerate_fsdp2.yaml")
CARDS = ("--gpu", "h100-sxm-80gb", "--gpus", "8")

TOKENS = 8 * (512 + 1024)  # 12,288
SCORED = 8 * 1024  # 8,192
HIDDEN_BF16 = 12288 * 3584 * 2  # 88,080,384
HIDDEN_FP32 = 12288 * 3584 * 4  # 176,160,768
KEYS_BF16 = 12288 * 512 * 2  # 12,582,912
FFN_BF16 = 12288 * 18944 * 2  # 465,567,744
NUMBERS = 12288 * 4
LOG_SUM_EXP = 12288 * 28 * 4  # 1,376,256
IDS = 2 * 12288 * 8  # 196,608
INPUTS = IDS + 2 * 1536 * 128 * 2  # 983,040: and cosines and sines of 1536 positions

SAVED = 28 * HIDDEN_BF16  # 2,466,250,752: the inputs of all blocks
BLOCK_FORWARD = 2 * HIDDEN_BF16 + 3 * FFN_BF16  # 1,572,864,000: residual stream and x; SiLU(gate), up, their product
BLOCK_SCORE = 2 * HIDDEN_BF16 + BLOCK_FORWARD  # 1,749,024,768: and the block's input and the embedding's output
BLOCK_BACKWARD = (
    2 * HIDDEN_BF16  # the gradient of the layer's output, the layer's input
    + 2 * (HIDDEN_FP32 + NUMBERS + HIDDEN_BF16)  # both norms
    + 2 * HIDDEN_BF16  # their outputs
    + (2 * HIDDEN_BF16 + 2 * KEYS_BF16 + LOG_SUM_EXP)  # queries and output, keys and values, sums
    + 3 * FFN_BF16  # gate, SiLU(gate), up
    + 3 * FFN_BF16  # the gradients of the product, of SiLU(gate), of up; down_proj's was added to the one kept
)
assert BLOCK_BACKWARD == 3_877_011_456

TILE = 4096 * 32768 * 2  # 268,435,456
PICKED, LABELS, STATISTICS = 8192 * 3584 * 2, 8192 * 8, 7 * 8192 * 4  # 58,720,256; 65,536; 229,376
FINAL_NORM = HIDDEN_FP32 + NUMBERS + HIDDEN_BF16
HEAD_SCORE = HIDDEN_BF16 + PICKED + LABELS + STATISTICS + TILE  # without a graph: the norm's output, no more
HEAD_LOSS = FINAL_NORM + HEAD_SCORE
assert (HEAD_SCORE, HEAD_LOSS) == (415_531_008, 679_821_312)
HEAD_BACKWARD = (
    FINAL_NORM
    + (PICKED + LABELS + 2 * 8192 * 4)  # the head's input, labels, log z and entropy
    + (4 + 8192 * 4)  # the loss and the gradient of every log-probability
    + (8192 * 3584 * 4 + EMBEDDING * 4)  # sums in fp32, of rows and of the head: 117,440,512 and 2,179,989,504
    + TILE
    + (PICKED + EMBEDDING * 2)  # both rounded to bf16; the head's is then added to the gradient that is kept
)
assert HEAD_BACKWARD == 4_037_754_884
# The embedding's gradient is made whole before it is added to the one that is kept; the kernel sorts the ids.
EMBED_BACKWARD = HIDDEN_BF16 + EMBEDDING * 2 + 4 * 12288 * 8
assert EMBED_BACKWARD == 1_178_468_352

# The engine on one rank: all parameters in bf16 and a table of 131,072 positions. 4096 tokens a step (fixed by TRL),
# 8 x 4 sequences at once (the responses of one step): the forward over 4096 tokens needs more than the sampler.
# Beside them ends of segments of 2 MiB that are too short to be split off: in a layer of queries, keys and values as
# one, of gate and up as one, of down (o_proj leaves 1.5 MiB, which is split off); of embedding and head.
ENDS = 28 * (524_288 + 1_048_576 + 524_288) + 2 * 524_288
ENGINE = (PARAMS + 131072 * 128) * 2 + ENDS
assert ENGINE == 15_264_787_456 + 59_768_832
ACTIVATION = 4096 * (3 * 18944 + 4 * 3584) * 2
assert ACTIVATION == 583_008_256 > 3584 * (4096 + 2 * 32) * 2 + 32 * 152064 * 147 // 10
POOL = 25_508_708_352  # 0.3 x 85,029,027,840
CACHE = POOL - ENGINE - ACTIVATION - GRAPHS - RUNTIME[1]
assert CACHE == 8_355_603_292
TOKEN = 2 * 28 * 4 * 128 * 2  # 57,344


def expected(
    resident: dict[str, int], learning: dict[str, int], gathered: dict[str, int], moments: int,
    rounded: dict[str, dict[str, int]],
) -> dict[tuple[str, str, str], dict[str, int]]:  # fmt: skip
    """A step. `resident` stays throughout, `learning` is kept between micro-batches, `gathered` is what FSDP gathers:
    nothing under DDP. `moments` are the optimizer's before the step, `rounded` the remainders behind tensors."""
    when = "steady" if moments else "first"
    workspace = 2 * WORKSPACE if moments else 0
    engine = {"engine.weights": ENGINE, "engine.kv": CACHE, "engine.graphs": GRAPHS, "engine.runtime": RUNTIME[1]}
    resting = {**resident, **engine, "optimizer.state": moments, **rounded["resting"]}
    idle = {**resting, "cublas.workspace": workspace}
    scoring = {**resting, "cublas.workspace": workspace or WORKSPACE, "inputs": INPUTS}
    # micro-batches before have been through backward, in autograd's thread
    forward = {**scoring, **learning, **rounded["learning"], "cublas.workspace": 2 * WORKSPACE}
    backward = forward
    blocks_run = {"fsdp.gathered": gathered["blocks"]}
    head_runs = {"fsdp.gathered": gathered["head"]}
    first_block = {
        ("forward", "first block", when): {
            **forward, "fsdp.gathered": gathered["first"], "activations.saved": HIDDEN_BF16
        }
    }  # fmt: skip
    return {
        ("sync", "weights", when): {**idle, "sync.gathered": gathered["sync"]},
        ("generate", "rollout", when): {**idle, "engine.activation": ACTIVATION},
        ("score.old", "last block", when): {**scoring, **blocks_run, "activations.block": BLOCK_SCORE},
        ("score.old", "head", when): {**scoring, **head_runs, "logits": HEAD_SCORE},
        **(first_block if gathered["first"] else {}),
        ("forward", "last block", when): {
            **forward, **blocks_run, "activations.saved": SAVED, "activations.block": BLOCK_FORWARD
        },
        ("loss", "head", when): {**forward, **head_runs, "activations.saved": SAVED, "logits": HEAD_LOSS},
        ("backward", "loss", when): {**backward, **head_runs, "activations.saved": SAVED, "logits": HEAD_BACKWARD},
        ("backward", "first block", when): {
            **backward, **blocks_run, "activations.saved": SAVED - HIDDEN_BF16, "activations.block": BLOCK_BACKWARD
        },
        ("backward", "last block", when): {**backward, **blocks_run, "activations.block": BLOCK_BACKWARD},
        ("backward", "embedding", when): {**backward, "inputs": IDS, "activations.block": EMBED_BACKWARD},
    }  # fmt: skip


def test_fsdp2() -> None:
    """FSDP2 over 8 ranks: fp32 shards of what was loaded in bf16, gathered and computed in bf16, reduced in bf16 once a
    step."""
    # Every tensor is cut along its first dimension; 152064, 3584, 512 and 18944 divide by 8.
    shard = PARAMS // 8  # 951,952,064
    weights = shard * 4  # 3,807,808,256
    moments = 2 * shard * 4
    # q, o, k and v are below 10 MiB. A shard of gate, up or down is 33,947,648 bytes: 17 segments less 1,703,936.
    tensors = [448 * 3584, 64 * 3584, 64 * 3584, 448, 64, 64, 448 * 3584, *3 * [2368 * 3584], 448, 448]
    rounding = sum(
        slack(4 * elements) for elements in [2 * [19008 * 3584], [448], 28 * tensors] for elements in elements
    )
    assert rounding == 2 * 131_072 + 256 + 28 * (3 * 1_703_936 + 5 * 256) == 143_428_864
    pages = 256 + 28 * 5 * 256  # behind a vector; shards are cut from what was loaded, so the rest is not allocated

    root = 2 * EMBEDDING + 3584
    gathered = {
        "first": (2 * root + 2 * LAYER) * 2,  # the root is copied out of the buffer it was gathered in: 5,292,224,512
        "blocks": (root + 2 * LAYER) * 2,  # 3,112,227,840: one block at work, the buffer of one more
        "head": (root + LAYER) * 2,  # 2,646,112,256
        "sync": EMBEDDING * 4,  # one tensor at a time, in the stored fp32
    }
    resident = {"weights": weights, "cuda.context": CONTEXT, "nccl": NCCL}
    # accelerate does not reduce before the last micro-batch: every rank keeps bf16 gradients of the whole model.
    learning = {"gradients.unsharded": PARAMS * 2}
    workspace = {"cublas.workspace": 2 * WORKSPACE}
    engine = {"engine.weights": ENGINE, "engine.kv": CACHE, "engine.graphs": GRAPHS, "engine.runtime": RUNTIME[1]}

    def step(before: int) -> dict[tuple[str, str, str], dict[str, int]]:
        when = "steady" if before else "first"
        copies = 3 if before else 1
        kept = remainders(copies * rounding, copies * pages)
        done = expected(resident, learning, gathered, before, {"resting": kept, "learning": kept})
        # The step: fp32 shards of the gradients; fused AdamW needs nothing beside its moments.
        return {
            **done,
            ("step", "update", when): {
                **resident, **engine, **workspace, "gradients": shard * 4, "optimizer.state": moments,
                **remainders(4 * rounding, 4 * pages),
            },
        }  # fmt: skip

    answer = ask(TRL, FSDP2, *CARDS)
    loaded = {**resident, **remainders(rounding, pages)}
    assert_group(
        answer,
        {
            ("load", "built", "first"): loaded,
            ("engine.start", "profiled", "first"): {**loaded, **engine, "engine.activation": ACTIVATION},
            **step(0),
            **step(moments),
        },
    )
    peak = answer["peak"]
    assert (peak["phase"], peak["instant"], peak["when"]) == ("backward", "first block", "steady")
    assert peak["bytes"] == (
        weights + moments + PARAMS * 2 + gathered["blocks"] + SAVED - HIDDEN_BF16 + BLOCK_BACKWARD + INPUTS
        + POOL - ACTIVATION + CONTEXT + NCCL + 2 * WORKSPACE + 3 * rounding
    ) == 62_715_174_666  # fmt: skip
    assert answer["nodes"] == []


def test_ddp() -> None:
    """Without a shard every GPU has all of it: weights, gradients, DDP's copy of them, moments, all in bf16."""
    weights = gradients = buckets = PARAMS * 2  # 15,231,233,024
    moments = 2 * PARAMS * 2
    rounding = 2 * MIB // 2 + 28 * (2 * 3 * MIB // 2 + 3 * MIB // 2)  # as on one GPU
    assert rounding == 133_169_152 == weights_slack(2)
    resident = {"weights": weights, "ddp.buckets": buckets, "cuda.context": CONTEXT, "nccl": NCCL}
    engine = {"engine.weights": ENGINE, "engine.kv": CACHE, "engine.graphs": GRAPHS, "engine.runtime": RUNTIME[1]}
    nothing = {"first": 0, "blocks": 0, "head": 0, "sync": 0}  # gathered: weights are whole

    def step(before: int) -> dict[tuple[str, str, str], dict[str, int]]:
        when = "steady" if before else "first"
        kept = 3 if before else 1
        return {
            **expected(
                resident, {"gradients": gradients}, nothing, before,
                {
                    "resting": remainders_bf16(kept * rounding),
                    "learning": remainders_bf16((kept + 1) * rounding),
                },
            ),
            ("step", "update", when): {
                **resident, **engine, "gradients": gradients, "optimizer.state": moments,
                "cublas.workspace": 2 * WORKSPACE, **remainders_bf16(4 * rounding),
            },
        }  # fmt: skip

    answer = ask(TRL, *CARDS)
    loaded = {**resident, **remainders_bf16(rounding)}
    assert_group(
        answer,
        {
            ("load", "built", "first"): loaded,
            ("engine.start", "profiled", "first"): {**loaded, **engine, "engine.activation": ACTIVATION},
            **step(0),
            **step(moments),
        },
    )
    assert (answer["peak"]["phase"], answer["peak"]["instant"]) == ("backward", "loss")
    assert answer["verdict"] == "does_not_fit"


def test_engine() -> None:
    engine = ask(TRL, FSDP2, *CARDS)["groups"][0]["engines"][0]
    assert POOL * 10 == TOTAL * 3
    assert {name: engine[name] for name in ("pool_bytes", "kv_bytes", "kv_bytes_per_token", "kv_tokens")} == {
        "pool_bytes": POOL, "kv_bytes": CACHE, "kv_bytes_per_token": TOKEN, "kv_tokens": CACHE // (16 * TOKEN) * 16,
    }  # fmt: skip
    # vLLM counts on its own limit, 131,072 positions, of which 145,696 tokens are one; a response of this job is not
    # longer than 1536: 95 fit at once, and the 32 of a rank are one wave.
    assert engine["kv_tokens"] == 145_696
    assert (engine["max_concurrency"], engine["waves"]) == (1, 1)


def test_who_is_where() -> None:
    answer = ask(TRL, FSDP2, *CARDS)
    assert answer["groups"][0]["roles"] == ["policy", "rollout"]
    assert states(answer, "engine.start") == {"policy": "rest", "rollout": "infer"}
    assert states(answer, "sync") == {"policy": "rest", "rollout": "held"}
    assert states(answer, "score.old") == {"policy": "infer", "rollout": "rest"}
    assert states(answer, "backward") == {"policy": "backward", "rollout": "rest"}
