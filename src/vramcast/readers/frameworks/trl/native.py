"""Our paths in TRL's own keys, so that a lever's edit can be copied into the user's file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vramcast.readers.frameworks.trl.keys import DTYPES, OPTIMIZERS
from vramcast.types.paths import Value

Write = Callable[[Any], dict[str, Any]]
_DTYPE_NAMES = {ours: theirs for theirs, ours in DTYPES.items()}
# Of several names for one optimizer the first of the table, but for AdamW the one that needs no second copy.
_OPTIM = {ours: theirs for theirs, (ours, _) in reversed(OPTIMIZERS.items())} | {"adamw": "adamw_torch_fused"}


def _key(name: str) -> Write:
    return lambda value: {name: value}


def _named(name: str, table: Mapping[Any, Any]) -> Write:
    """A key with named values; nothing for a value that TRL cannot say."""
    return lambda value: {name: table[value]} if value in table else {}


def _quant(kind: Any) -> dict[str, Any]:
    match kind:
        case "nf4" | "fp4":
            return {"load_in_4bit": True, "bnb_4bit_quant_type": kind}
        case "int8":
            return {"load_in_8bit": True}
        case "none":
            return {"load_in_4bit": False, "load_in_8bit": False}
        case _:
            return {}


def _compute(dtype: Any) -> dict[str, Any]:
    match dtype:
        case "bf16":
            return {"bf16": True}
        case "fp16":
            return {"bf16": False, "fp16": True}
        case _:
            return {}


def _tuning(kind: Any) -> dict[str, Any]:
    match kind:
        case "full":
            return {"use_peft": False}
        case "lora":
            return {"use_peft": True}
        case "qlora":
            return {"use_peft": True, "load_in_4bit": True}
        case _:
            return {}


def _reference(kind: Any) -> dict[str, Any]:
    match kind:
        case "none":
            return {"beta": 0.0}
        case "precomputed":
            return {"precompute_ref_log_probs": True}
        case _:
            return {}


def _recompute(policy: Any) -> dict[str, Any]:
    match policy:
        case "none" | "full":
            return {"gradient_checkpointing": policy == "full"}
        case "selective":
            return {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"selective": True}}
        case _:
            return {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"offload": True}}


NATIVE: dict[str, Write] = {
    "model": _key("model_name_or_path"),
    "tuning": _tuning,
    "weights_dtype": _named("dtype", _DTYPE_NAMES),
    "autocast": lambda on: {"bf16": True} if on else {"bf16": False, "fp16": False},
    "compute_dtype": _compute,
    "quant.kind": _quant,
    "quant.double": _key("use_bnb_nested_quant"),
    "optimizer": _named("optim", _OPTIM),
    "optimizer.impl": _named("optim", {"fused": "adamw_torch_fused", "foreach": "adamw_torch"}),
    "lora.rank": _key("lora_r"),
    "lora.dropout": _key("lora_dropout"),
    "lora.targets": _key("lora_target_modules"),
    "lora.save_modules": _key("lora_modules_to_save"),
    "lora.dora": _key("use_dora"),
    "micro_batch": _key("per_device_train_batch_size"),
    "accumulation": _key("gradient_accumulation_steps"),
    "seq_len": _key("max_length"),
    "prompt_len": _key("max_prompt_length"),
    "response_len": _key("max_completion_length"),
    "packing": _key("packing"),
    "padding": _named("padding_free", {"free": True, "longest": False}),
    "attention": _named("attn_implementation", {"flash": "flash_attention_2", "eager": "eager", None: "sdpa"}),
    "recompute": _recompute,
    "recompute.every": lambda n: {"gradient_checkpointing_kwargs": {"every_n_layers": n}},
    "recompute.reentrant": lambda on: {"gradient_checkpointing_kwargs": {"use_reentrant": on}},
    "fused_kernels": _named("use_liger_kernel", {"liger": True, "none": False}),
    "offload.activations": _named("activation_offloading", {"cpu": True, "none": False}),
    "compile": _key("torch_compile"),
    "group": _key("num_generations"),
    "reference.kind": _reference,
    "reference.logprob.micro_batch": _key("precompute_ref_batch_size"),
    "engine.kind": _named("use_vllm", {"vllm": True, "hf": False}),
    "engine.process": _named("vllm_mode", {"trainer": "colocate", "server": "server"}),
    "engine.fraction": _key("vllm_gpu_memory_utilization"),
    "engine.tp": _key("vllm_tensor_parallel_size"),
    "engine.max_len": _key("vllm_max_model_length"),
    "engine.sleep": _named("vllm_enable_sleep_mode", {"2": True, "none": False}),
    "allocator": lambda text: {"env": {"PYTORCH_ALLOC_CONF": text}},
}
"""Path → its value in TRL's keys; empty for a value that TRL cannot say."""


def trl_keys(edits: Mapping[str, Value]) -> dict[str, Value]:
    """Edits (path → value) as one mapping of TRL keys."""
    merged: dict[str, Any] = {}
    for path, value in edits.items():
        if path == "optimizer.impl" and edits.get("optimizer", "adamw") != "adamw":
            continue  # `optim` holds both, and only AdamW has a choice
        for key, native in NATIVE[path](value).items() if path in NATIVE else ():
            nested = isinstance(native, dict) and isinstance(merged.get(key), dict)
            merged[key] = {**merged[key], **native} if nested else native
    return merged
