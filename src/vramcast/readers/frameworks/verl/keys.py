"""verl's configuration keys as tables: which path each sets.

Read in verl 0.9.1 (the FSDP engine, the rollout workers) and in the workers of 0.3 to 0.8. Keys whose meaning depends
on other keys are read in `verl_rules`; what is not modelled or has no effect on memory stands in `verl_limits`.
"""

from __future__ import annotations

from typing import Any

from vramcast.readers.frameworks.trl.keys import Convert, names, one_of
from vramcast.types import words

ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
MODEL, REF = "actor_rollout_ref.model.", "actor_rollout_ref.ref."
FSDP = f"{ACTOR}fsdp_config."

DTYPES = {word: dtype for word, dtype in words.DTYPES.items() if dtype != "fp8"}
_dtype = one_of(DTYPES)


def truth(value: Any) -> bool:
    """What Python makes of a switch: verl asks `if config.x`, so any number or text but 0 and "" is true."""
    return bool(value)


def switch(on: str, off: str) -> Convert:
    """A converter for a switch that chooses between two named values."""
    return lambda value: on if truth(value) else off


def given(value: Any) -> Any:
    """A value that verl cannot do without.

    Raises:
        ValueError: null.
    """
    if value is None:
        raise ValueError("null is no value that verl runs with")
    return value


def _dtype_or(unset: str) -> Convert:
    """A converter for a dtype that is `unset` where it is null."""
    return lambda value: unset if value is None else _dtype(value)


_offload = switch("cpu", "none")


def _shard(value: Any) -> str:
    if value not in ("fsdp", "fsdp2"):
        raise ValueError(f"verl's {value} backend is not modelled yet; known: fsdp, fsdp2")
    return {"fsdp": "fsdp1", "fsdp2": "fsdp2"}[value]


def _mib(value: Any) -> str:
    """verl shifts its megabytes by 20 bits."""
    return f"{given(value)}MiB"


KEYS: dict[str, tuple[str, Convert]] = {
    f"{MODEL}path": ("model", given),
    "data.train_batch_size": ("prompts_per_step", given),
    "data.max_prompt_length": ("prompt_len", given),
    "data.max_response_length": ("response_len", given),
    "trainer.n_gpus_per_node": ("gpus_per_node", given),
    f"{ACTOR}strategy": ("shard", _shard),
    f"{ACTOR}ppo_mini_batch_size": ("mini_batch", given),
    f"{ACTOR}ulysses_sequence_parallel_size": ("ulysses", given),
    f"{FSDP}model_dtype": ("weights_dtype", _dtype_or("fp32")),
    f"{FSDP}reshard_after_forward": ("reshard", truth),
    f"{FSDP}param_offload": ("offload.weights", _offload),
    f"{FSDP}optimizer_offload": ("offload.optimizer", _offload),
    f"{REF}fsdp_config.model_dtype": ("reference.weights_dtype", _dtype_or("bf16")),
    f"{REF}fsdp_config.reshard_after_forward": ("reference.reshard", truth),
    f"{MODEL}enable_gradient_checkpointing": ("recompute", switch("full", "none")),
    f"{MODEL}enable_activation_offload": ("offload.activations", _offload),
    f"{MODEL}use_remove_padding": ("padding", switch("free", "max")),
    f"{MODEL}use_fused_kernels": ("loss", switch("fused", "full")),
    f"{MODEL}use_liger": ("fused_kernels", switch("liger", "none")),
    f"{ROLLOUT}name": ("engine.kind", one_of({kind: kind for kind in ("vllm", "sglang", "hf", "trtllm")})),
    f"{ROLLOUT}n": ("group", given),
    f"{ROLLOUT}dtype": ("engine.dtype", _dtype),
    f"{ROLLOUT}gpu_memory_utilization": ("engine.fraction", given),
    f"{ROLLOUT}tensor_model_parallel_size": ("engine.tp", given),
    f"{ROLLOUT}data_parallel_size": ("engine.dp", given),
    f"{ROLLOUT}expert_parallel_size": ("engine.ep", given),
    f"{ROLLOUT}pipeline_model_parallel_size": ("engine.pp", given),
    f"{ROLLOUT}max_num_seqs": ("engine.max_seqs", given),
    f"{ROLLOUT}max_num_batched_tokens": ("engine.max_batched_tokens", given),
    f"{ROLLOUT}max_model_len": ("engine.max_len", given),
    f"{ROLLOUT}enforce_eager": ("engine.eager", truth),
    f"{ROLLOUT}quantization": ("engine.quant", given),
    f"{ROLLOUT}checkpoint_engine.update_weights_bucket_megabytes": ("engine.sync_bucket_bytes", _mib),
}
"""Keys that set one path by themselves; null leaves the path unset where it is verl's own default."""

