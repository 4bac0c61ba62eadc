"""Qwen2.5-7B generating with Hugging Face's `generate` on one A100 80 GB, worked by hand: 16 sequences of 4096 tokens,
bf16. The prompt is read in one pass, then tokens come one by one."""

from __future__ import annotations

from tests.golden.compare import assert_phases
from tests.golden.qwen import CONTEXT, MIB, PARAMS, WORKSPACE, remainders_bf16
from tests.jobs import check, settings

JOB = settings(algorithm="inference", framework="transformers==5.24.0", seq_len=4096, micro_batch=16,
               weights_dtype="bf16", attention="flash")  # fmt: skip


def test_inference() -> None:
    weights = PARAMS * 2  # 15,231,233,024
    slack = 133_169_152  # behind the weights, worked in test_full_sft.py

    # Keys and values: 2 x 28 layers x 4 heads x 128 numbers x 2 bytes = 57,344 bytes (56 KiB) a token. The cache copies
    # what the projections made, so nothing else holds it.
    kv_cache = 16 * 4096 * (2 * 28 * 4 * 128 * 2)
    assert kv_cache == 3_758_096_384

    # generate · prefill: all tokens at once, a block at a time, no graph.
    hidden = 16 * 4096 * 3584 * 2  # 469,762,048
    ffn = 16 * 4096 * 18944 * 2  # 2,483,027,968
    prefill = (
        hidden  # the embedding's output: `inputs_embeds` is a variable of the model's forward until it returns
        + hidden  # the running block's input, a variable of the loop over blocks
        + hidden  # the residual stream after attention
        + hidden  # x, the MLP's input
        + ffn  # SiLU(gate_proj(x)), up_proj(x) and their product
        + ffn
        + ffn
    )
    assert prefill == 9_328_132_096
    # ids, mask and positions are int64. `generate` counts the positions of every sequence from its mask, so each has
    # cosines and sines of its own: 128 wide, bf16.
    ids = 3 * 16 * 4096 * 8  # 1,572,864
    tables = 2 * 16 * 4096 * 128 * 2  # 33,554,432

    # generate · first token: the head sees the last position of every sequence. The hidden states of all positions are
    # a field of the model's output while the head runs.
    last_logits = 16 * 152064 * 2  # 4,866,048
    first_token = hidden + last_logits
    assert first_token == 474_628_096

    # generate · decode: one token a sequence. The logits of the last step, copied to fp32 for sampling, are a variable
    # of the loop while the next token is computed.
    decode = 4 * 16 * 3584 * 2 + 3 * 16 * 18944 * 2
    assert decode == 2_277_376
    # A cache grows by torch.cat: the keys of one layer exist twice, without the newest token the second time.
    grow = 16 * 4095 * (4 * 128 * 2)
    assert grow == 67_092_480

    always = {"weights": weights, "cuda.context": CONTEXT, **remainders_bf16(slack)}
    running = {**always, "cublas.workspace": WORKSPACE, "kv_cache": kv_cache}
    answer = check("--model", "Qwen/Qwen2.5-7B", "--gpu", "a100-sxm-80gb", *JOB)
    assert_phases(
        answer,
        {
            ("load", "built", "first"): always,
            ("generate", "prefill", "steady"): {**running, "activations.block": prefill, "inputs": ids + tables},
            ("generate", "first token", "steady"): {**running, "logits": first_token, "inputs": ids},
            ("generate", "decode", "steady"): {
                **running, "activations.block": decode, "logits": 16 * 152064 * 4, "kv_cache.grow": grow,
                "inputs": ids + 2 * 16 * 128 * 2,
            },
        },
    )  # fmt: skip
    assert answer["verdict"] == "fits"
    assert answer["peak"]["bytes"] == sum(running.values()) + prefill + ids + tables
    assert answer["groups"][0]["capacity_bytes"] > 79 * 1024 * MIB
