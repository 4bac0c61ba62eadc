"""LoRA GRPO on Qwen2.5-7B with TRL 1.16 and PEFT on one H100 80 GB, worked by hand: with a vLLM engine inside the
trainer's process, and with Hugging Face's `generate`, TRL's default.

Rank 16 on q_proj and v_proj (PEFT's choice for Qwen2), adapters in fp32, dropout 0.05, bf16 autocast, every block is
recomputed. 8 sequences of 512 + 512 tokens, one micro-batch a step, TRL's fused head on the 512 tokens of a response.
"""

from __future__ import annotations

from tests.golden.grpo import CONTEXT, GRAPHS, RUNTIME, TOTAL, WORKSPACE, assert_group
from tests.golden.qwen import MIB, PARAMS, remainders_read
from tests.jobs import check, settings

ASKED = ("--model", "Qwen/Qwen2.5-7B", "--gpu", "h100-sxm-80gb", *settings(algorithm="grpo", tuning="lora"))

TOKENS = 8 * 1024  # 8,192
SCORED = 8 * 512  # 4,096
HIDDEN_BF16 = 8192 * 3584 * 2  # 58,720,256
HIDDEN_FP32 = 8192 * 3584 * 4  # 117,440,512
KEYS_BF16 = 8192 * 512 * 2  # 8,388,608
FFN_BF16 = 8192 * 18944 * 2  # 310,378,496
NUMBERS = 8192 * 4  # 32,768
LOG_SUM_EXP = 8192 * 28 * 4  # 917,504
RANK_BF16 = 8192 * 16 * 2  # 262,144
MASK = 8192 * 3584  # 29,360,128: one byte a number of a dropped-out input
IDS = 2 * 8192 * 8  # 131,072

ADAPTER_LAYER = 16 * ((3584 + 3584) + (3584 + 512))  # 180,224: A and B of q_proj and of v_proj
ADAPTERS = 28 * ADAPTER_LAYER  # 5,046,272
COPIES = ADAPTERS * 2  # 10,092,544: autocast's bf16 copies of fp32 weights that train, in scoring too
adapters, gradients, moments = ADAPTERS * 4, ADAPTERS * 4, 2 * ADAPTERS * 4
assert (adapters, moments) == (20_185_088, 40_370_176)

TILE = 4096 * 32768 * 2  # 268,435,456: 4096 tokens are one tile
LABELS, STATISTICS = 4096 * 8, 7 * 4096 * 4  # 32,768 and 114,688

# What the adapters of q_proj and v_proj save: the mask, A's input in bf16, A and B in bf16, B's input.
SAVED_ADAPTERS = 2 * (MASK + HIDDEN_BF16 + RANK_BF16) + ADAPTER_LAYER * 2
assert SAVED_ADAPTERS == 177_045_504