RULED: dict[str, tuple[str, ...]] = {
    "algorithm.adv_estimator": ("algorithm",),
    "algorithm.use_kl_in_reward": ("reference.kind",),
    "trainer.n_gpus_per_node": ("gpus", "gpus_per_node"),
    "trainer.nnodes": ("gpus",),
    f"{ACTOR}use_kl_loss": ("reference.kind",),
    f"{ACTOR}use_dynamic_bsz": ("micro_batch",),
    f"{ACTOR}ppo_micro_batch_size_per_gpu": ("micro_batch",),
    f"{ACTOR}ppo_micro_batch_size": ("micro_batch",),
    f"{ACTOR}ppo_max_token_len_per_gpu": ("token_budget",),
    f"{ACTOR}entropy_coeff": ("entropy",),
    f"{ACTOR}calculate_entropy": ("entropy",),
    **{
        f"{prefix}{name}": ("logprob.entropy",)
        for prefix in (ACTOR, FSDP)
        for name in ("use_torch_compile", "entropy_from_logits_with_chunking", "entropy_from_logits_chunk_size")
    },
    **{f"{prefix}entropy_checkpointing": ("entropy",) for prefix in (ACTOR, FSDP)},
    "algorithm.rollout_correction.bypass_mode": ("logprob.source",),
    f"{ACTOR}optim.optimizer": ("optimizer",),
    f"{ACTOR}optim.optimizer_impl": ("optimizer",),
    f"{ACTOR}optim.override_optimizer_config.fused": ("optimizer.impl",),
    f"{ACTOR}optim.override_optimizer_config.foreach": ("optimizer.impl",),
    f"{ACTOR}policy_loss.loss_mode": ("grpo.variant",),
    f"{FSDP}dtype": ("compute_dtype",),
    f"{FSDP}mixed_precision.param_dtype": ("compute_dtype",),
    f"{FSDP}fsdp_size": ("shard_size",),
    f"{FSDP}offload_policy": ("offload.weights",),
    f"{FSDP}strategy": ("shard",),
    f"{FSDP}wrap_policy.min_num_params": ("wrap",),
    f"{FSDP}wrap_policy.disable": ("wrap",),
    f"{FSDP}ulysses_sequence_parallel_size": ("ulysses",),
    f"{MODEL}override_config.attn_implementation": ("attention",),
    f"{MODEL}lora_rank": ("tuning", "lora.rank"),
    f"{MODEL}lora.rank": ("tuning", "lora.rank"),
    f"{MODEL}target_modules": ("lora.targets",),
    f"{MODEL}lora.merge": ("engine.sleep",),
    f"{MODEL}fused_kernel_options.impl_backend": ("loss",),
    f"{ROLLOUT}free_cache_engine": ("engine.sleep",),
    f"{ROLLOUT}log_prob_use_dynamic_bsz": ("logprob.micro_batch",),
    f"{ROLLOUT}log_prob_micro_batch_size_per_gpu": ("logprob.micro_batch",),
    f"{ROLLOUT}log_prob_micro_batch_size": ("logprob.micro_batch",),
    f"{ROLLOUT}log_prob_max_token_len_per_gpu": ("logprob.token_budget",),
    f"{REF}log_prob_use_dynamic_bsz": ("reference.logprob.micro_batch",),
    f"{REF}log_prob_micro_batch_size_per_gpu": ("reference.logprob.micro_batch",),
    f"{REF}log_prob_micro_batch_size": ("reference.logprob.micro_batch",),
    f"{REF}log_prob_max_token_len_per_gpu": ("reference.logprob.token_budget",),
    f"{REF}fsdp_config.param_offload": (),
    f"{REF}fsdp_config.fsdp_size": ("reference.shard_size",),
    f"{REF}fsdp_config.ulysses_sequence_parallel_size": ("ulysses",),
    f"{REF}ulysses_sequence_parallel_size": ("ulysses",),
    f"{REF}strategy": ("shard",),
    f"{ROLLOUT}n_gpus_per_node": (),
    f"{ROLLOUT}prompt_length": ("prompt_len",),
    f"{ROLLOUT}response_length": ("response_len",),
    f"{ROLLOUT}engine_kwargs.vllm.kv_cache_dtype": ("engine.kv_dtype",),
    "model_engine": (),
    "reward.reward_model.enable": ("reward.kind",),
    "reward.reward_model.model_path": ("reward.model",),
    "critic.enable": ("critic.kind",),
    "critic.model.lora_rank": ("critic.tuning", "critic.lora.rank"),
    "critic.use_dynamic_bsz": ("critic.micro_batch",),
    "critic.ppo_micro_batch_size_per_gpu": ("critic.micro_batch",),
    "critic.ppo_micro_batch_size": ("critic.micro_batch",),
    "critic.forward_max_token_len_per_gpu": ("critic.logprob.token_budget",),
    "critic.ppo_max_token_len_per_gpu": ("critic.token_budget",),
}
"""Keys that `verl_rules` reads, with the paths that they feed."""

