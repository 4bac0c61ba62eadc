"""verl's configuration keys as tables: which path each sets, which have no effect on memory, which are not modelled.

Read in verl 0.9.1 (`verl/trainer/config/_generated_ppo_trainer.yaml`, the FSDP engine, the rollout workers). Keys whose
meaning depends on other keys are read in `verl_rules`.
"""

from __future__ import annotations

from typing import Any

from vramcast.readers.trl_keys import Convert, flag, names, one_of, same, switch

ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
MODEL, REF = "actor_rollout_ref.model.", "actor_rollout_ref.ref."
FSDP = f"{ACTOR}fsdp_config."

DTYPES = {
    **dict.fromkeys(("bf16", "bfloat16", "torch.bfloat16"), "bf16"),
    **dict.fromkeys(("fp16", "float16", "half", "torch.float16"), "fp16"),
    **dict.fromkeys(("fp32", "float32", "float", "torch.float32"), "fp32"),
}
_dtype = one_of(DTYPES)
_offload = switch("cpu", "none")


def _shard(value: Any) -> str:
    if value not in ("fsdp", "fsdp2"):
        raise ValueError(f"verl's {value} backend is not modelled yet; known: fsdp, fsdp2")
    return {"fsdp": "fsdp1", "fsdp2": "fsdp2"}[value]


def _mib(value: Any) -> str:
    """verl shifts its megabytes by 20 bits."""
    return f"{value}MiB"


KEYS: dict[str, tuple[str, Convert]] = {
    f"{MODEL}path": ("model", same),
    "data.train_batch_size": ("prompts_per_step", same),
    "data.max_prompt_length": ("prompt_len", same),
    "data.max_response_length": ("response_len", same),
    "trainer.n_gpus_per_node": ("gpus_per_node", same),
    f"{ACTOR}strategy": ("shard", _shard),
    f"{ACTOR}ppo_mini_batch_size": ("mini_batch", same),
    f"{ACTOR}ulysses_sequence_parallel_size": ("ulysses", same),
    f"{FSDP}model_dtype": ("weights_dtype", _dtype),
    f"{FSDP}reshard_after_forward": ("reshard", flag),
    f"{FSDP}param_offload": ("offload.weights", _offload),
    f"{FSDP}optimizer_offload": ("offload.optimizer", _offload),
    f"{REF}fsdp_config.model_dtype": ("reference.weights_dtype", _dtype),
    f"{MODEL}enable_gradient_checkpointing": ("recompute", switch("full", "none")),
    f"{MODEL}enable_activation_offload": ("offload.activations", _offload),
    f"{MODEL}use_remove_padding": ("padding", switch("free", "max")),
    f"{MODEL}use_fused_kernels": ("loss", switch("fused", "full")),
    f"{MODEL}use_liger": ("fused_kernels", switch("liger", "none")),
    f"{ROLLOUT}name": ("engine.kind", one_of({kind: kind for kind in ("vllm", "sglang", "hf", "trtllm")})),
    f"{ROLLOUT}n": ("group", same),
    f"{ROLLOUT}dtype": ("engine.dtype", _dtype),
    f"{ROLLOUT}gpu_memory_utilization": ("engine.fraction", same),
    f"{ROLLOUT}tensor_model_parallel_size": ("engine.tp", same),
    f"{ROLLOUT}data_parallel_size": ("engine.dp", same),
    f"{ROLLOUT}expert_parallel_size": ("engine.ep", same),
    f"{ROLLOUT}pipeline_model_parallel_size": ("engine.pp", same),
    f"{ROLLOUT}max_num_seqs": ("engine.max_seqs", same),
    f"{ROLLOUT}max_num_batched_tokens": ("engine.max_batched_tokens", same),
    f"{ROLLOUT}max_model_len": ("engine.max_len", same),
    f"{ROLLOUT}enforce_eager": ("engine.eager", flag),
    f"{ROLLOUT}quantization": ("engine.quant", same),
    f"{ROLLOUT}checkpoint_engine.update_weights_bucket_megabytes": ("engine.sync_bucket_bytes", _mib),
}
"""Keys that set one path by themselves; null leaves the path unset."""

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
    f"{ACTOR}entropy_from_logits_with_chunking": ("entropy",),
    f"{ACTOR}optim.optimizer": ("optimizer",),
    f"{ACTOR}optim.optimizer_impl": ("optimizer",),
    f"{ACTOR}policy_loss.loss_mode": ("grpo.variant",),
    f"{FSDP}dtype": ("compute_dtype",),
    f"{FSDP}mixed_precision.param_dtype": ("compute_dtype",),
    f"{FSDP}fsdp_size": ("shard_size",),
    f"{FSDP}offload_policy": ("offload.weights",),
    f"{FSDP}wrap_policy.min_num_params": ("wrap",),
    f"{FSDP}ulysses_sequence_parallel_size": ("ulysses",),
    f"{MODEL}override_config.attn_implementation": ("attention",),
    f"{MODEL}lora_rank": ("tuning", "lora.rank"),
    f"{MODEL}lora.rank": ("tuning", "lora.rank"),
    f"{MODEL}target_modules": ("lora.targets",),
    f"{MODEL}lora.merge": ("engine.sleep",),
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
    "critic.model.path": ("critic.model", same),
    "critic.strategy": ("critic.shard", _shard),
    "critic.ppo_mini_batch_size": ("critic.mini_batch", same),
    "critic.forward_micro_batch_size_per_gpu": ("critic.logprob.micro_batch", same),
    "critic.ulysses_sequence_parallel_size": ("critic.ulysses", same),
    "critic.fsdp.model_dtype": ("critic.weights_dtype", _dtype),
    "critic.fsdp.param_offload": ("critic.offload.weights", _offload),
    "critic.fsdp.optimizer_offload": ("critic.offload.optimizer", _offload),
    "critic.fsdp.reshard_after_forward": ("critic.reshard", flag),
    "critic.model.enable_gradient_checkpointing": ("critic.recompute", switch("full", "none")),
    "critic.model.enable_activation_offload": ("critic.offload.activations", _offload),
    "critic.model.use_remove_padding": ("critic.padding", switch("free", "max")),
    "critic.model.target_modules": ("critic.lora.targets", names),
}
"""Keys of the critic, read if there is one."""