def test_vllm_beside_a_bf16_base() -> None:
    """The reference is the same model with its adapters off."""
    weights = PARAMS * 2
    inputs = IDS + 2 * 1024 * 128 * 2  # 655,360

    # The engine: 0.3 of the card; 4096 tokens a step; 8 sequences at once.
    ends = 28 * (524_288 + 1_048_576 + 524_288) + 2 * 524_288  # of segments, too short to be split off
    engine_weights = (PARAMS + 131072 * 128) * 2 + ends  # 15,324,556,288
    activation = 4096 * (3 * 18944 + 4 * 3584) * 2  # 583,008,256
    cache = TOTAL * 3 // 10 - engine_weights - activation - GRAPHS - RUNTIME[1]
    assert cache == 8_355_603_292
    engine = {"engine.weights": engine_weights, "engine.kv": cache, "engine.graphs": GRAPHS,
              "engine.runtime": RUNTIME[1]}  # fmt: skip

    # The widest moment of a block is in the MLP, whose layers are not adapted.
    saved = 28 * HIDDEN_BF16  # 1,644,167,168
    block_forward = 2 * HIDDEN_BF16 + 3 * FFN_BF16  # 1,048,576,000
    block_score = 2 * HIDDEN_BF16 + block_forward  # 1,166,016,512
    block_backward = (
        2 * HIDDEN_BF16  # the gradient of the layer's output, the layer's input
        + 2 * (HIDDEN_FP32 + NUMBERS)  # both norms: their weights are frozen, no normalised rows are kept
        + SAVED_ADAPTERS
        + (2 * HIDDEN_BF16 + 2 * KEYS_BF16 + LOG_SUM_EXP)  # queries and output, keys and values, sums
        + 3 * FFN_BF16  # gate, SiLU(gate), up
        + 3 * FFN_BF16  # the gradients of the product, of SiLU(gate), of up; down_proj is frozen
        - ADAPTER_LAYER * 4  # no gradient of this layer exists yet; `gradients` counts them
    )
    assert block_backward == 2_526_117_888

    picked = 4096 * 3584 * 2  # 29,360,128
    head_score = HIDDEN_BF16 + picked + LABELS + STATISTICS + TILE
    head_loss = (HIDDEN_FP32 + NUMBERS) + head_score
    assert (head_score, head_loss) == (356_663_296, 474_136_576)
    # As in supervised training: the final norm's backward needs most, while x² is taken back.
    head_backward = 6 * HIDDEN_FP32 + 4
    assert head_backward == 704_643_076

    def expected(before: int) -> dict[tuple[str, str, str], dict[str, int]]:
        when = "steady" if before else "first"
        resting = {"weights": weights, "adapters": adapters, **engine, "optimizer.state": before,
                   "cuda.context": CONTEXT, **remainders_read(2),
                   "cublas.workspace": 2 * WORKSPACE if before else 0}  # fmt: skip
        working = {**resting, "cublas.workspace": 2 * WORKSPACE if before else WORKSPACE, "inputs": inputs}
        copies = {"autocast.weights": COPIES}
        backward = {**working, "cublas.workspace": 2 * WORKSPACE}
        return {
            ("sync", "weights", when): resting,  # adapters are merged into the weights in place, one tensor goes after
            ("generate", "rollout", when): {**resting, "engine.activation": activation},  # the other
            ("score.old", "last block", when): {**working, **copies, "activations.block": block_score},
            ("score.old", "head", when): {**working, **copies, "logits": head_score},
            # adapters and moments stay; the pass goes around them, and nothing is copied
            ("score.reference", "last block", when): {**working, "activations.block": block_score},
            ("score.reference", "head", when): {**working, "logits": head_score},
            ("forward", "last block", when): {
                **working, **copies, "activations.saved": saved, "activations.block": block_forward
            },
            ("loss", "head", when): {**working, **copies, "activations.saved": saved, "logits": head_loss},
            ("backward", "loss", when): {**backward, "activations.saved": saved, "logits": head_backward},
            ("backward", "first block", when): {
                **backward, "activations.saved": saved - HIDDEN_BF16, "activations.block": block_backward,
                "gradients": ADAPTER_LAYER * 4,
            },
            ("backward", "last block", when): {
                **backward, "activations.block": block_backward, "gradients": gradients
            },
            ("backward", "embedding", when): {
                **backward, "inputs": IDS, "activations.block": HIDDEN_BF16, "gradients": gradients
            },
            ("step", "update", when): {
                **backward, "inputs": 0, "gradients": gradients, "optimizer.state": moments
            },
        }  # fmt: skip

    job = settings(engine__kind="vllm", weights_dtype="bf16", reference__kind="adapter_off")
    answer = check(*ASKED, *job)
    loaded = {
        "weights": weights,
        "adapters": adapters,
        "cuda.context": CONTEXT,
        **remainders_read(2),
    }
    assert_group(
        answer,
        {
            ("load", "built", "first"): loaded,
            ("engine.start", "profiled", "first"): {**loaded, **engine, "engine.activation": activation},
            **expected(0),
            **expected(moments),
        },
    )
    assert answer["verdict"] == "fits"
    peak = answer["peak"]
    assert (peak["phase"], peak["instant"], peak["when"]) == ("backward", "first block", "steady")
    assert peak["bytes"] == 44_947_625_738