CRITIC: dict[str, tuple[str, Convert]] = {
    "critic.model.path": ("critic.model", given),
    "critic.strategy": ("critic.shard", _shard),
    "critic.ppo_mini_batch_size": ("critic.mini_batch", given),
    "critic.forward_micro_batch_size_per_gpu": ("critic.logprob.micro_batch", given),
    "critic.ulysses_sequence_parallel_size": ("critic.ulysses", given),
    "critic.fsdp.model_dtype": ("critic.weights_dtype", _dtype_or("fp32")),
    "critic.fsdp.param_offload": ("critic.offload.weights", _offload),
    "critic.fsdp.optimizer_offload": ("critic.offload.optimizer", _offload),
    "critic.fsdp.reshard_after_forward": ("critic.reshard", truth),
    "critic.model.enable_gradient_checkpointing": ("critic.recompute", switch("full", "none")),
    "critic.model.enable_activation_offload": ("critic.offload.activations", _offload),
    "critic.model.use_remove_padding": ("critic.padding", switch("free", "max")),
    "critic.model.target_modules": ("critic.lora.targets", names),
}
"""Keys of the critic, read if there is one."""

OLD: dict[str, str] = {
    f"{ROLLOUT}update_weights_bucket_megabytes": f"{ROLLOUT}checkpoint_engine.update_weights_bucket_megabytes",
    **{
        f"critic.model.fsdp_config.{key}": f"critic.fsdp.{key}"
        for key in ("model_dtype", "param_offload", "optimizer_offload", "reshard_after_forward", "fsdp_size")
    },
    "reward_model.enable": "reward.reward_model.enable",
    "reward_model.model.path": "reward.reward_model.model_path",
    "reward_model.enable_resource_pool": "reward.reward_model.enable_resource_pool",
}
"""Keys of older versions, and today's key."""
