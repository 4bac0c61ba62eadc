"""LoRA on Qwen2.5-7B with TRL 1.16 and PEFT on one A100 80 GB, worked by hand.

The base is bf16 and frozen; adapters of rank 16 on every linear layer, in fp32 as PEFT keeps them, with dropout 0.05;
bf16 autocast; every block is recomputed; 4 sequences of 2048 tokens, one micro-batch a step; TRL's fused head.
"""

from __future__ import annotations

from tests.golden.compare import assert_phases
from tests.golden.qwen import CONTEXT, PARAMS, WORKSPACE, remainders_read
from tests.jobs import check, settings

JOB = settings(
    framework="trl==1.16.0", tuning="lora", lora__rank=16, lora__targets="all-linear", lora__dtype="fp32",
    lora__dropout=0.05, weights_dtype="bf16", compute_dtype="bf16", autocast="true", recompute="full", loss="fused",
    micro_batch=4, seq_len=2048, accumulation=1, attention="flash",
)  # fmt: skip

TOKENS = 4 * 2048  # 8,192
SCORED = 4 * 2047  # 8,188: all but the first of a sequence

HIDDEN_BF16 = 8192 * 3584 * 2  # 58,720,256; all query heads together are as wide
HIDDEN_FP32 = 8192 * 3584 * 4  # 117,440,512
KEYS_BF16 = 8192 * 4 * 128 * 2  # 8,388,608
FFN_BF16 = 8192 * 18944 * 2  # 310,378,496
FFN_FP32 = 8192 * 18944 * 4  # 620,756,992
NUMBERS = 8192 * 4  # 32,768: one fp32 number a token
LOG_SUM_EXP = 8192 * 28 * 4  # 917,504
RANK_BF16 = 8192 * 16 * 2  # 262,144: what an adapter's A gives
IDS = 2 * 8192 * 8  # 131,072: ids and mask
INPUTS = IDS + 2 * 2048 * 128 * 2  # 1,179,648: and, until the blocks are done, cosines and sines of 2048 positions

# A is 16 x inputs and B is outputs x 16: rank x (inputs + outputs) an adapted layer. q and o 3584 + 3584, k and v
# 3584 + 512, gate, up and down 3584 + 18944.
ADAPTER_LAYER = 16 * (2 * (3584 + 3584) + 2 * (3584 + 512) + 3 * (3584 + 18944))  # 1,441,792
ADAPTERS = 28 * ADAPTER_LAYER
assert ADAPTERS == 40_370_176


