"""Full GRPO on Qwen2.5-7B with verl 0.9.1 on 8 H100 80 GB, worked by hand: `examples/verl_grpo.sh`.

Policy: fp32 under FSDP1 over 8 ranks, gathered and computed in bf16, gradients reduced in fp32 after every micro-batch.
Reference: a copy whose shards wait on the host and come unit by unit. Engine: vLLM in its own process, half of the GPU,
two ranks, asleep at level 2 while the trainer works. Prompts of 1024 and responses of 2048 tokens, 8 responses a
prompt, 4 sequences a micro-batch, 8 in a pass that only scores.

Who is where, phase by phase:

                   policy            reference          engine
    load           weights           host               not there
    engine.start   weights           host               weights, pool
    sync           weights, bucket   host               weights
    generate       weights           host               weights, pool
    score.*        weights           host, streamed     graphs, runtime, context
    learning       all               host               graphs, runtime, context

Adam's moments appear in the first step and stay.
"""

from __future__ import annotations

from pathlib import Path

from tests.cli.cases import run
from tests.golden.grpo import CONTEXT, GRAPHS, NCCL, RUNTIME, TOTAL, WORKSPACE, ask, assert_group, states
from tests.golden.qwen import EMBEDDING, LAYER, MIB, PARAMS, remainders, slack
from tests.jobs import phases

CARDS = ("--gpu", "h100-sxm-80gb", "--gpus", "8")
EXAMPLE = str(Path(__file__).parents[2] / "examples" / "verl_grpo.sh")

# One tensor of a micro-batch of 4 x (1024 + 2048) tokens.
TOKENS = 4 * 3072  # 12,288
HIDDEN_BF16 = 12288 * 3584 * 2  # 88,080,384; queries of all heads are as wide
HIDDEN_FP32 = 12288 * 3584 * 4  # 176,160,768
KEYS_BF16 = 12288 * 512 * 2  # 12,582,912
FFN_BF16 = 12288 * 18944 * 2  # 465,567,744
NUMBERS = 12288 * 4  # 49,152: one fp32 number a token
LOG_SUM_EXP = 12288 * 28 * 4  # 1,376,256
TABLES = 2 * 3072 * 128 * 2  # 1,572,864: cosines and sines of 3072 positions
IDS = 2 * 12288 * 8  # 196,608: ids and mask

# What FSDP1 makes of the model: a flat parameter for every layer, and the root unit with what is in no layer.
ROOT = 2 * EMBEDDING + 3584  # 1,089,998,336
SHARD = PARAMS // 8  # 951,952,064: both kinds of units divide by 8 without padding
assert ROOT % 8 == LAYER % 8 == 0

# Shards are allocations of their own: the root's of 136,249,792 numbers, 28 of 29,132,224.
SHARD_SLACK = slack(136_249_792 * 4) + 28 * slack(29_132_224 * 4)
assert SHARD_SLACK == 260_352 + 28 * 911_616 == 25_785_600
# A shard of weights is copied while the whole unit is still there, so it gets a segment of its own, and less than 1 MiB
# behind it counts as allocated. Later copies take what is free: both sizes are 256 bytes above a multiple of 512.
SHARD_PAGES = 29 * 256
assert 136_249_792 * 4 % 512 == 29_132_224 * 4 % 512 == 256


def shard_remainders(copies: int) -> dict[str, int]:
    """Behind the weights and `copies - 1` more tensors of every shard."""
    return remainders(copies * SHARD_SLACK, SHARD_SLACK + (copies - 1) * SHARD_PAGES)


