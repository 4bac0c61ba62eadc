"""Configurations of frameworks that are not read, told by keys that only they have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SIGNS = {
    "finetuning_type": "LLaMA-Factory",
    "cutoff_len": "LLaMA-Factory",
    "stage": "LLaMA-Factory",
    "lora_target": "LLaMA-Factory",
    "infer_backend": "LLaMA-Factory",
    "export_dir": "LLaMA-Factory",
    "dist_config": "LLaMA-Factory",
    "sample_backend": "LLaMA-Factory",
    "base_model": "axolotl",
    "sequence_len": "axolotl",
    "sample_packing": "axolotl",
    "flash_attention": "axolotl",
    "fsdp_version": "axolotl",
    "actor_train": "ROLL",
    "actor_infer": "ROLL",
    "sft_train": "ROLL",
    "reward_pretrain": "ROLL",
    "rpc_timeout": "ROLL",
    "loss_fn": "NeMo-RL",
    "data_plane": "NeMo-RL",
    "on_policy_distillation": "NeMo-RL",
    "value_loss_fn": "NeMo-RL",
    "checkpointer": "torchtune",
    "metric_logger": "torchtune",
    "train_type": "ms-swift",
    "tuner_type": "ms-swift",
    "rlhf_type": "ms-swift",
    "infer_engine": "ms-swift",
    "actor_num_gpus_per_node": "slime",
    "rollout_num_gpus_per_engine": "slime",
}
_SETS = (
    (frozenset({"policy", "cluster"}), "NeMo-RL"),
    (frozenset({"defaults", "policy"}), "NeMo-RL"),
    (frozenset({"defaults", "cluster"}), "NeMo-RL"),
    (frozenset({"generation", "eval", "data"}), "NeMo-RL"),
    (frozenset({"pretrain", "exp_name"}), "ROLL"),
    (frozenset({"model", "template", "model_class"}), "LLaMA-Factory"),
    (frozenset({"model_name_or_path", "template"}), "LLaMA-Factory"),
    (frozenset({"train_batch_size", "micro_train_batch_size"}), "OpenRLHF"),
    (frozenset({"actor", "rollout", "ds"}), "OpenRLHF"),
)
_COMPONENT = "_component_"


def foreign_format(content: Mapping[str, Any]) -> str:
    """The framework that the keys belong to; empty if no key tells."""
    told = next((_SIGNS[key] for key in content if key in _SIGNS), "")
    told = told or next((name for keys, name in _SETS if keys <= set(content)), "")
    return told or ("torchtune" if any(_is_component(value) for value in content.values()) else "")


def _is_component(value: Any) -> bool:
    return isinstance(value, dict) and _COMPONENT in value