def test_hf_generates_with_a_fp32_base() -> None:
    """TRL's defaults, when only `algorithm` and `tuning` are said: the base is loaded in fp32 and the model itself
    generates; no reference, no old log-probabilities."""
    weights = PARAMS * 4  # 30,462,466,048
    inputs = IDS + 2 * 1024 * 128 * 4  # 1,179,648: cosines and sines in fp32

    # generate. PEFT calls the model inside, whose forward accelerate did not wrap: no autocast, all of it in fp32.
    # Prompts first, 8 x 512 tokens in one pass:
    hidden, ffn = 4096 * 3584 * 4, 4096 * 18944 * 4  # 58,720,256 and 310,378,496
    prefill = 4 * hidden + 3 * ffn  # embedded tokens, the block's input, the residual stream, x; and three products
    assert prefill == 1_166_016_512
    token = 2 * 28 * 512 * 4  # 114,688: keys and values of one token
    last_logits = 8 * 152064 * 4  # 4,866,048
    # ... then token by token: the cache of one layer's keys exists twice while it grows.
    decode = 4 * 8 * 3584 * 4 + 3 * 8 * 18944 * 4  # 2,277,376
    grow = 8 * 1023 * 512 * 4  # 16,760,832
    ids, ids_all = 3 * 8 * 512 * 8, 3 * 8 * 1024 * 8  # ids, mask, positions: 98,304 and 196,608

    # Learning, under autocast. The residual stream is fp32; what linear layers make is bf16. The frozen base is copied
    # to bf16 layer by layer and nothing is kept; copies of adapters are.
    saved = 28 * HIDDEN_FP32  # 3,288,334,336
    block_forward = 2 * HIDDEN_FP32 + 3 * FFN_BF16
    assert block_forward == 1_166_016_512
    attention_copies = (2 * 3584 * 3584 + 2 * 512 * 3584) * 2  # q, o, k, v as bf16: 58,720,256
    ffn_copy = 18944 * 3584 * 2  # 135,790,592
    block_backward = (
        HIDDEN_FP32  # the gradient of the layer's output
        + HIDDEN_FP32  # the layer's input, which the norm saves too
        + NUMBERS
        + attention_copies  # saved for the gradients of inputs
        + SAVED_ADAPTERS
        + (2 * HIDDEN_BF16 + 2 * KEYS_BF16 + LOG_SUM_EXP)
        + HIDDEN_FP32  # the residual stream after attention, saved by its norm
        + NUMBERS
        + 2 * ffn_copy  # of gate_proj and up_proj; down_proj is done
        + 3 * FFN_BF16
        + 3 * FFN_BF16
        - ADAPTER_LAYER * 4
    )
    assert block_backward == 2_856_419_328

    # Head. Rows and head are fp32 and cast tile by tile: 4096 rows, 32768 words, in backward two slices of the head.
    picked, row_tile, head_tile = 4096 * 3584 * 4, 4096 * 3584 * 2, 32768 * 3584 * 2
    final_norm = HIDDEN_FP32 + NUMBERS  # saves its input itself
    head_loss = final_norm + HIDDEN_FP32 + picked + LABELS + STATISTICS + TILE + row_tile + head_tile
    assert head_loss == 826_458_112
    head_backward = (
        final_norm
        + (picked + LABELS + 2 * 4096 * 4)
        + (4 + 4096 * 4)
        + picked  # the gradient of the rows, summed in fp32: nothing to round
        + TILE
        + row_tile
        + 2 * head_tile
    )
    assert head_backward == 1_002_553_348

    def expected(before: int) -> dict[tuple[str, str, str], dict[str, int]]:
        when = "steady" if before else "first"
        working = {"weights": weights, "adapters": adapters, "optimizer.state": before, "cuda.context": CONTEXT,
                   **remainders_read(4),
                   "cublas.workspace": 2 * WORKSPACE if before else WORKSPACE}  # fmt: skip
        learning = {**working, "inputs": inputs}
        backward = {**learning, "cublas.workspace": 2 * WORKSPACE}
        copies = {"autocast.weights": COPIES}
        return {
            ("generate", "prefill", when): {
                **working, "activations.block": prefill, "kv_cache": 8 * 512 * token,
                "inputs": ids + 2 * 8 * 512 * 128 * 4,
            },
            ("generate", "first token", when): {
                **working, "kv_cache": 8 * 512 * token, "logits": hidden + last_logits, "inputs": ids
            },
            ("generate", "decode", when): {
                **working, "activations.block": decode, "kv_cache": 8 * 1024 * token, "kv_cache.grow": grow,
                "logits": last_logits, "inputs": ids_all + 2 * 8 * 128 * 4,
            },
            ("forward", "last block", when): {
                **learning, **copies, "activations.saved": saved, "activations.block": block_forward
            },
            ("loss", "head", when): {**learning, **copies, "activations.saved": saved, "logits": head_loss},
            ("backward", "loss", when): {**backward, "activations.saved": saved, "logits": head_backward},
            ("backward", "first block", when): {
                **backward, "activations.saved": saved - HIDDEN_FP32, "activations.block": block_backward,
                "gradients": ADAPTER_LAYER * 4,
            },
            ("backward", "last block", when): {
                **backward, "activations.block": block_backward, "gradients": gradients
            },
            ("backward", "embedding", when): {
                **backward, "inputs": IDS, "activations.block": HIDDEN_FP32, "gradients": gradients
            },
            ("step", "update", when): {
                **backward, "inputs": 0, "gradients": gradients, "optimizer.state": moments
            },
        }  # fmt: skip

    answer = check(*ASKED)
    assert_group(
        answer,
        {
            ("load", "built", "first"): {
                "weights": weights, "adapters": adapters, "cuda.context": CONTEXT, **remainders_read(4)
            },
            **expected(0),
            **expected(moments),
        },
    )  # fmt: skip
    assert answer["groups"][0]["engines"] == []
    assert answer["verdict"] == "fits"
    assert answer["peak"]["bytes"] < 35 * 1024 * MIB
