"""TRL's keys that set one path by themselves; null leaves the path unset.

Read in trl 1.16.0 (SFTConfig, DPOConfig, GRPOConfig, ModelConfig, the script arguments) and transformers 5.24.0
(TrainingArguments). Keys whose meaning depends on other keys are read in `rules`, those that set nothing stand in
`known.json`.
"""

from __future__ import annotations

from typing import Any

from vramcast.readers.framework import Known, known_names
from vramcast.readers.keys import FLAG, MIBS, NAMES, UNSAID, Codec, Key, named, one_of, switch

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def _kernel(value: Any) -> str | None:
    """With sdpa torch chooses the kernel by the card, which is what an unset path means."""
    text = str(value).lower()
    return None if text == "sdpa" else "flash" if "flash" in text else one_of({"eager": "eager"})(text)


_KERNELS = {"flash": "flash_attention_2", "eager": "eager", None: "sdpa"}

KEYS = (
    Key("model_name_or_path", "model"),
    Key("attn_implementation", "attention", Codec(_kernel, lambda kernel: _KERNELS.get(kernel, UNSAID))),
    Key("per_device_train_batch_size", "micro_batch"),
    Key("gradient_accumulation_steps", "accumulation"),
    Key("packing", "packing", FLAG),
    Key("use_liger_kernel", "fused_kernels", switch("liger", "none")),
    Key("activation_offloading", "offload.activations", switch("cpu", "none")),
    Key("torch_compile", "compile", FLAG),
    Key("ddp_bucket_cap_mb", "buckets", MIBS),
    Key("lora_r", "lora.rank"),
    Key("lora_dropout", "lora.dropout"),
    Key("lora_target_modules", "lora.targets", NAMES),
    Key("lora_modules_to_save", "lora.save_modules", NAMES),
    Key("use_dora", "lora.dora", FLAG),
    Key("use_bnb_nested_quant", "quant.double", FLAG, when="load_in_4bit"),
    Key("bnb_4bit_quant_storage", "quant.storage", named({**DTYPES, "uint8": "int8"}), when="load_in_4bit"),
    Key("max_prompt_length", "prompt_len"),
    Key("max_completion_length", "response_len"),
    Key("num_generations", "group"),
    Key("use_vllm", "engine.kind", switch("vllm", "hf")),
    Key("vllm_mode", "engine.process", named({"colocate": "trainer", "server": "server"})),
    Key("vllm_gpu_memory_utilization", "engine.fraction"),
    Key("vllm_tensor_parallel_size", "engine.tp"),
    Key("vllm_max_model_length", "engine.max_len"),
    Key("vllm_enable_sleep_mode", "engine.sleep", switch("2", "none")),
    Key("precompute_ref_batch_size", "reference.logprob.micro_batch"),
)


def known() -> Known:
    """TRL's keys that set nothing; beside them what tells a trainer and a version (`trainer`)."""
    return known_names(__file__)