def test_engine() -> None:
    """The engine's parts, and what is left of its share for keys and values."""
    weights, activation = _engine_weights(), 8192 * (3 * 18944 // 2 + 4 * 3584) * 2
    # The largest step: a forward over 8192 tokens, three MLP products of this rank and four hidden states wide.
    assert activation == 700_448_768
    # The sampler needs less: hidden rows of 8192 tokens and twice 256 sequences, and 14.7 bytes for every one of
    # 256 x 152064 logits.
    assert 3584 * (8192 + 2 * 256) * 2 + 256 * 152064 * 147 // 10 == 634_637_516

    pool = TOTAL // 2  # 42,514,513,920 = ⌈0.5 x total⌉
    cache = pool - weights - activation - GRAPHS - RUNTIME[2]
    assert cache == 30_931_657_482
    # A token: a key and a value in 28 layers, 2 of 4 key heads of 128 numbers, bf16.
    token = 2 * 28 * 2 * 128 * 2  # 28,672
    # In blocks of 16 tokens, 67,425 of them. A sequence of 3072 tokens takes 192.
    blocks = cache // (16 * token)
    # 256 prompts x 8 responses over 8 / 2 engines: 512 sequences each; 256 run at once.
    engine = ask(EXAMPLE, *CARDS)["groups"][0]["engines"][0]
    assert engine == {
        "role": "rollout", "pool_bytes": pool, "kv_bytes": cache, "kv_bytes_per_token": token,
        "kv_least_bytes": 193 * 16 * token,
        "kv_tokens": 16 * blocks, "max_concurrency": 67_425 // 192, "waves": 2,
        # least: the parts at their highest and 193 blocks (one is reserved). Most: what is left beside the trainer with
        # its moments at their highest, while the engine generates; see the last case.
        "fraction_low": 0.17, "fraction_high": 0.78,
    }  # fmt: skip
    assert blocks == 67_425


def _engine_weights() -> int:
    """One of two ranks. Vocabulary (152064 is a multiple of 64), heads and MLP are halved, norms are whole."""
    layer = (LAYER - 2 * 3584) // 2 + 2 * 3584  # 116,532,480
    rope = 131072 * 128  # a table of all positions the model was made for
    params = 2 * (EMBEDDING // 2) + 28 * layer + 3584 + rope
    assert params == 3_824_687_616
    # Ends of segments of 2 MiB that are too short to be split off: in a layer of queries, keys and values as one, of
    # gate and up as one; of embedding and head.
    ends = 28 * (262_144 + 524_288) + 2 * 262_144
    return params * 2 + ends


def test_every_phase() -> None:
    weights = SHARD * 4  # 3,807,808,256
    gradients = SHARD * 4
    states_bytes = 2 * SHARD * 4  # 7,615,616,512: two fp32 moments

    # The engine, awake and asleep. Level 2 gives weights and pool back; graphs and what lies outside PyTorch stay.
    asleep = {"engine.graphs": GRAPHS, "engine.runtime": RUNTIME[2], "cuda.context (rollout)": CONTEXT}
    updated = {**asleep, "engine.weights": _engine_weights()}
    awake = {**updated, "engine.activation": 700_448_768, "engine.kv": 30_931_657_482}

    # score · last block: 8 sequences, twice the tokens. No graph: the most is alive while the MLP multiplies.
    block_score = (
        2 * HIDDEN_BF16  # the embedding's output, which the model's forward holds
        + 2 * HIDDEN_BF16  # the block's input; the residual stream after attention takes its place later
        + 2 * HIDDEN_BF16  # the residual stream after attention
        + 2 * HIDDEN_BF16  # x, the MLP's argument
        + 3 * 2 * FFN_BF16  # SiLU(gate), up, their product
    )
    assert block_score == 3_498_049_536
    # score · head: logits of all tokens, the prompt's too, in bf16, beside the rows they are made of. The loss kernel
    # adds two fp32 numbers a row when the rows are gone.
    head_score = 24576 * 152064 * 2 + 2 * HIDDEN_BF16
    assert head_score == 7_474_249_728 + 176_160_768 == 7_650_410_496

    # Gathered in bf16: the root, and the block at work. Backward gathers the next block ahead.
    head_runs = ROOT * 2  # 2,179,996,672
    block_runs = (ROOT + LAYER) * 2  # 2,646,112,256
    blocks_run = (ROOT + 2 * LAYER) * 2  # 3,112,227,840

    # forward · last block, as in single-GPU training: 28 inputs are kept; the residual stream, x and three products.
    saved = 28 * HIDDEN_BF16  # 2,466,250,752
    block_forward = 2 * HIDDEN_BF16 + 3 * FFN_BF16
    assert block_forward == 1_572_864_000

    # loss · head. Logits are not converted to fp32, and flash-attn's cross entropy keeps two fp32 numbers a row.
    final_norm = HIDDEN_FP32 + NUMBERS + HIDDEN_BF16  # the fp32 copy, the rsqrt, the normalised rows
    logits = 12288 * 152064 * 2  # 3,737,124,864
    loss = final_norm + HIDDEN_BF16 + logits + 2 * NUMBERS + 4
    assert loss == 4_089_593_860
    # backward · loss. The gradient overwrites the logits; the head's gradient is there (counted under
    # `gradients.unsharded`, with the final norm's, which comes later: 7,168 bytes) and that of its rows.
    loss_backward = final_norm + HIDDEN_BF16 + logits + 4 + HIDDEN_BF16 - 3584 * 2
    assert loss_backward == 4_177_568_772

    # backward · block: recomputed up to the input of down_proj, at the moment SiLU x up is taken apart.
    block_backward = (
        HIDDEN_BF16  # the gradient of the layer's output
        + HIDDEN_BF16  # the layer's input
        + (HIDDEN_FP32 + NUMBERS + HIDDEN_BF16)  # input_layernorm
        + HIDDEN_BF16  # its output
        + (HIDDEN_BF16 + 2 * KEYS_BF16 + HIDDEN_BF16 + LOG_SUM_EXP)  # queries, keys, values, output, sums
        + (HIDDEN_FP32 + NUMBERS + HIDDEN_BF16)  # post_attention_layernorm
        + HIDDEN_BF16  # its output
        + 3 * FFN_BF16  # gate, SiLU(gate), up
        + 3 * FFN_BF16  # the gradients of the product, of SiLU(gate), of up
        + 18944 * 3584 * 2  # down_proj's gradient is new: the micro-batch before was reduced and let go of ...
        - LAYER * 2  # ... and the layer's gradients are counted whole under `gradients.unsharded`
    )
    assert block_backward == 3_546_686_464

    # Whole gradients in bf16 until a unit is reduced. The root's come last: head and norm wait for the embedding.
    root_waits = (EMBEDDING + 3584) * 2  # 1,090,001,920
    with_block = root_waits + LAYER * 2  # 1,556,117,504
    whole_root = ROOT * 2  # 2,179,996,672
    # The fp32 input of the reduce-scatter: of the block before while a block runs. The root's is made at the end of its
    # flat bf16 gradient, beside it and the fp32 share that it becomes: gathered weights and views' gradients are gone.
    reduce_block = LAYER * 4  # 932,231,168
    reduce_root = ROOT * 2 + ROOT * 4 + ROOT // 8 * 4 - (head_runs + whole_root)
    assert reduce_root == 2_724_995_840
    embedding = HIDDEN_BF16 + 4 * 12288 * 8  # its rows' gradient, and the sorted ids; the table is in whole_root
    assert embedding == 88_473_600

    # sync: one tensor at a time is gathered in its stored dtype (the largest: embedding or head) and copied into the
    # bucket. The engine's weights wake first, its pool last.
    sync = {"sync.gathered": EMBEDDING * 4, "sync.bucket": 2048 * MIB}

    def expected(moments: int, copies: int) -> dict[tuple[str, str, str], dict[str, int]]:
        """A step with `moments` bytes of optimizer state, and remainders behind `copies` tensors of every shard."""
        when = "steady" if moments else "first"
        resting = {"weights": weights, "optimizer.state": moments, "cuda.context": CONTEXT, "nccl": NCCL,
                   **shard_remainders(copies)}  # fmt: skip
        workspace = 2 * WORKSPACE if moments else 0  # nothing was computed before the first score
        scoring = {**resting, **asleep, "cublas.workspace": workspace or WORKSPACE}
        inputs = {"inputs": 2 * IDS + TABLES}
        streamed = {f"{name} (reference)": size for name, size in inputs.items()}
        # Learning: reduced gradients of the micro-batches before are there, in fp32; autograd's thread has multiplied.
        learning = {**scoring, "gradients": gradients, "inputs": IDS + TABLES,
                    "cublas.workspace": 2 * WORKSPACE, **shard_remainders(copies + 1)}  # fmt: skip
        backward = learning
        return {
            ("sync", "weights", when): {**resting, **updated, **sync, "cublas.workspace": workspace},
            ("generate", "rollout", when): {**resting, **awake, "cublas.workspace": workspace},
            ("score.old", "last block", when): {
                **scoring, **inputs, "fsdp.gathered": block_runs, "activations.block": block_score
            },
            ("score.old", "head", when): {**scoring, **inputs, "fsdp.gathered": head_runs, "logits": head_score},
            # The reference's shards come from the host unit by unit; the policy's stay.
            ("score.reference", "last block", when): {
                **scoring, **streamed, "fsdp.gathered (reference)": block_runs,
                "activations.block (reference)": block_score,
            },
            ("score.reference", "head", when): {
                **scoring, **streamed, "fsdp.gathered (reference)": head_runs, "logits (reference)": head_score
            },
            ("forward", "first block", when): {
                **learning, "fsdp.gathered": block_runs, "activations.saved": HIDDEN_BF16
            },
            ("forward", "last block", when): {
                **learning, "fsdp.gathered": block_runs, "activations.saved": saved, "activations.block": block_forward
            },
            ("loss", "head", when): {
                **learning, "fsdp.gathered": head_runs, "activations.saved": saved, "logits": loss
            },
            ("backward", "loss", when): {
                **backward, "fsdp.gathered": block_runs, "activations.saved": saved, "logits": loss_backward,
                "gradients.unsharded": root_waits,
            },
            ("backward", "first block", when): {
                **backward, "fsdp.gathered": blocks_run, "activations.saved": saved - HIDDEN_BF16,
                "activations.block": block_backward, "gradients.unsharded": with_block,
            },
            # FSDP1 gathers the next unit ahead: behind the last block there is none.
            ("backward", "last block", when): {
                **backward, "fsdp.gathered": block_runs, "activations.block": block_backward,
                "gradients.unsharded": with_block, "fsdp.reduce": reduce_block,
            },
            ("backward", "embedding", when): {
                **backward, "inputs": IDS, "activations.block": embedding, "gradients.unsharded": whole_root,
                "fsdp.gathered": head_runs, "fsdp.reduce": reduce_root,
            },
            # foreach AdamW takes the square root of all variances at once: a fourth copy of the shard.
            ("step", "update", when): {
                **backward, "inputs": 0, "optimizer.state": states_bytes, "optimizer.step": SHARD * 4,
                **shard_remainders(4),
            },
        }  # fmt: skip

    answer = ask(EXAMPLE, *CARDS)
    loaded = {"weights": weights, "cuda.context": CONTEXT, "nccl": NCCL, **shard_remainders(1)}
    assert_group(
        answer,
        {
            ("load", "built", "first"): loaded,
            ("engine.start", "profiled", "first"): {**loaded, **awake},
            **expected(0, copies=1),
            **expected(states_bytes, copies=3),
        },
    )
    # The engine generates in its half of the GPU beside a trainer with all it owns.
    peak = answer["peak"]
    assert (peak["phase"], peak["instant"], peak["when"]) == ("generate", "rollout", "steady")
    trainer = weights + states_bytes + CONTEXT + NCCL + 3 * SHARD_SLACK + 2 * WORKSPACE
    assert peak["bytes"] == trainer + TOTAL // 2 + CONTEXT == 55_899_041_300
    # A share of 84 % is free beside the points, 78 % beside the highs: the parts of the engine count as they would if
    # the cache had been sized with the least of them.
    assert (TOTAL - trainer - CONTEXT) * 100 // TOTAL == 84
    (generating,) = (phase for key, phase in phases(answer).items() if key == ("generate", "rollout", "steady"))
    assert (TOTAL - (generating["high_bytes"] - TOTAL // 2)) * 100 // TOTAL == 78
    assert answer["verdict"] == "fits"


def test_who_is_where() -> None:
    answer = ask(EXAMPLE, *CARDS)
    assert states(answer, "load") == {"policy": "rest", "reference": "rest", "rollout": "absent"}
    assert states(answer, "engine.start")["rollout"] == "infer"
    assert states(answer, "sync")["rollout"] == "held"
    assert states(answer, "generate") == {"policy": "rest", "reference": "rest", "rollout": "generate"}
    assert states(answer, "score.reference") == {"policy": "rest", "reference": "infer", "rollout": "rest"}
    assert states(answer, "step") == {"policy": "step", "reference": "rest", "rollout": "rest"}


def test_the_reference_waits_on_the_host() -> None:
    """8 ranks of the machine keep their fp32 shards there: the whole model. The engine sleeps at level 2: nothing."""
    (node,) = ask(EXAMPLE, *CARDS)["nodes"]
    assert node["host_bytes"] == PARAMS * 4 == 30_462_466_048
    assert [(term["name"], term["role"]) for term in node["terms"]] == [("weights", "reference")]
    assert node["host_pinned_bytes"] == 0


def logits(*more: str) -> dict[str, dict[str, int]]:
    """The term `logits` of the passes over old log-probabilities and of the reference."""
    answer = phases(ask(EXAMPLE, *CARDS, *more))
    scored = {name: answer.get((name, "head", "first")) for name in ("score.old", "score.reference")}
    return {
        name: next(term for term in phase["terms"] if term["name"] == "logits")
        for name, phase in scored.items()
        if phase is not None
    }


def test_entropy_is_compiled_unless_that_is_off() -> None:
    """Old log-probabilities come with the entropy: 12 bytes a logit if nothing is compiled. The reference has none."""
    plain, eager = logits(), logits("--set", "logprob.entropy=eager")
    chunked = logits("--set", "logprob.entropy=chunked")["score.old"]
    old = plain["score.old"]
    assert old["low_bytes"] == old["bytes"] == old["high_bytes"] == plain["score.reference"]["bytes"]
    assert eager["score.old"]["bytes"] - old["bytes"] == 24576 * 152064 * 12 == 44_845_498_368
    assert eager["score.old"]["low_bytes"] == eager["score.old"]["high_bytes"] == eager["score.old"]["bytes"]
    assert eager["score.reference"] == plain["score.reference"]
    # 2048 tokens at once: fp32 softmax, product and copy; nothing of them while the compiler still makes kernels.
    assert chunked["bytes"] - old["bytes"] == 2048 * 152064 * 12 == 3_737_124_864
    assert (chunked["low_bytes"], chunked["high_bytes"]) == (old["bytes"], chunked["bytes"])


def test_in_bypass_mode_nothing_scores_the_old_policy() -> None:
    assert set(logits("--set", "logprob.source=engine")) == {"score.reference"}


def test_an_entropy_in_the_loss() -> None:
    """A kernel makes it from the logits and another one their gradient, beside that of the cross-entropy, which no
    longer overwrites them. Run eagerly: forward softmax, fp32 logits and their exponentials; backward the softmax that
    was kept and three more fp32 tensors."""
    before = HIDDEN_FP32 + NUMBERS + HIDDEN_BF16 + HIDDEN_BF16  # the final norm, and the rows that the head reads
    logits_bf16, logits_fp32 = 12288 * 152064 * 2, 12288 * 152064 * 4
    counted_apart = 2 * (EMBEDDING + 3584)  # gradients of head and norm, under `gradients.unsharded`
    for kind, forward, gradients in (
        ("compiled", 3 * NUMBERS + 4, logits_bf16),
        ("eager", 3 * logits_fp32, 4 * logits_fp32),  # before they are rounded to the gradient in 16 bits
    ):
        answer = phases(ask(EXAMPLE, *CARDS, "--set", "entropy=grad", "--set", f"logprob.entropy={kind}"))
        (loss,) = [term for term in answer["loss", "head", "first"]["terms"] if term["name"] == "logits"]
        assert loss["bytes"] == before + logits_bf16 + forward
        (backward,) = [term for term in answer["backward", "loss", "first"]["terms"] if term["name"] == "logits"]
        assert backward["bytes"] == before + 2 * logits_bf16 + gradients + NUMBERS + 4 - counted_apart


def test_an_entropy_is_learnt_where_the_loss_is_a_kernel_only() -> None:
    found = run(f"check {EXAMPLE} --gpu h100-sxm-80gb --set entropy=grad --set framework=trl==1.16.0")
    assert "error: entropy = grad is not modelled yet" in found.stderr
