"""The field's other words for a value, and what a name that is no path probably means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from vramcast.errors import near

DTYPES = {
    **dict.fromkeys(("bf16", "bfloat16", "torch.bfloat16"), "bf16"),
    **dict.fromkeys(("fp16", "float16", "half", "torch.float16", "torch.half"), "fp16"),
    **dict.fromkeys(("fp32", "float32", "float", "torch.float32", "torch.float", "full precision"), "fp32"),
    **dict.fromkeys(("fp8", "float8", "fp8_e4m3", "fp8_e5m2", "float8_e4m3fn", "float8_e5m2"), "fp8"),
}
_VALUES = {
    **DTYPES,
    # attention
    **dict.fromkeys(("flash_attention_2", "flash_attention_3", "flash_attn", "fa2", "fa3", "flash2"), "flash"),
    **dict.fromkeys(("mem_efficient", "memory_efficient", "xformers"), "efficient"),
    # optimizers
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_hf", "adam"), "adamw"),
    **dict.fromkeys(("adamw_bnb_8bit", "adamw8bit", "adam8bit", "adam_8bit", "adamw_torch_8bit"), "adamw_8bit"),
    **dict.fromkeys(("adamw_torch_4bit", "adamw4bit"), "adamw_4bit"),
    **dict.fromkeys(("paged_adamw_32bit", "pagedadamw"), "paged_adamw"),
    **dict.fromkeys(("pagedadamw8bit",), "paged_adamw_8bit"),
    **dict.fromkeys(("lion_32bit",), "lion"),
    # what trains, algorithms and layouts
    **dict.fromkeys(("full fine-tuning", "full_finetune", "finetune", "fft", "freeze"), "full"),
    **dict.fromkeys(("rlhf",), "ppo"),
    **dict.fromkeys(("generate", "generation", "serve", "serving"), "inference"),
    **dict.fromkeys(("pt", "pretraining"), "pretrain"),
    **dict.fromkeys(("fsdp", "full_shard"), "fsdp1"),
    **dict.fromkeys(("ddp", "data_parallel"), "none"),
    **{f"zero-{stage}": f"zero{stage}" for stage in (1, 2, 3)},
    **{f"zero_{stage}": f"zero{stage}" for stage in (1, 2, 3)},
    **{f"stage{stage}": f"zero{stage}" for stage in (1, 2, 3)},
    # engines and packed weights
    **dict.fromkeys(("transformers", "huggingface"), "hf"),
    **dict.fromkeys(("4bit", "4-bit", "int4", "bitsandbytes", "bnb"), "nf4"),
    **dict.fromkeys(("8bit", "8-bit", "llm.int8"), "int8"),
}
"""another word, in lower case -> ours"""
UNSET = ("null", "none", "~", "auto", "default", "sdpa")
"""what people write to leave a choice to the program; torch's sdpa picks a kernel by the card"""
_MEANS = {
    "batch": "micro_batch", "bs": "micro_batch", "bsz": "micro_batch", "grad_accum": "accumulation",
    "context": "seq_len", "ctx": "seq_len", "length": "seq_len", "max_tokens": "response_len", "tokens": "seq_len",
    "completion": "response_len", "generations": "group", "rollouts": "group", "samples": "group",
    "checkpointing": "recompute", "gc": "recompute", "remat": "recompute", "4bit": "quant.kind", "8bit": "quant.kind",
    "quantization": "quant.kind", "quantize": "quant.kind", "lora": "lora.rank", "rank": "lora.rank",
    "targets": "lora.targets", "target": "lora.targets", "utilization": "engine.fraction", "util": "engine.fraction",
    "mem_fraction": "engine.fraction", "kv": "engine.kv_dtype", "eager": "engine.eager", "vllm": "engine.kind",
    "sglang": "engine.kind", "zero": "shard", "fsdp": "shard", "deepspeed": "shard", "stage": "shard",
    "offload": "offload.optimizer", "card": "gpu", "device": "gpu", "devices": "gpus", "world_size": "gpus",
    "nproc": "gpus", "nodes": "gpus_per_node", "precision": "compute_dtype", "dtype": "weights_dtype",
    "optim": "optimizer", "optimiser": "optimizer", "flash": "attention", "attn": "attention", "sdpa": "attention",
    "liger": "fused_kernels", "unsloth": "fused_kernels", "ref": "reference.kind", "kl": "reference.kind",
    "beta": "reference.kind", "method": "tuning", "peft": "tuning", "trainer": "algorithm", "task": "algorithm",
    "prompt": "prompt_len", "alloc_conf": "allocator", "evaluation": "eval.micro_batch", "eval": "eval.micro_batch",
    "sleep": "engine.sleep", "tensor_parallel": "tp", "pipeline_parallel": "pp", "context_parallel": "cp",
    "sequence_parallel": "ulysses", "expert_parallel": "ep",
}  # fmt: skip
"""a word in a name that is no path -> the path that says it"""


def choice(text: str, choices: Iterable[str]) -> str:
    """One of `choices` that the text means, in any case and by the field's other words; else the text as it is."""
    known = tuple(choices)
    lowered = text.strip().lower()
    if lowered in known:
        return lowered
    meant = _VALUES.get(lowered, _VALUES.get(lowered.replace("-", "_"), lowered.replace("-", "_")))
    return meant if meant in known else text


def meant(name: str, paths: Mapping[str, object]) -> str:
    """Paths that a name probably means, as text: by the words in it first, then by its spelling."""
    lowered = name.lower().replace("-", "_").replace(".", "_")
    words = [word for word in _MEANS if re.search(rf"(?:^|_){re.escape(word)}(?:_|$)", lowered)]
    by_meaning = dict.fromkeys(_MEANS[word] for word in sorted(words, key=len, reverse=True))
    by_spelling = [path for path in near(name, paths).split(", ") if path]
    return ", ".join([*by_meaning, *(path for path in by_spelling if path not in by_meaning)][:3])
