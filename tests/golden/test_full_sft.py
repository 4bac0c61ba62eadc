"""Full fine-tuning of Qwen2.5-7B with TRL 1.16 on one A100 80 GB, worked by hand: `examples/trl_sft.yaml`.

2 sequences of 4096 tokens, packed; every block is recomputed in backward; TRL's fused head. In the order of a step:
what is alive, and why.
"""

from __future__ import annotations

from pathlib import Path

from tests.golden.compare import assert_phases
from tests.golden.qwen import (
    CONTEXT,
    EMBEDDING,
    LAYER,
    MIB,
    PARAMS,
    WORKSPACE,
    remainders_read,
    weights_slack,
)
from tests.jobs import check, phases, settings

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "trl_sft.yaml")
CARD = ("--gpu", "a100-sxm-80gb")

TOKENS = 2 * 4096  # 8,192
SCORED = 2 * 4095  # 8,190: no token comes before the first of a sequence, so nothing predicts it

# One tensor of all tokens.
HIDDEN_BF16 = 8192 * 3584 * 2  # 58,720,256; queries of all heads are as wide: 28 x 128 = 3584
HIDDEN_FP32 = 8192 * 3584 * 4  # 117,440,512
KEYS_BF16 = 8192 * 4 * 128 * 2  # 8,388,608: keys, or values, of 4 heads
FFN_BF16 = 8192 * 18944 * 2  # 310,378,496
NUMBERS = 8192 * 4  # 32,768: one fp32 number a token, such as the rsqrt of an RMSNorm
LOG_SUM_EXP = 8192 * 28 * 4  # 917,504: one fp32 number a token and head, kept by flash attention

# Token ids and attention mask are int64; cosines and sines of 4096 positions are 128 wide, in the dtype of the weights,
# and die with the graph of the last block that needs them.
IDS = 2 * 8192 * 8  # 131,072
INPUTS_BF16 = IDS + 2 * 4096 * 128 * 2  # 2,228,224
INPUTS_FP32 = IDS + 2 * 4096 * 128 * 4  # 4,325,376


