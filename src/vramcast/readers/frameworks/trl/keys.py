"""TRL's configuration keys as tables: which path each sets, which have no effect on memory, which are not modelled.

Read in trl 1.16.0 (SFTConfig, DPOConfig, GRPOConfig, ModelConfig, the script arguments) and transformers 5.24.0
(TrainingArguments). Keys whose meaning depends on other keys are read in `trl_rules`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramcast.errors import near

Convert = Callable[[Any], Any]
"""A TRL value → the value of our path, or None for no fact.

Raises:
    ValueError: not a value of this key.
"""

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}

OPTIMIZERS: dict[str, tuple[str, str | None]] = {
    "adamw_torch": ("adamw", "foreach"),
    "adamw_torch_fused": ("adamw", "fused"),
    "adamw_8bit": ("adamw_8bit", None),
    "adamw_bnb_8bit": ("adamw_8bit", None),
    "adamw_torch_8bit": ("adamw_8bit", None),
    "adamw_torch_4bit": ("adamw_4bit", None),
    "paged_adamw_32bit": ("paged_adamw", None),
    "paged_adamw_8bit": ("paged_adamw_8bit", None),
    "adafactor": ("adafactor", None),
    "sgd": ("sgd", "foreach"),
    "lion_32bit": ("lion", None),
    "galore_adamw": ("galore", None),
    "apollo_adamw": ("apollo", None),
    "lomo": ("lomo", None),
    "schedule_free_adamw": ("schedule_free", None),
}
"""`optim` → (optimizer, optimizer.impl)."""


def one_of(table: dict[str, Any]) -> Convert:
    """A converter for a key with named values."""

    def convert(value: Any) -> Any:
        if not isinstance(value, str) or value not in table:
            known = near(str(value), table) or ", ".join(table)
            raise ValueError(f"{value!r} is not modelled; known: {known}")
        return table[value]

    return convert


def same(value: Any) -> Any:
    return value


def switch(on: str, off: str) -> Convert:
    """A converter for a flag that chooses between two named values."""
    return lambda value: on if flag(value) else off


def flag(value: Any) -> bool:
    """A flag, as argparse casts it: also in quotes."""
    if isinstance(value, str) and value.lower() in ("true", "yes", "1", "false", "no", "0"):
        return value.lower() in ("true", "yes", "1")
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is not true or false")
    return value


def number(value: Any) -> float:
    """A number, as argparse casts it: PyYAML reads 2e-5 as text."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{value!r} is not a number") from None


def whole(value: Any) -> int:
    """A count of one or more, also in quotes."""
    try:
        found = int(value)
    except (TypeError, ValueError, OverflowError):
        found = 0
    if found < 1:
        raise ValueError(f"{value!r} is not a whole number from 1")
    return found


def names(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]  # pyright: ignore[reportUnknownArgumentType]


def _mib(value: Any) -> str:
    return f"{value}MiB"


def _kernel(value: Any) -> str | None:
    text = str(value).lower()
    if text == "sdpa":
        return None  # torch chooses the kernel by the card, which is what an unset path means
    if "flash" in text:
        return "flash"
    return one_of({"eager": "eager"})(text)


KEYS: dict[str, tuple[str, Convert]] = {
    "model_name_or_path": ("model", same),
    "attn_implementation": ("attention", _kernel),
    "per_device_train_batch_size": ("micro_batch", same),
    "gradient_accumulation_steps": ("accumulation", same),
    "packing": ("packing", flag),
    "use_liger_kernel": ("fused_kernels", switch("liger", "none")),
    "activation_offloading": ("offload.activations", switch("cpu", "none")),
    "torch_compile": ("compile", flag),
    "ddp_bucket_cap_mb": ("buckets", _mib),
    "lora_r": ("lora.rank", same),
    "lora_dropout": ("lora.dropout", same),
    "lora_target_modules": ("lora.targets", names),
    "lora_modules_to_save": ("lora.save_modules", names),
    "use_dora": ("lora.dora", flag),
    "max_prompt_length": ("prompt_len", same),
    "max_completion_length": ("response_len", same),
    "num_generations": ("group", same),
    "use_vllm": ("engine.kind", switch("vllm", "hf")),
    "vllm_mode": ("engine.process", one_of({"colocate": "trainer", "server": "server"})),
    "vllm_gpu_memory_utilization": ("engine.fraction", same),
    "vllm_tensor_parallel_size": ("engine.tp", same),
    "vllm_max_model_length": ("engine.max_len", same),
    "vllm_enable_sleep_mode": ("engine.sleep", switch("2", "none")),
    "precompute_ref_batch_size": ("reference.logprob.micro_batch", same),
}
"""Keys that set one path by themselves; null leaves the path unset."""