def test_lora_on_a_bf16_base() -> None:
    weights = PARAMS * 2  # 15,231,233,024
    adapters = ADAPTERS * 4  # 161,480,704, and so many their gradients
    states = 2 * ADAPTERS * 4  # 322,961,408: two fp32 moments
    # Behind the frozen bf16 weights as in full tuning. Adapters are small and multiples of 512 bytes: nothing.

    # Checkpoints keep the 28 inputs of the blocks.
    saved = 28 * HIDDEN_BF16
    assert saved == 1_644_167_168
    # Autocast keeps a bf16 copy of every fp32 weight that trains: of all adapters. The base is bf16 already.
    copies = ADAPTERS * 2
    assert copies == 80_740_352

    # forward · last block. No graph; most is alive in the adapter of down_proj, whose input is the widest tensor of the
    # model and whose adapter is fp32:
    block_forward = (
        HIDDEN_BF16  # the residual stream after attention
        + HIDDEN_BF16  # x of the MLP
        + FFN_BF16  # SiLU(gate) x up, the input of down_proj
        + HIDDEN_BF16  # what the frozen down_proj made of it, waiting for the adapter's part
        + FFN_FP32  # the input in the adapter's dtype: PEFT casts before dropout
        + FFN_FP32  # dropped out; without a graph the mask is not kept
        + FFN_BF16  # autocast casts it back to bf16 for A
        + RANK_BF16  # A's output
        - 3584 * 16 * 2  # B has not been copied to bf16 yet: all copies are counted above
    )
    assert block_forward == 2_038_579_200

    # loss · head. The head is frozen; the same kernel as in full tuning. The norm's weight is frozen too, so the final
    # norm saves the fp32 copy of its input and the rsqrt, no normalised rows.
    tile = 4096 * 32768 * 2  # 268,435,456
    picked, labels = 8188 * 3584 * 2, 8188 * 8  # 58,691,584 and 65,504
    loss = (HIDDEN_FP32 + NUMBERS) + HIDDEN_BF16 + picked + labels + 7 * 8188 * 4 + tile
    assert loss == 503_615_344

    # backward · loss. Without a gradient of the head (2.2 GB in full tuning) the final norm needs most, while x² is
    # taken back: 2·x·g is made as x, times 2, times g.
    loss_backward = (
        HIDDEN_FP32  # the fp32 copy of the norm's input
        + 4  # the loss
        + HIDDEN_FP32  # the gradient of that copy that came through x · rsqrt, waiting for the other one
        + HIDDEN_FP32  # g, the gradient of the mean, expanded to all columns
        + HIDDEN_FP32  # x to the power of 1
        + HIDDEN_FP32  # times 2
        + HIDDEN_FP32  # times g
    )
    assert loss_backward == 704_643_076

    # backward · first block: the 28th layer, recomputed. The most is alive at the end of the recomputation, again in
    # down_proj's adapter, now with everything that backward will need:
    def adapter(mask_width: int, input_cast: int, outputs: int, inputs: int = 3584) -> int:
        """What one adapter saves: dropout's mask of one byte a number; the copies of A and B in bf16, for the gradients
        of their inputs; A's input in bf16 (dropout makes it differ between layers of one input) and B's input, for the
        gradients of A and B."""
        return 8192 * mask_width + 16 * (inputs + outputs) * 2 + input_cast + RANK_BF16

    block_backward = (
        HIDDEN_BF16  # the gradient of the layer's output
        + HIDDEN_BF16  # the layer's input
        # Backward had begun before: the adapter's part of down_proj's output is scaled by alpha / rank, which needs no
        # saved tensor, so its gradient was made before anything was recomputed.
        + HIDDEN_BF16
        + (HIDDEN_FP32 + NUMBERS)  # input_layernorm: frozen weight, so no normalised rows
        # The frozen q_proj, k_proj, v_proj save nothing; their adapters do.
        + adapter(3584, HIDDEN_BF16, outputs=3584)
        + 2 * adapter(3584, HIDDEN_BF16, outputs=512)
        + (HIDDEN_BF16 + KEYS_BF16 + KEYS_BF16 + HIDDEN_BF16 + LOG_SUM_EXP)  # queries, keys, values, output, sums
        + adapter(3584, HIDDEN_BF16, outputs=3584)  # o_proj
        + HIDDEN_BF16  # the residual stream after attention: a variable of the running layer
        + (HIDDEN_FP32 + NUMBERS)  # post_attention_layernorm
        + HIDDEN_BF16  # x of the running MLP
        + adapter(3584, HIDDEN_BF16, outputs=18944)  # gate_proj
        + FFN_BF16  # its output, saved by SiLU
        + FFN_BF16  # SiLU's output, saved by the product
        + adapter(3584, HIDDEN_BF16, outputs=18944)  # up_proj
        + FFN_BF16  # its output, saved by the product
        # down_proj is running, in A's product: B has not been touched
        + FFN_BF16  # its input: frozen, it saves nothing, but the MLP's call holds it
        + HIDDEN_BF16  # the frozen layer's output
        + FFN_FP32  # its input as fp32
        + FFN_FP32  # dropped out
        + 8192 * 18944  # dropout's mask, 155,189,248
        + 16 * 18944 * 2  # A as bf16
        + FFN_BF16  # A's input as bf16
        + RANK_BF16  # A's output
        - ADAPTER_LAYER * 4  # no gradient of this layer exists yet; `gradients` counts them whole: 5,767,168
    )
    assert block_backward == 4_198_318_080

    def expected(moments: int, threads: int) -> dict[tuple[str, str, str], dict[str, int]]:
        when = "steady" if moments else "first"
        always = {"weights": weights, "adapters": adapters, "optimizer.state": moments, "cuda.context": CONTEXT,
                  **remainders_read(2)}  # fmt: skip
        before = {**always, "inputs": INPUTS, "cublas.workspace": threads * WORKSPACE}
        during = {**before, "cublas.workspace": 2 * WORKSPACE}
        return {
            ("forward", "last block", when): {
                **before, "activations.saved": saved, "autocast.weights": copies, "activations.block": block_forward
            },
            ("loss", "head", when): {
                **before, "activations.saved": saved, "autocast.weights": copies, "logits": loss
            },
            ("backward", "loss", when): {**during, "activations.saved": saved, "logits": loss_backward},
            ("backward", "first block", when): {
                **during, "activations.saved": saved - HIDDEN_BF16, "activations.block": block_backward,
                "gradients": ADAPTER_LAYER * 4,
            },
            ("backward", "last block", when): {
                **during, "activations.block": block_backward, "gradients": adapters
            },
            # the embedding is frozen; its output was made to require a gradient, so that the first checkpoint has one
            ("backward", "embedding", when): {
                **during, "inputs": IDS, "activations.block": HIDDEN_BF16, "gradients": adapters
            },
            ("step", "update", when): {
                **always, "optimizer.state": states, "gradients": adapters, "cublas.workspace": 2 * WORKSPACE
            },
        }  # fmt: skip

    answer = check("--model", "Qwen/Qwen2.5-7B", "--gpu", "a100-sxm-80gb", *JOB)
    assert_phases(
        answer,
        {
            ("load", "built", "first"): {
                "weights": weights, "adapters": adapters, "cuda.context": CONTEXT, **remainders_read(2)
            },
            **expected(0, threads=1),
            **expected(states, threads=2),
        },
    )  # fmt: skip
    assert answer["verdict"] == "fits"
    assert answer["peak"]["bytes"] == 22_032_367_616