def test_bf16_weights_and_eight_micro_batches() -> None:
    """The example as it is: weights, gradients and moments in bf16, gradients kept over 8 micro-batches."""
    weights = PARAMS * 2  # 15,231,233,024
    gradients = PARAMS * 2
    # AdamW's two moments have the dtype of the parameter. The first step makes them, and they stay.
    states = 2 * PARAMS * 2  # 30,462,466,048

    # Remainders behind a bf16 copy that comes later: embedding and head 519.75 segments of 2 MiB: 0.5 MiB each; q and o
    # 12.25 segments: 1.5 MiB; k and v 3.5 MiB: below 10 MiB, shared segments; gate, up, down 64.75: 0.5 MiB.
    slack = 2 * MIB // 2 + 28 * (2 * 3 * MIB // 2 + 3 * MIB // 2)
    assert slack == 133_169_152 == weights_slack(2)

    # forward · last block. A checkpoint keeps the input of its block and nothing else. The input of the first block is
    # the embedding's output; the last block's input is kept too, by the time it runs: 28 inputs.
    saved = 28 * HIDDEN_BF16
    assert saved == 1_644_167_168
    # No graph is made inside a checkpoint's forward, so tensors die with their Python variables. The most is alive
    # while the MLP multiplies, `down_proj(act_fn(gate_proj(x)) * up_proj(x))`:
    block_forward = (
        HIDDEN_BF16  # the residual stream after attention: `residual` of the decoder layer waits for the sum
        + HIDDEN_BF16  # x, the output of post_attention_layernorm: an argument of the MLP
        + FFN_BF16  # act_fn(gate_proj(x)); gate_proj's own output died when SiLU returned
        + FFN_BF16  # up_proj(x)
        + FFN_BF16  # their product
    )
    assert block_forward == 1_048_576_000

    # loss · head. TRL's head makes log-probabilities of the labelled tokens in tiles of 4096 tokens x 32768 words.
    tile = 4096 * 32768 * 2  # 268,435,456 of bf16 logits
    final_norm = HIDDEN_FP32 + NUMBERS + HIDDEN_BF16
    """saved by the final RMSNorm: the fp32 copy of its input, which x² and x·rsqrt need; the rsqrt; and the normalised
    rows in bf16, which the weight's gradient needs. The input itself is not needed and is gone."""
    picked = 8190 * 3584 * 2  # 58,705,920: the rows with a label, copied out
    labels = 8190 * 8  # int64
    loss = (
        final_norm
        + HIDDEN_BF16  # the norm's output, still a field of the model's output
        + picked
        + labels
        + 7 * 8190 * 4  # running maxima, sums and the target's logit, fp32 vectors of the kernel
        + tile
    )
    assert loss == 562_350_008

    # backward · loss. The head's backward makes each tile of logits again and sums two gradients in fp32.
    hidden_sum = 8190 * 3584 * 4  # 117,411,840
    head_sum = 152064 * 3584 * 4  # 2,179,989,504
    loss_backward = (
        final_norm
        + (picked + labels + 2 * 8190 * 4)  # saved by the head: its input, labels, log z and entropy
        + 4  # the loss, held by the training loop
        + 8190 * 4  # the gradient that comes in: one number a labelled token
        + hidden_sum
        + head_sum
        + tile  # the last tile is a variable of the function until it returns
        + 8190 * 3584 * 2  # both sums rounded to bf16, the sums still alive
        + 152064 * 3584 * 2  # 1,089,994,752; added to the gradient of the head afterwards
    )
    assert loss_backward == 3_949_600_732

    # backward · first block: the 28th layer, run again with a graph, then backwards. The checkpoint's recomputation
    # stops at the last saved tensor, the input of down_proj, so no output of the layer is made. Backward then needs
    # most while it takes the product of SiLU and up_proj apart:
    block_backward = (
        HIDDEN_BF16  # the gradient of the layer's output: it is also the gradient of the residual stream, which waits
        + HIDDEN_BF16  # the layer's input, which the checkpoint kept
        # input_layernorm: as in the final norm
        + (HIDDEN_FP32 + NUMBERS + HIDDEN_BF16)
        + HIDDEN_BF16  # its output: q_proj, k_proj and v_proj need it for the gradient of their weights
        # attention saves queries and keys after rope, values, its output and the log-sum-exp. Rope saves only its
        # tables: q·cos + rotate_half(q)·sin is linear in q. o_proj saves the attention's output, the same memory.
        + (HIDDEN_BF16 + KEYS_BF16 + KEYS_BF16 + HIDDEN_BF16 + LOG_SUM_EXP)
        # post_attention_layernorm, and its output for gate_proj and up_proj
        + (HIDDEN_FP32 + NUMBERS + HIDDEN_BF16)
        + HIDDEN_BF16
        + FFN_BF16  # gate_proj's output, saved by SiLU
        + FFN_BF16  # SiLU's output and up_proj's output, each saved for the other's gradient
        + FFN_BF16
        # down_proj is done: its input was freed, its weight's gradient was added to the one from earlier micro-batches
        + FFN_BF16  # the gradient of the product
        + FFN_BF16  # the two gradients that come out
        + FFN_BF16
    )
    assert block_backward == 2_584_674_304

    # backward · embedding: the gradient of the embedded tokens; a gradient of the whole table, made before it is added
    # to the one from earlier micro-batches; above 3072 tokens the kernel sorts the ids, in 4 vectors of int64.
    embedding = HIDDEN_BF16 + 152064 * 3584 * 2 + 4 * 8192 * 8
    assert embedding == 1_148_977_152

    def expected(moments: int, threads: int, rounded: int) -> dict[tuple[str, str, str], dict[str, int]]:
        """A pass with `moments` bytes of optimizer state before the step, `threads` cuBLAS workspaces in the forward
        and the allocator's remainders behind `rounded` copies of the parameters."""
        when = "steady" if moments else "first"
        always = {"weights": weights, "gradients": gradients, "optimizer.state": moments, "cuda.context": CONTEXT,
                  **remainders_read(2, (rounded - 1) * slack)}  # fmt: skip
        before = {**always, "inputs": INPUTS_BF16, "cublas.workspace": threads * WORKSPACE}
        during = {**before, "cublas.workspace": 2 * WORKSPACE}
        return {
            ("forward", "last block", when): {
                **before, "activations.saved": saved, "activations.block": block_forward
            },
            ("loss", "head", when): {**before, "activations.saved": saved, "logits": loss},
            ("backward", "loss", when): {**during, "activations.saved": saved, "logits": loss_backward},
            # the running block's input is counted with the block
            ("backward", "first block", when): {
                **during, "activations.saved": saved - HIDDEN_BF16, "activations.block": block_backward
            },
            ("backward", "last block", when): {**during, "activations.block": block_backward},
            ("backward", "embedding", when): {**during, "inputs": IDS, "activations.block": embedding},
            ("step", "update", when): {
                **always, "optimizer.state": states, "cublas.workspace": 2 * WORKSPACE,
                **remainders_read(2, 3 * slack),
            },
        }  # fmt: skip

    answer = check(EXAMPLE, *CARD)
    assert_phases(
        answer,
        {
            ("load", "built", "first"): {
                "weights": weights,
                "cuda.context": CONTEXT,
                **remainders_read(2),
            },
            # "first" is the last micro-batch before the first step: gradients exist, moments do not
            **expected(0, threads=2, rounded=2),
            **expected(states, threads=2, rounded=4),
        },
    )
    peak = answer["peak"]
    assert (peak["phase"], peak["instant"], peak["when"]) == ("backward", "loss", "steady")
    assert peak["bytes"] == 67_446_416_348

    # How many tokens have a label is unknown. With one a sequence the head needs least: 8190 becomes 2.
    fewest = final_norm + (2 * 3584 * 2 + 2 * 8 + 2 * 2 * 4) + 4 + 2 * 4 + 2 * 3584 * 4 + head_sum + 2 * 32768 * 2
    fewest += 2 * 3584 * 2 + 152064 * 3584 * 2
    assert fewest == 3_446_366_252
    logits = next(term for term in phases(answer)["backward", "loss", "steady"]["terms"] if term["name"] == "logits")
    assert (logits["low_bytes"], logits["high_bytes"]) == (fewest, loss_backward)


