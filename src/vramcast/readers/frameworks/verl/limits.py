"""What a verl key does that is not modelled: keys that make another job are refused by name, keys with a small effect
stay unread, and keys that no memory depends on are listed with the reason.

Read in verl 0.9.1, and in the workers of 0.3 to 0.8 for what older releases do.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from vramcast.readers.frameworks.verl.keys import ACTOR, FSDP, MODEL, REF, ROLLOUT

_OFF: tuple[Any, ...] = (None, False, 0, "", [], {})
_BF16 = ("bf16", "bfloat16", "torch.bfloat16")
_FP32 = ("fp32", "float32", "float", "torch.float32")


class Limit(NamedTuple):
    """The values of a key that are modelled, and what any other one would do."""

    modelled: tuple[Any, ...]
    does: str


def _unless_off(does: str) -> Limit:
    return Limit(_OFF, does)


_APART = "puts the engine on GPUs of its own"
_AT_ONCE = "generates and trains at the same time"
_QAT = _unless_off("trains with quantised weights")
_PADDED = _unless_off("pads every packed micro-batch to a fixed number of tokens")
REFUSED: dict[str, Limit] = {
    "actor_rollout_ref.hybrid_engine": Limit((True,), _APART),
    f"{ACTOR}use_prefix_grouper": _unless_off("computes the prompt of a group once"),
    f"{ACTOR}pad_to_length": _PADDED,
    f"{FSDP}pad_to_length": _PADDED,
    f"{ACTOR}calculate_sum_pi_squared": _unless_off("makes one more tensor of the size of the logits"),
    f"{FSDP}use_no_sync_for_gradient_accumulation": _unless_off("keeps whole gradients until the last micro-batch"),
    f"{FSDP}mixed_precision.reduce_dtype": Limit(_FP32, "reduces gradients in another dtype than fp32"),
    f"{REF}fsdp_config.mixed_precision.param_dtype": Limit(_BF16, "runs the reference in another dtype than bf16"),
    f"{REF}fsdp_config.dtype": Limit(_BF16, "runs the reference in another dtype than bf16"),
    f"{REF}fsdp_config.wrap_policy.min_num_params": _unless_off("wraps the reference by size"),
    f"{ACTOR}qat.enable": _QAT,
    f"{FSDP}qat.enable": _QAT,
    f"{REF}fsdp_config.qat.enable": _QAT,
    f"{MODEL}lora_adapter_path": _unless_off("loads adapters whose rank and layers stand in other files"),
    f"{MODEL}lora.adapter_path": _unless_off("loads adapters whose rank and layers stand in other files"),
    f"{MODEL}exclude_modules": _unless_off("leaves layers without adapters"),
    f"{MODEL}target_parameters": _unless_off("puts adapters on parameters that are no linear layers"),
    f"{MODEL}mtp.enable": _unless_off("trains or drafts with layers for several tokens"),
    f"{MODEL}tiled_mlp.enabled": _unless_off("computes the MLP in tiles"),
    f"{ROLLOUT}nnodes": _unless_off(_APART),
    f"{ROLLOUT}disaggregation.enabled": _unless_off("reads prompts and decodes on engines of their own"),
    f"{ROLLOUT}quantization_config_file": _unless_off("packs the engine's weights as another file says"),
    f"{ROLLOUT}checkpoint_engine.backend": Limit(("naive", None), "sends weights between GPUs of their own"),
    f"{ROLLOUT}engine_kwargs.vllm.speculative_config": _unless_off("adds a draft model"),
    f"{ROLLOUT}engine_kwargs.vllm.tensor_parallel_size": _unless_off("cuts the engine another way"),
    "distillation.enabled": _unless_off("adds a teacher"),
    "reward.reward_model.enable_resource_pool": _unless_off("puts the reward model on GPUs of its own"),
    "trainer.device": Limit(("cuda", None), "runs on a device that is no CUDA GPU"),
    "trainer.v1.trainer_mode": Limit(("sync", None), _AT_ONCE),
}  # fmt: skip
"""Keys that choose roles, layout, model or engine."""

REFUSED_BLOCKS: dict[str, str] = {
    "async_training.": _AT_ONCE,
    "rollout.": _APART,
    "atropos.": "generates in another service",
    f"{REF}model.": "makes the reference another model",
    f"{ROLLOUT}engine_kwargs.vllm.speculative_config.": "adds a draft model",
}
"""Beginnings of keys that choose them whatever their value."""

SHAPES = (
    "num_hidden_layers hidden_size intermediate_size vocab_size num_attention_heads num_key_value_heads head_dim "
    "num_experts num_local_experts moe_intermediate_size tie_word_embeddings sliding_window use_sliding_window "
    "layer_types model_type architectures torch_dtype dtype quantization_config"
).split()
"""fields of the model's config that make another model: `actor_rollout_ref.model.override_config` may set any"""

