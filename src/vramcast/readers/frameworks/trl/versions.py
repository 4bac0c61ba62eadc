"""Which TRL reads a key: keys that came or went, so that a file's own keys decide the version that is priced.

Read in TRL 0.12 to 1.16, every minor version: the fields of its configs and script arguments. A deprecated key that is
no longer obeyed counts as gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from vramcast.catalog.frameworks import parse_framework

_LAST: dict[str, dict[str, str]] = {
    "": {
        "torch_dtype": "0.26",
        "gradient_checkpointing_use_reentrant": "0.26",
    },
    "sft": {
        "max_seq_length": "0.19",
        "use_liger": "0.17",
        "dataset_batch_size": "0.17",
        "num_of_sequences": "0.17",
        "chars_per_token": "0.17",
    },
    "dpo": {
        "max_target_length": "0.13",
        "is_encoder_decoder": "0.14",
        "use_num_logits_to_keep": "0.15",
        "padding_value": "0.25",
        "use_liger_loss": "0.27",
        **dict.fromkeys(
            "max_prompt_length max_completion_length label_pad_token_id generate_during_eval reference_free "
            "force_use_ref_model use_logits_to_keep base_model_attribute_name ref_model_init_kwargs model_adapter_name "
            "ref_adapter_name rpo_alpha tools".split(),
            "0.28",
        ),
    },
    "kto": dict.fromkeys(
        "max_prompt_length max_completion_length use_liger_loss label_pad_token_id padding_value generate_during_eval "
        "is_encoder_decoder ref_model_init_kwargs base_model_attribute_name".split(),
        "0.25",
    ),
    "grpo": {
        "vllm_device": "0.15",
        "vllm_dtype": "0.15",
        "vllm_max_model_len": "0.15",
        "wandb_log_unique_prompts": "0.26",
        "max_prompt_length": "0.27",
        "use_liger_loss": "0.27",
        "vllm_guided_decoding_regex": "0.27",
    },
    "rloo": {
        "wandb_log_unique_prompts": "0.26",
        "vllm_guided_decoding_regex": "0.27",
        "max_prompt_length": "0.28",
    },
}
"""The last version that obeys a key; "" for every trainer."""

_FIRST: dict[str, dict[str, str]] = {
    "": {
        "use_dora": "0.16",
        "lora_target_parameters": "0.21",
        "dtype": "0.23",
        "bnb_4bit_quant_storage": "0.26",
    },
    "sft": {
        "padding_free": "0.16",
        "max_length": "0.16",
        "activation_offloading": "0.18",
        "completion_only_loss": "0.17",
        "assistant_only_loss": "0.19",
        "chat_template_path": "0.19",
        "packing_strategy": "0.19",
        "loss_type": "0.23",
        "shuffle_dataset": "0.26",
        "router_aux_loss_coef": "1.7",
    },
    "dpo": {
        "padding_free": "0.14",
        "loss_weights": "0.20",
        "activation_offloading": "0.29",
        "router_aux_loss_coef": "1.8",
    },
    "kto": {"precompute_ref_batch_size": "1.8", "activation_offloading": "1.8"},
    "reward": {"activation_offloading": "0.24", "chat_template_path": "0.24"},
    "grpo": {
        "num_iterations": "0.16",
        "cache_implementation": "0.16",
        "loss_type": "0.17",
        "mask_truncated_completions": "0.17",
        "vllm_mode": "0.18",
        "vllm_tensor_parallel_size": "0.18",
        "steps_per_generation": "0.18",
        "generation_batch_size": "0.18",
        "use_transformers_paged": "0.20",
        "importance_sampling_level": "0.20",
        "top_entropy_quantile": "0.20",
        "vllm_model_impl": "0.21",
        "vllm_enable_sleep_mode": "0.23",
        "vllm_importance_sampling_correction": "0.23",
        "cast_lm_head_to_fp32": "0.25",
        "vllm_max_model_length": "0.26",
        "vllm_importance_sampling_mode": "0.26",
        "num_generations_eval": "0.26",
        "vllm_structured_outputs_regex": "0.27",
        "pad_to_multiple_of": "1.0",
        "router_aux_loss_coef": "1.7",
        "use_transformers_continuous_batching": "1.7",
        "entropy_coef": "1.8",
    },
    "rloo": {
        "num_generations": "0.22",
        "vllm_enable_sleep_mode": "0.24",
        "num_generations_eval": "0.26",
        "vllm_max_model_length": "0.27",
        "router_aux_loss_coef": "1.7",
        "use_transformers_continuous_batching": "1.7",
    },
}
"""The first version that reads a key."""

_OF_TRANSFORMERS_4 = frozenset(
    "adafactor evaluation_strategy fp16_backend fp16_opt_level fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap "
    "half_precision_backend include_inputs_for_metrics include_tokens_per_second jit_mode_eval mp_parameters no_cuda "
    "overwrite_output_dir past_index per_gpu_eval_batch_size per_gpu_train_batch_size ray_scope save_safetensors "
    "torchdynamo tpu_num_cores use_legacy_prediction_loop use_mps_device".split()
)
"""Keys of TrainingArguments that transformers 5.0 does not have."""


class Priced(NamedTuple):
    """The version that a file's keys leave, and the text that says why."""

    version: str
    why: str
    contradiction: str = ""


def version_of(keys: Iterable[str], trainer: str, framework: str = "trl") -> Priced:
    """The newest version that obeys every one of `keys` in this trainer's file."""
    known = list(keys)
    newest = parse_framework(framework).version
    if framework == "transformers":
        gone = next((key for key in known if key in _OF_TRANSFORMERS_4), "")
        return Priced("4.57.0", f"{gone} was read up to transformers 4") if gone else Priced(newest, "")
    last = {key: found for key in known if (found := _bound(_LAST, key, trainer))}
    first = {key: found for key in known if (found := _bound(_FIRST, key, trainer))}
    if not last:
        return Priced(newest, "")
    ends = min(last, key=lambda key: _order(last[key]))
    text = f"{ends} was read up to trl {last[ends]}"
    late = [key for key in first if _order(first[key]) > _order(last[ends])]
    if late:
        begins = max(late, key=lambda key: _order(first[key]))
        return Priced(newest, "", f"{text}, and {begins} is read since {first[begins]}: no version reads both")
    return Priced(f"{last[ends]}.0", text)


def _bound(table: dict[str, dict[str, str]], key: str, trainer: str) -> str:
    return table.get(trainer, {}).get(key, "") or table[""].get(key, "")


def _order(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