OLD: dict[str, tuple[str, str]] = {
    f"{ROLLOUT}update_weights_bucket_megabytes": (
        f"{ROLLOUT}checkpoint_engine.update_weights_bucket_megabytes",
        "up to verl 0.6",
    ),
    **{
        f"critic.model.fsdp_config.{key}": (f"critic.fsdp.{key}", "up to verl 0.8")
        for key in ("model_dtype", "param_offload", "optimizer_offload", "reshard_after_forward", "fsdp_size")
    },
    "reward_model.enable": ("reward.reward_model.enable", "up to verl 0.8"),
    "reward_model.model.path": ("reward.reward_model.model_path", "up to verl 0.8"),
}
"""Keys of older versions: (today's key, until when it was read)."""

NOT_MODELLED: dict[str, tuple[Any, ...]] = {
    "actor_rollout_ref.hybrid_engine": (True,),
    f"{ACTOR}calculate_sum_pi_squared": (),
    f"{ACTOR}entropy_checkpointing": (),
    f"{ACTOR}freeze_vision_tower": (),
    f"{ACTOR}pad_to_length": (),
    f"{ACTOR}use_prefix_grouper": (),
    f"{ACTOR}use_torch_compile": (True,),
    f"{FSDP}forward_prefetch": (),
    f"{FSDP}use_no_sync_for_gradient_accumulation": (),
    f"{MODEL}exclude_modules": (),
    f"{MODEL}fused_kernel_options.impl_backend": ("torch",),
    f"{MODEL}use_shm": (),
    f"{ROLLOUT}calculate_log_probs": (True, False),
    f"{ROLLOUT}cudagraph_capture_sizes": (),
    f"{ROLLOUT}enable_chunked_prefill": (True,),
    f"{ROLLOUT}layered_summon": (),
    f"{ROLLOUT}mode": ("async",),
    f"{ROLLOUT}multi_stage_wake_up": (),
    f"{ROLLOUT}nnodes": (0,),
    "critic.fsdp.fsdp_size": (-1,),
    "reward.reward_model.enable_resource_pool": (),
    "trainer.device": ("cuda",),
    "trainer.v1.trainer_mode": ("sync",),
}
"""Keys that change memory and have no path: unread, unless their value is null, false, empty or one of these."""