RULED = frozenset(
    "dtype bf16 fp16 max_length padding_free packing_strategy optim gradient_checkpointing "
    "gradient_checkpointing_kwargs activation_checkpointing activation_checkpointing_kwargs use_peft load_in_4bit "
    "load_in_8bit bnb_4bit_quant_type bnb_4bit_quant_storage use_bnb_nested_quant model_init_kwargs env beta "
    "precompute_ref_log_probs generation_batch_size reward_model_name_or_path reward_funcs loss_type "
    "label_smoothing_factor per_device_eval_batch_size eval_strategy do_eval num_iterations steps_per_generation "
    "auto_find_batch_size accelerator_config cache_implementation ds3_gather_for_generation liger_kernel_config "
    "pad_to_multiple_of vllm_importance_sampling_correction vllm_model_impl vllm_device vllm_dtype "
    "gradient_checkpointing_use_reentrant model_max_length block_size deepspeed fsdp fsdp_config parallelism_config "
    "fsdp_transformer_layer_cls_to_wrap fsdp_min_num_params".split()
)
"""Keys that `trl_rules` reads."""

OLD: dict[str, str] = {
    "max_seq_length": "max_length",
    "torch_dtype": "dtype",
    "vllm_max_model_len": "vllm_max_model_length",
    "evaluation_strategy": "eval_strategy",
    "use_liger": "use_liger_kernel",
}
"""Names of older versions, and today's."""

CHOOSES: dict[str, tuple[tuple[Any, ...], str]] = {
    "cast_lm_head_to_fp32": ((False,), "the head computes in fp32"),
    "lora_target_parameters": ((), "adapters on single parameters"),
    "optim_target_modules": ((), "which modules the optimizer projects"),
    "use_transformers_continuous_batching": ((False,), "Transformers' own engine with pages"),
    "use_transformers_paged": ((False,), "Transformers' own engine with pages"),
    "force_use_ref_model": ((False,), "a reference model beside the adapters"),
    "reference_free": ((False,), "DPO without a reference"),
    "ref_model_init_kwargs": ((), "how the reference is loaded"),
    "model_adapter_name": ((), "adapters of several names in one model"),
    "ref_adapter_name": ((), "an adapter as the reference"),
    "is_encoder_decoder": ((False,), "an encoder beside the decoder"),
    "generate_during_eval": ((False,), "generation in evaluation"),
    "use_cpu": ((False,), "training on the CPU"),
    "no_cuda": ((False,), "training on the CPU"),
    "use_mps_device": ((False,), "training on Apple's GPUs"),
    "use_ipex": ((False,), "training on Intel's cards"),
    "tpu_num_cores": ((), "training on TPUs"),
    "mp_parameters": ((), "SageMaker's model parallelism"),
    "split_batches": ((False,), "per_device_train_batch_size counts the sequences of all GPUs"),
    "torchdynamo": ((), "which compiler runs"),
    "adafactor": ((False,), "another optimizer, under its old name: write optim"),
    "per_gpu_train_batch_size": ((), "sequences a GPU, under its old name: write per_device_train_batch_size"),
    "half_precision_backend": (("auto", "cuda_amp"), "apex' mixed precision"),
    "fp16_backend": (("auto", "cuda_amp"), "apex' mixed precision"),
    "past_index": ((-1,), "hidden states that are carried from batch to batch"),
    **dict.fromkeys(
        (
            "rloo_k num_ppo_epochs num_mini_batches total_episodes local_rollout_forward_batch_size response_length "
            "reward_model_path sft_model_path kl_coef num_sample_generations whiten_rewards cliprange_value vf_coef"
        ).split(),
        ((), "TRL's PPO, or its RLOO before 0.22"),
    ),
}
"""Keys that choose roles, layout, algorithm or engine and are not modelled: (values that choose nothing, what they
choose)."""

UNREAD: dict[str, tuple[Any, ...]] = {
    "ddp_static_graph": (False,),
    "neftune_noise_alpha": (),
    "optim_args": (),
    "torch_empty_cache_steps": (),
    "use_logits_to_keep": (False,),
    "use_num_logits_to_keep": (False,),
    "use_liger_loss": (False,),
}
"""Keys that may change memory a little and have no path: unread, unless their value is null, empty or one of these."""

