"""Our paths in verl's own keys, so that a lever's edit can be copied into the user's script."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vramcast.readers.frameworks.verl.keys import ACTOR, FSDP, MODEL, REF, ROLLOUT
from vramcast.types.paths import Value
from vramcast.units import MIB

Write = Callable[[Any], dict[str, Any]]
_NODE = 8
"""GPUs of one machine: trainer.n_gpus_per_node, when nothing else is known."""


def _key(name: str) -> Write:
    return lambda value: {name: value}


def _named(name: str, table: Mapping[Any, Any]) -> Write:
    """A key with named values; nothing for a value that verl cannot say."""
    return lambda value: {name: table[value]} if value in table else {}


def _gpus(count: int) -> dict[str, Any]:
    if count <= _NODE:
        return {"trainer.n_gpus_per_node": count, "trainer.nnodes": 1}
    return {} if count % _NODE else {"trainer.n_gpus_per_node": _NODE, "trainer.nnodes": count // _NODE}


def _sequences(prefix: str) -> Write:
    return lambda value: {f"{prefix}_batch_size_per_gpu": value}


def _bucket(size: int) -> dict[str, Any]:
    if size % MIB:
        return {}
    return {f"{ROLLOUT}checkpoint_engine.update_weights_bucket_megabytes": size // MIB}


_RANK = 16
"""verl has no switch for adapters, only a rank: this one when no other is named."""
_OFFLOAD = {"cpu": True, "none": False}

NATIVE: dict[str, Write] = {
    "model": _key(f"{MODEL}path"),
    "gpus": _gpus,
    "gpus_per_node": _key("trainer.n_gpus_per_node"),
    "prompts_per_step": _key("data.train_batch_size"),
    "prompt_len": _key("data.max_prompt_length"),
    "response_len": _key("data.max_response_length"),
    "group": _key(f"{ROLLOUT}n"),
    "mini_batch": _key(f"{ACTOR}ppo_mini_batch_size"),
    "micro_batch": _sequences(f"{ACTOR}ppo_micro"),
    "token_budget": lambda value: {f"{ACTOR}use_dynamic_bsz": True, f"{ACTOR}ppo_max_token_len_per_gpu": value},
    "logprob.micro_batch": _sequences(f"{ROLLOUT}log_prob_micro"),
    "logprob.token_budget": _key(f"{ROLLOUT}log_prob_max_token_len_per_gpu"),
    "reference.logprob.micro_batch": _sequences(f"{REF}log_prob_micro"),
    "reference.logprob.token_budget": _key(f"{REF}log_prob_max_token_len_per_gpu"),
    "shard": _named(f"{ACTOR}strategy", {"fsdp1": "fsdp", "fsdp2": "fsdp2"}),
    "shard_size": lambda size: {f"{FSDP}fsdp_size": -1 if size is None else size},
    "reshard": _key(f"{FSDP}reshard_after_forward"),
    "weights_dtype": _named(f"{FSDP}model_dtype", {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16"}),
    "offload.weights": _named(f"{FSDP}param_offload", _OFFLOAD),
    "offload.optimizer": _named(f"{FSDP}optimizer_offload", _OFFLOAD),
    "offload.activations": _named(f"{MODEL}enable_activation_offload", _OFFLOAD),
    "recompute": _named(f"{MODEL}enable_gradient_checkpointing", {"full": True, "none": False}),
    "padding": _named(f"{MODEL}use_remove_padding", {"free": True, "max": False}),
    "loss": _named(f"{MODEL}use_fused_kernels", {"fused": True, "full": False}),
    "fused_kernels": _named(f"{MODEL}use_liger", {"liger": True, "none": False}),
    "attention": _named(
        f"+{MODEL}override_config.attn_implementation", {"flash": "flash_attention_2", "eager": "eager", None: "sdpa"}
    ),
    "tuning": _named(f"{MODEL}lora_rank", {"full": 0, "lora": _RANK}),  # a lora.rank beside it says the rank
    "lora.rank": _key(f"{MODEL}lora_rank"),
    "lora.targets": _key(f"{MODEL}target_modules"),
    "ulysses": _key(f"{ACTOR}ulysses_sequence_parallel_size"),
    "reference.kind": _named(f"{ACTOR}use_kl_loss", {"none": False, "copy": True, "adapter_off": True}),
    "engine.kind": _named(f"{ROLLOUT}name", {kind: kind for kind in ("vllm", "sglang", "hf", "trtllm")}),
    "engine.fraction": _key(f"{ROLLOUT}gpu_memory_utilization"),
    "engine.quant": _named(f"{ROLLOUT}quantization", {"none": None, "fp8": "fp8"}),
    "engine.tp": _key(f"{ROLLOUT}tensor_model_parallel_size"),
    "engine.max_seqs": _key(f"{ROLLOUT}max_num_seqs"),
    "engine.max_batched_tokens": _key(f"{ROLLOUT}max_num_batched_tokens"),
    "engine.max_len": _key(f"{ROLLOUT}max_model_len"),
    "engine.eager": _key(f"{ROLLOUT}enforce_eager"),
    "engine.sleep": _named(f"{ROLLOUT}free_cache_engine", {"none": False, "1": True, "2": True}),
    "engine.sync_bucket_bytes": _bucket,
    "critic.micro_batch": _key("critic.ppo_micro_batch_size_per_gpu"),
    "critic.token_budget": _key("critic.ppo_max_token_len_per_gpu"),
    "critic.offload.weights": _named("critic.fsdp.param_offload", _OFFLOAD),
    "critic.offload.optimizer": _named("critic.fsdp.optimizer_offload", _OFFLOAD),
}
"""Path → its value in verl's keys; empty for a value that verl cannot say."""


def verl_keys(edits: Mapping[str, Value]) -> dict[str, Value]:
    """Edits (path → value) as one mapping of verl keys."""
    return {
        key: native for path, value in edits.items() if path in NATIVE for key, native in NATIVE[path](value).items()
    }
