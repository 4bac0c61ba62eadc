"""Every path a job can set: one field each, with its type, its allowed values and its meaning.

A field's encoded name is the public path (`optimizer.impl`); its default is what is assumed when neither the user, the
configuration nor the framework says anything. A path may be prefixed by a role (`critic.micro_batch`), except the ones
marked `job_wide`.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

Count = Annotated[int, Meta(ge=1)]
Ranks = Annotated[int, Meta(ge=1, le=1 << 20)]
"""GPUs, and what they are divided into: a million is more than anybody has"""
Whole = Annotated[int, Meta(ge=0)]
Bytes = Annotated[int, Meta(ge=0, extra={"unit": "bytes"})]
Fraction = Annotated[float, Meta(gt=0, le=1)]
OpenFraction = Annotated[float, Meta(ge=0, lt=1)]

Algorithm = Literal[
    "inference", "pretrain", "sft", "reward", "dpo", "kto", "orpo", "simpo", "cpo", "ppo", "grpo", "distill"
]
Dtype = Literal["fp32", "tf32", "bf16", "fp16", "fp8", "int8", "int4"]
Optimizer = Literal[
    "adamw", "adamw_8bit", "adamw_4bit", "paged_adamw", "paged_adamw_8bit", "adafactor", "adafactor_torch", "sgd",
    "sgd_momentum", "lion", "muon", "adam_mini", "galore", "apollo", "lomo", "badam", "schedule_free",
]  # fmt: skip
Quant = Literal["none", "int8", "nf4", "fp4", "gptq", "awq", "fp8", "fp8_block", "mxfp4", "nvfp4", "torchao", "hqq"]
CacheDtype = Literal[
    "fp32", "bf16", "fp16", "fp8", "int8", "int4", "nvfp4", "mxfp8", "fp4_e2m1", "fp8_ds_mla", "nvfp4_ds_mla",
    "int8_per_token_head", "fp8_per_token_head", "int4_per_token_head",
]  # fmt: skip
Attention = Literal["eager", "math", "efficient", "flash", "cudnn"]
Shard = Literal["none", "zero1", "zero2", "zero3", "fsdp1", "fsdp2"]
Home = Literal["none", "cpu", "nvme"]
ADAPTED = ("lora", "qlora")
"""kinds of tuning with adapters: the second names its packed base"""
ROLES = ("policy", "reference", "reward", "critic", "teacher", "rollout")


def path(name: str, default: Any) -> Any:
    return field(name=name, default=default)


def _wide(text: str) -> Meta:
    return Meta(description=text, extra={"job_wide": True})


def _role(text: str) -> Meta:
    return Meta(description=text)


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All values of one role, complete. `None` means: not limited, or derived from the others."""

    # what
    algorithm: Annotated[Algorithm, _wide("what the job does")] = "sft"
    grpo_variant: Annotated[
        Literal["grpo", "dapo", "gspo", "dr_grpo", "rloo", "reinforce_pp"], _wide("which group-relative method")
    ] = path("grpo.variant", "grpo")
    framework: Annotated[str | None, _wide("whose code runs, with a version: trl==1.16.0")] = None
    model: Annotated[str | None, _role("catalogue name, or a path to a config.json")] = None
    tuning: Annotated[Literal["full", "lora", "qlora", "frozen"], _role("which parameters train")] = "full"
    trainable: Annotated[str | None, _role("regular expression over parameter names that train")] = None

    # precision
    weights_dtype: Annotated[Dtype, _role("dtype the weights are stored in")] = "bf16"
    compute_dtype: Annotated[Dtype, _role("dtype matrix products run in")] = "bf16"
    grad_dtype: Annotated[Dtype | None, _role("dtype of gradients; unset: the parameter's own")] = None
    master_dtype: Annotated[Dtype | None, _role("dtype of a separate master copy; unset: no copy")] = None
    state_dtype: Annotated[Dtype | None, _role("dtype of optimizer states; unset: the parameter's own")] = None
    autocast: Annotated[bool, _role("torch.autocast to compute_dtype around the forward")] = False
    quant_kind: Annotated[Quant, _role("how the base weights are quantised")] = path("quant.kind", "none")
    quant_double: Annotated[bool, _role("quantise the quantisation scales as well")] = path("quant.double", False)
    quant_storage: Annotated[Dtype | None, _role("dtype the packed weights are stored as")] = path(
        "quant.storage", None
    )
    quant_bits: Annotated[Count | None, _role("bits of a packed weight; unset: the kind's usual ones")] = path(
        "quant.bits", None
    )
    quant_group: Annotated[Count | None, _role("inputs that share a scale; unset: the kind's usual ones")] = path(
        "quant.group", None
    )
    quant_compute_dtype: Annotated[
        Dtype | None, _role("dtype that products of packed weights run in; unset: weights_dtype")
    ] = path("quant.compute_dtype", None)
    quant_rest_dtype: Annotated[
        Dtype | None, _role("dtype of embedding, norms and head beside packed weights; unset: weights_dtype")
    ] = path("quant.rest_dtype", None)
    optimizer: Annotated[Optimizer, _role("optimizer, by its name in the catalogue")] = "adamw"
    optimizer_impl: Annotated[Literal["fused", "foreach", "loop"], _role("how torch runs the step")] = path(
        "optimizer.impl", "fused"
    )

    # lora
    lora_rank: Annotated[Count, _role("rank of the adapters")] = path("lora.rank", 16)
    lora_targets: Annotated[list[str] | None, _role("linear layers with adapters; unset: PEFT's for the model")] = path(
        "lora.targets", None
    )
    lora_dtype: Annotated[Dtype, _role("dtype of the adapters")] = path("lora.dtype", "fp32")
    lora_dropout: Annotated[OpenFraction, _role("dropout before an adapter; above 0 keeps a mask")] = path(
        "lora.dropout", 0.0
    )
    lora_dora: Annotated[bool, _role("weight-decomposed adapters")] = path("lora.dora", False)
    lora_rank_pattern: Annotated[dict[str, Count] | None, _role("ranks by module name")] = path(
        "lora.rank_pattern", None
    )
    lora_save_modules: Annotated[list[str] | None, _role("modules trained and saved whole")] = path(
        "lora.save_modules", None
    )

    # work
    micro_batch: Annotated[Count, _role("sequences per GPU in one forward and backward")] = 1
    accumulation: Annotated[Count, _role("micro-batches per optimizer step")] = 1
    seq_len: Annotated[Count, _role("tokens of the longest sequence")] = 2048
    prompt_len: Annotated[Count | None, _role("tokens of a prompt")] = None
    response_len: Annotated[Count | None, _role("most tokens generated per sequence")] = None
    token_budget: Annotated[Count | None, _role("tokens per micro-batch; replaces micro_batch")] = None
    packing: Annotated[bool, _role("sequences are packed until seq_len is full")] = False
    padding: Annotated[Literal["longest", "max", "free"], _role("what shorter sequences are padded to")] = "longest"
    labelled_frac: Annotated[Fraction | None, _role("share of tokens the loss scores; unset: an interval")] = None
    image_tokens: Annotated[Whole | None, _wide("tokens of a sequence that images take; unset: none")] = None
    group: Annotated[Count, _wide("responses per prompt")] = 1
    prompts_per_step: Annotated[Count | None, _wide("prompts per rollout, over all GPUs")] = None
    mini_batch: Annotated[Count | None, _role("prompts per optimizer step, over all GPUs")] = None
    logprob_micro_batch: Annotated[Count | None, _role("sequences per forward-only pass")] = path(
        "logprob.micro_batch", None
    )
    logprob_token_budget: Annotated[Count | None, _role("tokens per forward-only pass")] = path(
        "logprob.token_budget", None
    )
    logprob_source: Annotated[
        Literal["trainer", "engine"] | None, _wide("who computes the rollout's log-probs; unset: the framework's way")
    ] = path("logprob.source", None)
    logprob_entropy: Annotated[
        Literal["none", "compiled", "eager", "chunked"], _wide("entropy in the pass over old log-probs")
    ] = path("logprob.entropy", "none")
    logprob_chunk: Annotated[Count, _wide("tokens per chunk of logprob.entropy=chunked")] = path("logprob.chunk", 2048)
    eval_micro_batch: Annotated[Count | None, _role("sequences per evaluation forward")] = path(
        "eval.micro_batch", None
    )
    lengths: Annotated[str | None, _wide("sequence lengths: a file, or p50/p99/max")] = None

    # kernels
    attention: Annotated[Attention | None, _role("attention kernel; unset: what torch picks on the card")] = None
    recompute: Annotated[
        Literal["none", "selective", "full", "offloaded"], _role("activations recomputed in backward")
    ] = "none"
    recompute_every: Annotated[Count, _role("blocks per checkpoint")] = path("recompute.every", 1)
    recompute_reentrant: Annotated[bool, _role("torch's reentrant checkpoint")] = path("recompute.reentrant", False)
    loss: Annotated[
        Literal["full", "fp32", "chunked", "fused", "compiled", "vocab_parallel"],
        _role("how the loss meets the logits"),
    ] = "full"
    loss_chunk: Annotated[Count | None, _role("tokens per chunk of a chunked loss")] = path("loss.chunk", None)
    entropy: Annotated[Literal["none", "forward", "grad", "chunked"], _role("entropy of the logits")] = "none"
    fused_kernels: Annotated[Literal["none", "liger", "unsloth"], _role("replacement kernels")] = "none"
    compile: Annotated[bool, _role("torch.compile on the model")] = False
    offload_weights: Annotated[Home, _role("where weights rest between phases")] = path("offload.weights", "none")
    offload_gradients: Annotated[Home, _role("where gradients rest")] = path("offload.gradients", "none")
    offload_optimizer: Annotated[Home, _role("where optimizer states rest")] = path("offload.optimizer", "none")
    offload_activations: Annotated[Home, _role("where saved activations wait for backward")] = path(
        "offload.activations", "none"
    )

    # layout
    tp: Annotated[Ranks, _role("tensor parallel ranks")] = 1
    sp: Annotated[Ranks, _role("sequence parallel ranks beside tensor parallel: 1, or tp")] = 1
    pp: Annotated[Ranks, _role("pipeline stages")] = 1
    vpp: Annotated[Ranks, _role("model chunks per pipeline stage")] = 1
    schedule: Annotated[Literal["none", "gpipe", "1f1b", "interleaved"], _role("pipeline schedule")] = "none"
    cp: Annotated[Ranks, _role("context parallel ranks (ring)")] = 1
    ulysses: Annotated[Ranks, _role("sequence parallel ranks (all-to-all)")] = 1
    ep: Annotated[Ranks, _role("expert parallel ranks")] = 1
    etp: Annotated[Ranks, _role("tensor parallel ranks inside an expert")] = 1
    shard: Annotated[Shard, _role("how data-parallel ranks share states")] = "none"
    shard_size: Annotated[Ranks | None, _role("ranks of a shard group; unset: all data-parallel ranks")] = None
    replicas: Annotated[Ranks, _role("copies of a shard group")] = 1
    reshard: Annotated[bool, _role("free gathered weights after the forward")] = True
    wrap: Annotated[Literal["none", "block", "size"], _role("what one gathered unit holds")] = "block"
    buckets: Annotated[Bytes | None, _role("size of a communication bucket")] = None
    moe_imbalance: Annotated[Annotated[float, Meta(ge=1)], _role("busiest expert rank over the mean")] = path(
        "moe.imbalance", 1.0
    )

    # roles
    reference_kind: Annotated[
        Literal["none", "copy", "adapter_off", "swapped", "precomputed"], _wide("what the reference model is")
    ] = path("reference.kind", "none")
    reward_kind: Annotated[Literal["none", "rules", "model", "remote"], _wide("what scores responses")] = path(
        "reward.kind", "none"
    )
    critic_kind: Annotated[Literal["none", "model"], _wide("whether a value model trains")] = path(
        "critic.kind", "none"
    )
    teacher_kind: Annotated[Literal["none", "model", "remote"], _wide("what a student learns from")] = path(
        "teacher.kind", "none"
    )

    # engine
    engine_kind: Annotated[Literal["none", "hf", "vllm", "sglang", "trtllm"], _wide("what generates")] = path(
        "engine.kind", "none"
    )
    engine_version: Annotated[str | None, _wide("version of the engine")] = path("engine.version", None)
    engine_process: Annotated[Literal["trainer", "own", "server"], _wide("where the engine runs")] = path(
        "engine.process", "trainer"
    )
    engine_fraction: Annotated[Fraction | None, _wide("share of the GPU the engine takes")] = path(
        "engine.fraction", None
    )
    engine_kv_bytes: Annotated[Bytes | None, _wide("KV cache bytes; replaces engine.fraction")] = path(
        "engine.kv_bytes", None
    )
    engine_tp: Annotated[Ranks, _wide("tensor parallel ranks of the engine")] = path("engine.tp", 1)
    engine_pp: Annotated[Ranks, _wide("pipeline stages of the engine")] = path("engine.pp", 1)
    engine_dp: Annotated[Ranks, _wide("data parallel ranks of the engine")] = path("engine.dp", 1)
    engine_ep: Annotated[Ranks, _wide("expert parallel ranks of the engine")] = path("engine.ep", 1)
    engine_dtype: Annotated[Dtype, _wide("dtype of the engine's weights")] = path("engine.dtype", "bf16")
    engine_quant: Annotated[Quant, _wide("quantisation of the engine's weights")] = path("engine.quant", "none")
    engine_kv_dtype: Annotated[CacheDtype | None, _wide("dtype of the KV cache; unset: the model's")] = path(
        "engine.kv_dtype", None
    )
    engine_cache: Annotated[
        Literal["dynamic", "static", "offloaded", "quantised"], _wide("which cache Transformers' generate makes")
    ] = path("engine.cache", "dynamic")
    engine_max_seqs: Annotated[Count | None, _wide("most sequences decoded together")] = path("engine.max_seqs", None)
    engine_max_batched_tokens: Annotated[Count | None, _wide("most tokens in one engine step")] = path(
        "engine.max_batched_tokens", None
    )
    engine_max_len: Annotated[Count | None, _wide("longest sequence the engine accepts")] = path("engine.max_len", None)
    engine_eager: Annotated[bool, _wide("no CUDA graphs")] = path("engine.eager", False)
    engine_sleep: Annotated[Literal["none", "1", "2"], _wide("what the engine frees while it rests")] = path(
        "engine.sleep", "none"
    )
    engine_lora_slots: Annotated[Whole, _wide("adapters the engine holds")] = path("engine.lora_slots", 0)
    engine_count: Annotated[Ranks | None, _wide("engines; unset: as many as the GPUs allow")] = path(
        "engine.count", None
    )
    engine_sync_bucket_bytes: Annotated[Bytes | None, _wide("buffer of a weight update")] = path(
        "engine.sync_bucket_bytes", None
    )

    # cluster
    gpu: Annotated[str | None, _wide("card, by its catalogue name")] = None
    gpus: Annotated[Ranks, _wide("GPUs in all")] = 1
    gpus_per_node: Annotated[Ranks, _wide("GPUs in one machine")] = 8
    host_bytes: Annotated[Bytes | None, _wide("host memory of one machine")] = None
    busy_bytes: Annotated[Bytes, _wide("GPU memory that other processes hold")] = 0
    allocator: Annotated[str, _wide("the PYTORCH_ALLOC_CONF text")] = ""