def test_fp32_weights_under_autocast() -> None:
    """TRL's own default: weights loaded in fp32, matrix products in bf16; here with one micro-batch a step."""
    weights = PARAMS * 4  # 30,462,466,048
    states = 2 * PARAMS * 4  # 60,924,932,096
    # behind a copy that comes later: embedding and head 1039.5 segments, q and o 24.5, gate, up and down 129.5: 1 MiB
    # each; k and v 7 MiB: none
    slack = 2 * MIB + 28 * 5 * MIB
    assert slack == 148_897_792 == weights_slack(4)

    # The residual stream is fp32: embedding and norms give fp32, and bf16 + fp32 is fp32.
    saved = 28 * HIDDEN_FP32
    assert saved == 3_288_334_336

    # forward · last block. Autocast copies a weight that trains to bf16 once and keeps the copy until the region ends:
    # the 7 linear weights and 3 biases of every layer. Norms and the embedding are not copied.
    attention_copies = (3584 * 3584 + 2 * 512 * 3584 + 3584 + 2 * 512 + 3584 * 3584) * 2  # 58,729,472
    ffn_copy = 18944 * 3584 * 2  # 135,790,592
    copies = 28 * (attention_copies + 3 * ffn_copy)
    assert copies == 13_050_834_944
    # While the last MLP multiplies, its down_proj has not been copied yet: the block's own tensors are counted against
    # the full number of copies.
    block_forward = HIDDEN_FP32 + HIDDEN_FP32 + 3 * FFN_BF16 - ffn_copy
    assert block_forward == 1_030_225_920

    # loss · head. The final norm is fp32 throughout: `.to(fp32)` copies nothing, so the norm saves its input itself.
    tile = 4096 * 32768 * 2
    hidden_tile = 4096 * 3584 * 2  # 29,360,128: rows of the tile cast to bf16
    head_tile = 32768 * 3584 * 2  # 234,881,024: a slice of the head cast to bf16
    final_norm = HIDDEN_FP32 + NUMBERS + HIDDEN_FP32
    picked, labels = 8190 * 3584 * 4, 8190 * 8  # 117,411,840 and 65,520
    loss = final_norm + HIDDEN_FP32 + picked + labels + 7 * 8190 * 4 + tile + hidden_tile + head_tile
    assert loss == 1_002_737_592

    # backward · loss. The fp32 sums are the gradients: nothing is rounded. The head's is a gradient of a parameter, and
    # counted as one. Backward casts the next slice of the head before it lets go of the last: two.
    end_gradients = (152064 * 3584 + 3584) * 4  # head and final norm: 2,180,003,840
    loss_backward = (
        final_norm
        + (picked + labels + 2 * 8190 * 4)
        + 4
        + 8190 * 4
        + 8190 * 3584 * 4  # the gradient of the labelled rows
        + tile
        + hidden_tile
        + 2 * head_tile
        - 3584 * 4  # the final norm's gradient, counted above, comes after this moment
    )
    assert loss_backward == 1_237_444_572

    # backward · first block, again while the product of SiLU and up_proj is taken apart. Under autocast every linear
    # casts its own input, and casts are not cached: three bf16 copies of the same normalised rows.
    layer_gradients = LAYER * 4  # 932,231,168
    block_backward = (
        HIDDEN_FP32  # the gradient of the residual stream
        + HIDDEN_FP32  # the layer's input; the norm saves this very tensor
        + (NUMBERS + HIDDEN_FP32)  # rsqrt and normalised rows
        + 3 * HIDDEN_BF16  # the inputs of q_proj, k_proj, v_proj
        + (3584 * 3584 + 2 * 512 * 3584) * 2  # their weights' copies, for the gradients of their inputs
        # attention: rope is computed in fp32 (its tables are fp32), so queries and keys are cast back; values are bf16
        + (HIDDEN_BF16 + KEYS_BF16 + KEYS_BF16 + HIDDEN_BF16 + LOG_SUM_EXP)
        + 3584 * 3584 * 2  # o_proj's copy; its input is the attention's output
        + (HIDDEN_FP32 + NUMBERS + HIDDEN_FP32)  # post_attention_layernorm: its input, rsqrt, normalised rows
        + 2 * HIDDEN_BF16  # the inputs of gate_proj and up_proj
        + 2 * ffn_copy
        + FFN_BF16  # gate_proj's output, SiLU's, up_proj's
        + FFN_BF16
        + FFN_BF16
        + FFN_BF16  # the gradient of the product, and the two that come out
        + FFN_BF16
        + FFN_BF16
        + 18944 * 3584 * 4  # the gradient of down_proj's weight is there already ...
        - layer_gradients  # ... and the layer's gradients are counted whole under `gradients`
    )
    assert block_backward == 2_547_927_040

    # backward · embedding: the table's gradient is counted under `gradients`
    embedding = HIDDEN_FP32 + 4 * 8192 * 8

    def expected(moments: int, threads: int, rounded: int) -> dict[tuple[str, str, str], dict[str, int]]:
        when = "steady" if moments else "first"
        always = {"weights": weights, "optimizer.state": moments, "cuda.context": CONTEXT,
                  **remainders_read(4, (rounded - 1) * slack)}  # fmt: skip
        before = {**always, "inputs": INPUTS_FP32, "cublas.workspace": threads * WORKSPACE}
        during = {**before, "cublas.workspace": 2 * WORKSPACE}
        return {
            ("forward", "last block", when): {
                **before, "activations.saved": saved, "autocast.weights": copies, "activations.block": block_forward
            },
            ("loss", "head", when): {
                **before, "activations.saved": saved, "autocast.weights": copies, "logits": loss
            },
            # the region has ended: no copies. Recomputation makes each block's own again.
            ("backward", "loss", when): {
                **during, "activations.saved": saved, "logits": loss_backward, "gradients": end_gradients
            },
            ("backward", "first block", when): {
                **during, "activations.saved": saved - HIDDEN_FP32, "activations.block": block_backward,
                "gradients": end_gradients + layer_gradients,
            },
            # all gradients but the embedding's
            ("backward", "last block", when): {
                **during, "activations.block": block_backward, "gradients": end_gradients + 28 * layer_gradients
            },
            ("backward", "embedding", when): {
                **during, "inputs": IDS, "activations.block": embedding, "gradients": PARAMS * 4,
                **remainders_read(4, rounded * slack),
            },
            ("step", "update", when): {
                **always, "optimizer.state": states, "gradients": PARAMS * 4, "cublas.workspace": 2 * WORKSPACE,
                **remainders_read(4, 3 * slack),
            },
        }  # fmt: skip

    answer = check(EXAMPLE, *CARD, *settings(weights_dtype="fp32", accumulation=1))
    assert end_gradients + 28 * layer_gradients + EMBEDDING * 4 == PARAMS * 4
    assert_phases(
        answer,
        {
            ("load", "built", "first"): {"weights": weights, "cuda.context": CONTEXT, **remainders_read(4)},
            **expected(0, threads=1, rounded=1),
            **expected(states, threads=2, rounded=3),
        },
    )
    assert answer["verdict"] == "does_not_fit"