NO_EFFECT: dict[str, tuple[str, ...]] = {
    "which data, in which order": (
        "data.train_files", "data.val_", "data.train_max_samples", "data.tokenizer", "data.prompt_key",
        "data.reward_fn_key", "data.image_", "data.video_key", "data.audio_key", "data.seed", "data.shuffle",
        "data.truncation", "data.filter_overlong_prompts", "data.return_", "data.dataloader_num_workers",
        "data.trust_remote_code", "data.custom_cls", "data.apply_chat_template_kwargs", "data.validation_shuffle",
        "data.sampler", "data.datagen", "data.need_tools_kwargs", "data.tool_config_path", "data.function_tool_path",
        "data.use_shm", "data.mm_processor_kwargs", "data.continuous_token",
    ),
    "prompts come in more rounds, each with the whole cache": ("data.gen_batch_size",),
    "numbers of the optimisation, or tensors of one value a token": (
        "algorithm.gamma", "algorithm.lam", "algorithm.kl_", "algorithm.norm_adv_by_std_in_grpo",
        "algorithm.filter_groups", "algorithm.rollout_correction", "algorithm.rollout_is", "algorithm.use_pf_ppo",
        "algorithm.pf_ppo", f"{ACTOR}optim.lr", f"{ACTOR}optim.weight_decay", f"{ACTOR}optim.betas",
        f"{ACTOR}optim.min_lr_ratio", f"{ACTOR}optim.warmup_style", f"{ACTOR}optim.num_cycles",
        f"{ACTOR}optim.total_training_steps", f"{ACTOR}optim.clip_grad", f"{ACTOR}optim.zero_indexed_step",
        f"{ACTOR}clip_ratio", f"{ACTOR}tau_", f"{ACTOR}kl_loss_", f"{ACTOR}loss_", f"{ACTOR}policy_loss.",
        f"{ACTOR}grad_clip", f"{ACTOR}ppo_epochs", f"{ACTOR}shuffle", f"{ACTOR}data_loader_seed", f"{FSDP}seed",
        f"{FSDP}use_orig_params", f"{REF}fsdp_config.seed", f"{REF}fsdp_config.use_orig_params",
        f"{ACTOR}use_rollout_log_probs",
    ),
    "gradients are let go of before the engine wakes": (f"{FSDP}grad_offload",),
    "files of the model, and what is stored": (
        f"{MODEL}lora_alpha", f"{MODEL}trust_remote_code", f"{MODEL}tokenizer_path", f"{MODEL}hf_config_path",
        f"{MODEL}custom_chat_template", f"{MODEL}external_lib", f"{ACTOR}checkpoint", "actor_rollout_ref.nccl_timeout",
    ),
    "what is watched": (
        f"{ACTOR}profiler", f"{REF}profiler", f"{ROLLOUT}profiler", "critic.profiler", "reward_model.profiler",
        "global_profiler", f"{ROLLOUT}trace", f"{ROLLOUT}prometheus", f"{ROLLOUT}moe_load_balance_metrics_interval",
        "trainer.profile_steps", "trainer.npu_profile", "trainer.controller_nsight_options",
        "trainer.worker_nsight_options",
    ),
    "how tokens are sampled and requests are served": (
        f"{ROLLOUT}temperature", f"{ROLLOUT}top_", f"{ROLLOUT}do_sample", f"{ROLLOUT}val_kwargs", f"{ROLLOUT}seed",
        f"{ROLLOUT}ignore_eos", f"{ROLLOUT}disable_log_stats", f"{ROLLOUT}load_format", f"{ROLLOUT}use_fire_sampling",
        f"{ROLLOUT}enable_prefix_caching", f"{ROLLOUT}agent", f"{ROLLOUT}skip_tokenizer_init", f"{ROLLOUT}skip",
        f"{ROLLOUT}scheduling_policy", f"{ROLLOUT}logprobs_mode",
        f"{ROLLOUT}over_sample_rate", f"{ROLLOUT}chat_scheduler", f"{ROLLOUT}calculate_log_probs",
        f"{ROLLOUT}router_config_path", f"{ROLLOUT}engine_kwargs.vllm.swap_space",
        f"{ROLLOUT}engine_kwargs.vllm.disable_mm_preprocessor_cache",
    ),
    "turns and tools share the length of a response": (f"{ROLLOUT}multi_turn",),
    "the step is sized by max_num_batched_tokens either way": (f"{ROLLOUT}enable_chunked_prefill",),
    "the release decides where the engine runs": (f"{ROLLOUT}mode",),
    "read by SGLang only": (f"{ROLLOUT}multi_stage_wake_up", f"{ROLLOUT}engine_kwargs.sglang"),
    "read by TensorRT-LLM only": (f"{ROLLOUT}engine_kwargs.trtllm",),
    "read by Megatron only": (
        f"{MODEL}lora.alpha", f"{MODEL}lora.dropout", f"{MODEL}lora.dtype", f"{MODEL}lora.a2a_experimental",
        f"{MODEL}lora.type", f"{MODEL}lora.lora_", f"{MODEL}lora.freeze_", f"{MODEL}lora.exclude_modules",
        f"{MODEL}lora.target_modules",
    ),
    "for layers of pictures only": (f"{ACTOR}freeze_vision_tower", f"{ROLLOUT}limit_images"),
    "nothing but the host's disk and cache": (f"{MODEL}use_shm",),
    "the reference is on the host under FSDP, and has no optimizer and no entropy": (
        f"{REF}fsdp_config.offload_policy", f"{REF}fsdp_config.optimizer_offload", f"{REF}fsdp_config.forward_only",
        f"{REF}fsdp_config.use_no_sync_for_gradient_accumulation", f"{REF}use_torch_compile", f"{REF}entropy_",
        f"{REF}fsdp_config.use_torch_compile", f"{REF}fsdp_config.entropy_", f"{REF}fsdp_config.strategy",
    ),
    "buffers are not parameters": (
        f"{FSDP}mixed_precision.buffer_dtype", f"{REF}fsdp_config.mixed_precision.buffer_dtype",
    ),
    "rewards by rules": (
        "custom_reward_function", "reward.custom_reward_function", "reward.num_workers", "reward.reward_manager",
        "reward.reward_kwargs", "reward.sandbox_fusion", "reward_model.reward_manager",
        "reward_model.launch_reward_fn_async", "reward_model.reward_kwargs", "reward_model.num_workers",
        "reward_model.overlong_buffer", "reward_model.use_reward_loop", "reward_model.reward_loop",
        "reward_model.sandbox_fusion", "sandbox_fusion", "reward_manager",
    ),
    "the trainer's book-keeping": (
        "trainer.balance_batch", "trainer.total_", "trainer.project_name", "trainer.experiment_name", "trainer.logger",
        "trainer.log_", "trainer.rollout_data_dir", "trainer.validation_data_dir", "trainer.save_freq",
        "trainer.esi_redundant_time", "trainer.resume_", "trainer.checkpoint_callback_class", "trainer.val_",
        "trainer.test_freq", "trainer.critic_warmup", "trainer.default_", "trainer.del_local_ckpt_after_load",
        "trainer.max_", "trainer.ray_wait_register_center_timeout", "trainer.use_", "trainer.remove_previous_ckpt",
        "trainer.v1.", "ray_kwargs", "ray_init", "transfer_queue", "skip.", "hydra.", f"{ACTOR}rollout_n",
        f"{REF}rollout_n",
    ),
    "a copy of another key": (
        f"{ACTOR}use_fused_kernels", f"{ACTOR}use_remove_padding", f"{ROLLOUT}mtp", f"{ROLLOUT}qat",
    ),
}  # fmt: skip
"""Why → beginnings of keys that do not change the memory of a step."""

_ANYWHERE = {
    "_target_": "the class that holds the keys",
    "full_determinism": "which kernels are deterministic",
    "turbo_config": "read by FSDP turbo only",
    "forward_only": "verl sets it itself",
}
"""Words of dotted keys that have none, wherever they stand: configurations that verl prints itself are full of them."""


def refusal(key: str, value: Any) -> str:
    """What a key does that is not modelled; empty when it does nothing of that kind."""
    limit = REFUSED.get(key)
    if limit is not None:
        return "" if _among(value, limit.modelled) else limit.does
    return next((does for start, does in REFUSED_BLOCKS.items() if key.startswith(start) and value is not None), "")


def idle(key: str) -> str:
    """Why a key changes no memory; empty when nothing says so."""
    found = [(start, why) for why, starts in NO_EFFECT.items() for start in starts if key.startswith(start)]
    if found:
        return max(found)[1]  # the longest beginning, among those of one key
    return next((why for word, why in _ANYWHERE.items() if word in key.split(".")), "")


def _among(value: Any, known: tuple[Any, ...]) -> bool:
    """Equality that tells true from 1; a number that is 0 is off like false."""
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in known)