NO_EFFECT: tuple[str, ...] = (
    # data
    "data.train_files", "data.val_", "data.train_max_samples", "data.tokenizer", "data.prompt_key",
    "data.reward_fn_key", "data.image_key", "data.video_key", "data.audio_key", "data.seed", "data.shuffle",
    "data.truncation",
    "data.filter_overlong_prompts", "data.return_", "data.dataloader_num_workers", "data.trust_remote_code",
    "data.custom_cls", "data.apply_chat_template_kwargs", "data.validation_shuffle", "data.sampler", "data.datagen",
    "data.need_tools_kwargs", "data.tool_config_path", "data.function_tool_path", "data.use_shm",
    # the optimisation
    "algorithm.gamma", "algorithm.lam", "algorithm.kl_", "algorithm.norm_adv_by_std_in_grpo", "algorithm.filter_groups",
    "algorithm.rollout_correction", "algorithm.rollout_is", "algorithm.use_pf_ppo", "algorithm.pf_ppo",
    f"{ACTOR}optim.lr", f"{ACTOR}optim.weight_decay", f"{ACTOR}optim.betas", f"{ACTOR}optim.min_lr_ratio",
    f"{ACTOR}optim.warmup_style", f"{ACTOR}optim.num_cycles", f"{ACTOR}optim.total_training_steps",
    f"{ACTOR}optim.clip_grad", f"{ACTOR}optim.zero_indexed_step", f"{ACTOR}clip_ratio", f"{ACTOR}tau_",
    f"{ACTOR}kl_loss_", f"{ACTOR}loss_", f"{ACTOR}policy_loss.", f"{ACTOR}grad_clip", f"{ACTOR}ppo_epochs",
    f"{ACTOR}shuffle", f"{ACTOR}data_loader_seed", f"{FSDP}seed", f"{FSDP}use_orig_params",
    "critic.optim.lr", "critic.optim.weight_decay", "critic.optim.betas", "critic.optim.min_lr_ratio",
    "critic.optim.warmup_style", "critic.optim.total_training_steps", "critic.cliprange_value", "critic.grad_clip",
    "critic.ppo_epochs", "critic.shuffle", "critic.loss_", "critic.data_loader_seed", "critic.model.tokenizer_path",
    "critic.model.trust_remote_code", "critic.model.external_lib", "critic.model.lora_alpha", "critic.fsdp.seed",
    "critic.fsdp.use_orig_params",
    # the model's files, what is stored, and what is watched
    f"{MODEL}lora_alpha", f"{MODEL}trust_remote_code", f"{MODEL}tokenizer_path", f"{MODEL}hf_config_path",
    f"{MODEL}custom_chat_template", f"{MODEL}external_lib", f"{ACTOR}checkpoint", "critic.checkpoint",
    f"{ACTOR}profiler", f"{REF}profiler", f"{ROLLOUT}profiler", "critic.profiler", "global_profiler",
    "actor_rollout_ref.nccl_timeout",
    # sampling and serving
    f"{ROLLOUT}temperature", f"{ROLLOUT}top_", f"{ROLLOUT}do_sample", f"{ROLLOUT}val_kwargs", f"{ROLLOUT}seed",
    f"{ROLLOUT}ignore_eos", f"{ROLLOUT}disable_log_stats", f"{ROLLOUT}load_format", f"{ROLLOUT}enable_prefix_caching",
    f"{ROLLOUT}agent", f"{ROLLOUT}trace", f"{ROLLOUT}prometheus", f"{ROLLOUT}skip_tokenizer_init",
    f"{ROLLOUT}scheduling_policy", f"{ROLLOUT}logprobs_mode", f"{ROLLOUT}prompt_length", f"{ROLLOUT}response_length",
    f"{ROLLOUT}checkpoint_engine.backend",
    # rewards by rules
    "custom_reward_function", "reward.custom_reward_function", "reward.num_workers", "reward.reward_manager",
    "reward.sandbox_fusion", "reward_model.reward_manager", "reward_model.launch_reward_fn_async",
    "reward_model.reward_kwargs", "reward_model.num_workers", "sandbox_fusion",
    # the trainer
    "trainer.balance_batch", "trainer.total_", "trainer.project_name", "trainer.experiment_name", "trainer.logger",
    "trainer.log_", "trainer.rollout_data_dir", "trainer.validation_data_dir", "trainer.save_freq",
    "trainer.esi_redundant_time", "trainer.resume_", "trainer.checkpoint_callback_class", "trainer.val_",
    "trainer.test_freq", "trainer.critic_warmup", "trainer.default_", "trainer.del_local_ckpt_after_load",
    "trainer.max_", "trainer.ray_wait_register_center_timeout", "trainer.use_", "trainer.remove_previous_ckpt",
    "trainer.v1.", "ray_kwargs", "ray_init", "transfer_queue", "skip.", "hydra.", f"{ACTOR}rollout_n",
    f"{REF}rollout_n",
)  # fmt: skip
"""Beginnings of keys that do not change the memory of a step."""

NO_EFFECT_INSIDE = ("_target_", "full_determinism", "turbo_config", "forward_only")
"""Words of dotted keys that do not, wherever they stand: configurations that verl prints itself are full of them."""

DEFAULTS: dict[str, Any] = {
    "data.max_prompt_length": 512,
    "data.max_response_length": 512,
    "trainer.n_gpus_per_node": 8,
    "trainer.nnodes": 1,
    f"{ACTOR}ppo_max_token_len_per_gpu": 16384,
    f"{ACTOR}use_dynamic_bsz": False,
    f"{ACTOR}ulysses_sequence_parallel_size": 1,
    f"{ACTOR}ppo_mini_batch_size": 256,
    f"{ROLLOUT}n": 1,
    "critic.ppo_max_token_len_per_gpu": 32768,
}
"""What rules and interpolations need of the values that a script leaves out; all defaults are rows of the catalogue."""


def known_key(key: str) -> bool:
    """Whether verl has, or had, this key."""
    tables = (KEYS, RULED, CRITIC, OLD, NOT_MODELLED)
    idle = key.startswith(NO_EFFECT) or any(word in NO_EFFECT_INSIDE for word in key.split("."))
    return idle or any(key in table for table in tables)