NO_EFFECT = frozenset(
    # data and scripts
    "dataset dataset_name dataset_config dataset_train_split dataset_test_split dataset_streaming datasets streaming "
    "test_split_size ignore_bias_buffers dataset_text_field dataset_kwargs dataset_num_proc chat_template_path "
    "chat_template_kwargs eos_token pad_token truncation_mode shuffle_dataset eval_packing trust_remote_code "
    "model_revision remove_unused_columns label_names data_seed seed dataset_batch_size num_of_sequences "
    "chars_per_token label_pad_token_id padding_value tools base_model_attribute_name "
    # which tokens count is an interval of the forecast, whatever these say
    "completion_only_loss assistant_only_loss "
    # optimisation
    "learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps warmup_ratio weight_decay adam_beta1 adam_beta2 "
    "adam_epsilon max_grad_norm num_train_epochs max_steps average_tokens_across_devices disable_dropout tf32 "
    "router_aux_loss_coef lora_alpha lora_task_type use_rslora full_determinism torch_compile_backend "
    "torch_compile_mode "
    # preference and reward losses
    "loss_weights ld_alpha f_divergence_type f_alpha_divergence_coef label_smoothing use_weighting discopop_tau "
    "sync_ref_model ref_model_mixup_alpha ref_model_sync_steps rpo_alpha desirable_weight undesirable_weight "
    "center_rewards_coefficient "
    # sampling and group-relative losses
    "bf16_full_eval fp16_full_eval "  # outside of training only
    "temperature top_p top_k min_p repetition_penalty generation_kwargs epsilon epsilon_high delta scale_rewards "
    "sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg "
    "importance_sampling_level reward_weights multi_objective_aggregation mask_truncated_completions "
    "top_entropy_quantile entropy_coef use_adaptive_entropy entropy_coef_min entropy_coef_max entropy_coef_delta "
    "entropy_target max_tool_calling_iterations off_policy_mask_threshold use_bias_correction_kl num_generations_eval "
    "vllm_importance_sampling_mode vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min "
    "vllm_importance_sampling_cap transformers_continuous_batching_config vllm_server_base_url vllm_server_host "
    "vllm_server_port vllm_server_timeout vllm_group_port vllm_structured_outputs_regex vllm_guided_decoding_regex "
    "vllm_enable_prefix_caching normalize_advantages normalize_advantage normalize_reward reward_clip_range "
    "token_level_kl missing_eos_penalty stop_token stop_token_id cliprange exp_name "
    # logging, evaluation, saving, the hub
    "output_dir run_name project report_to logging_dir logging_strategy logging_steps logging_first_step "
    "logging_nan_inf_filter log_level log_level_replica log_on_each_node log_completions log_multimodal "
    "log_unique_prompts log_completions_hub_repo num_completions_to_print include_num_input_tokens_seen "
    "include_tokens_per_second disable_tqdm trackio_space_id trackio_bucket_id trackio_static_space_id eval_steps "
    "eval_delay eval_on_start eval_accumulation_steps eval_do_concat_batches eval_use_gather_object "
    "prediction_loss_only include_for_metrics batch_eval_metrics save_strategy save_steps save_total_limit "
    "save_only_model save_on_each_node save_safetensors enable_jit_checkpoint load_best_model_at_end "
    "metric_for_best_model greater_is_better resume_from_checkpoint restore_callback_states_from_checkpoint "
    "overwrite_output_dir push_to_hub hub_model_id hub_token hub_strategy hub_private_repo hub_always_push "
    "hub_revision do_train do_predict wandb_log_unique_prompts include_inputs_for_metrics push_to_hub_model_id "
    "push_to_hub_organization push_to_hub_token use_legacy_prediction_loop "
    # data loading and processes
    "dataloader_drop_last dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers "
    "dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order group_by_length "
    "length_column_name train_sampling_strategy ignore_data_skip ddp_find_unused_parameters ddp_broadcast_buffers "
    "ddp_backend ddp_timeout local_rank skip_memory_metrics debug use_cache ray_scope dispatch_batches "
    "per_gpu_eval_batch_size fp16_opt_level jit_mode_eval tpu_metrics_debug".split()
)
"""Keys that do not change the memory of a training step."""


def known_key(key: str) -> bool:
    """Whether TRL has, or had, this key."""
    return any(key in table for table in (KEYS, RULED, OLD, CHOOSES, UNREAD, NO_EFFECT))
