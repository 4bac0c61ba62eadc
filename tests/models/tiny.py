"""A shallow and narrow model of every type: the smallest of the catalogue, made small by the names of its fields.

What a model is stays: its kinds of layers, biases, norms, ties. Sizes differ from one another, so that a tensor can be
told by its bytes, and a window is shorter than a sequence.
"""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import cycle, islice
from typing import Any

from vramcast.catalog.models import ModelRow, model_config, model_names
from vramcast.models.arch import has_head
from vramcast.models.types import family_of

Config = dict[str, Any]
LAYERS, SEQ_LEN, WINDOW = 4, 256, 96
_SIZES = {
    128: """hidden_size d_model n_embd embed_dim projection_dim projector_output_dim out_hidden_size mm_hidden_size
        text_hidden_size word_embed_proj_dim projector_hidden_size vision_output_dim""",
    320: """intermediate_size n_inner ffn_dim block_ff_dim dense_intermediate_size intermediate_size_mlp
        projector_input_dim vt_intermediate_size""",
    80: "moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size",
    1000: "vocab_size vocab_size_per_layer_input",
    4: """num_attention_heads n_head n_heads num_heads attention_heads swa_num_attention_heads linear_num_value_heads
        vt_num_attention_heads linear_num_heads conf_num_attention_heads""",
    2: """num_key_value_heads swa_num_key_value_heads linear_num_key_heads depth vt_num_hidden_layers num_global_layers
        conf_num_hidden_layers num_experts_per_tok num_experts_per_token experts_per_token moe_topk moe_k o_groups
        num_kv_shared_layers conf_reduction_factor interleave_moe_layer_step n_heads_in_group""",
    1: "first_k_dense_replace num_dense_layers topk_group moe_layer_start_index num_hash_layers",
    8: """index_n_heads num_experts num_local_experts n_routed_experts moe_num_experts mamba_n_heads mamba_num_heads""",
    32: """head_dim swa_head_dim swa_v_head_dim linear_key_head_dim linear_value_head_dim linear_head_dim mamba_d_head
        mamba_head_dim index_head_dim qk_nope_head_dim index_topk global_head_dim""",
    16: "qk_rope_head_dim rotary_dim hidden_size_per_layer_input state_size mamba_d_state ssm_state_size laurel_rank",
    24: "v_head_dim time_step_rank mamba_dt_rank router_hidden_size",
    48: "q_lora_rank o_lora_rank qk_head_dim",
    40: "kv_lora_rank",
    256: "mamba_d_ssm",
    WINDOW: "sliding_window sliding_window_size attention_chunk_size window_size",
    64: "chunk_size mamba_chunk_size image_size",
}  # fmt: skip
_SMALL = {name: size for size, names in _SIZES.items() for name in names.split()}
_DROPPED = re.compile(
    r"quantization_config|auto_map|rope_scaling|transformers_version|.*_token_id|audio_config|num_mtp_modules"
    r"|num_nextn_predict_layers|mtp_.*|kv_channels"
)
"""fields that say nothing about a training step of a small model"""
_DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_OWN: dict[str, Config] = {
    "falcon_h1": {"mamba_n_heads": 8, "mamba_chunk_size": 64},  # shorter than a sequence
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "jamba": {"attn_layer_period": 4, "attn_layer_offset": 2},
    "bamba": {"attn_layer_indices": [1, 3]},
    "mamba2": {"num_heads": 8, "n_groups": 2},
    "nemotron_h": {"n_groups": 2},
    "qwen2": {"use_sliding_window": False},
    "qwen": {"kv_channels": 32},
    "mimo_v2_flash": {
        "swa_num_key_value_heads": 4,
        "swa_v_head_dim": 24,
        "head_dim": 48,
        "swa_head_dim": 48,
        "hybrid_layer_pattern": [0, 1, 1, 1],
        "moe_layer_freq": [0, 1, 1, 1],  # what its class makes of no layer_types
    },
    "deepseek_v32": {"n_group": 2},
    "deepseek_v4": {"num_key_value_heads": 1},
    "zaya": {"num_experts_per_tok": 1},
    "gemma4": {"text_config": {"global_head_dim": 64, "vocab_size_per_layer_input": 1000}, "audio_config": None},
    "gemma3n": {"text_config": {"intermediate_size": [320] * LAYERS}},
    "minimax_m3_vl": {
        "text_config": {
            "sparse_attention_config": {
                "sparse_attention_freq": [0, 1, 0, 1],
                "sparse_disable_index_value": [0, 1, 0, 1],
                "sparse_index_dim": 32,
            }
        }
    },
    "mllama": {
        "vision_config": {"vision_output_dim": 768, "intermediate_layers_indices": [0, 0, 1, 1, 1]},
        "text_config": {"cross_attention_layers": [1]},
    },
    "llama4": {"vision_config": {"intermediate_size": 512}},
    "llava": {
        "text_config": {
            "hidden_size": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "intermediate_size": 320,
        }
    },
}
"""of a type: what the names of its fields do not say"""
MODES = {
    f"{tuning}{', recompute' * again}": {"tuning": tuning, "recompute": "full" if again else "none", **more}
    for tuning, more in (("full", {}), ("lora", {"lora.targets": ["all-linear"], "lora.rank": 8, "lora.dropout": 0.05}))
    for again in (False, True)
}
_MAMBA = {"lora.targets": ["in_proj"]}
_ATTENTION = {"lora.targets": ["q_proj", "k_proj", "v_proj", "o_proj"]}
LORA: dict[str, Config] = {
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba", "nemotron_h"), _MAMBA),
    **dict.fromkeys(("llama4", "phimoe"), _ATTENTION),
    "falcon_h1": {"lora.targets": ["q_proj", "v_proj", "in_proj", "gate_proj", "down_proj"]},
}
"""targets of types whose linear layers PEFT does not adapt all: a state's `out_proj` goes into its kernel,
and these two routers return tuples"""
SCANNED = ("mamba", "falcon_mamba", "jamba")
"""types whose class, without its kernels, goes token by token: their sequences are shorter, to be traced in seconds"""
JOB = {
    "gpu": "a100-sxm-80gb", "framework": "transformers==5.24.0", "algorithm": "sft", "micro_batch": 2,
    "seq_len": SEQ_LEN, "labelled_frac": 1.0, "accumulation": 1, "weights_dtype": "bf16", "compute_dtype": "bf16",
    "autocast": False, "loss": "full",
}  # fmt: skip


def job(model_type: str, mode: str) -> Config:
    """What a job of a mode says. Parameters of experts that are one tensor are adapted without dropout only."""
    found = JOB | MODES[mode] | ({"seq_len": SEQ_LEN // 8} if model_type in SCANNED else {})
    if "lora.rank" in MODES[mode]:
        experts = re.search(r'"[a-z_]*(?:experts|moe)[a-z_]*":', json.dumps(smallest()[model_type].config))
        found |= LORA.get(model_type, {}) | ({"lora.dropout": 0.0} if experts else {})
    return found


@cache
def smallest() -> dict[str, ModelRow]:
    """Model type → its smallest model of the catalogue that generates."""
    found: dict[str, ModelRow] = {}
    for name in model_names():
        row = model_config(name)
        kind = row.config["model_type"]
        known = found.get(kind)
        if kind in family_of() and has_head(row.config, row.where) and (
            known is None or (row.params or 0) < (known.params or 0)
        ):  # fmt: skip
            found[kind] = row
    return found


def tiny(model_type: str) -> Config:
    """The config.json of the small model of a type."""
    return _over(_small(smallest()[model_type].config), _OWN.get(model_type, {}))


def _over(config: Config, more: Config) -> Config:
    nested = {name: _over(config.get(name, {}), value) for name, value in more.items() if isinstance(value, dict)}
    return config | more | nested


def _small(config: Config, section: str = "") -> Config:
    found: Config = {}
    depth = next((config[name] for name in _DEPTHS if isinstance(config.get(name), int)), 0)
    sees = section.startswith(("vision", "audio"))
    layers = 2 if sees else LAYERS
    for name, value in config.items():
        if isinstance(value, dict):
            if not _DROPPED.fullmatch(name) or (name == "rope_scaling" and "mrope_section" in value):
                found[name] = _rope(value) if name.startswith("rope") else _small(value, name)
        elif name in _DEPTHS:
            found[name] = layers
        elif name in _SMALL and isinstance(value, int) and value and not isinstance(value, bool):
            found[name] = _SMALL[name]
        elif not _DROPPED.fullmatch(name):
            found[name] = value
    heads = config.get("num_attention_heads")
    if "num_key_value_heads" in found and heads == config["num_key_value_heads"]:
        found["num_key_value_heads"] = _SMALL["num_attention_heads"]
    if "vocab_size" in found and section != "vision_config":
        found |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return found | _in_step(config, depth, layers)


def _in_step(config: Config, depth: int, layers: int) -> Config:
    """What is said layer by layer: every kind of layer in turn, in the order in which they first come."""
    names = [name for name, value in config.items()
             if isinstance(value, (list, str)) and depth > layers and len(value) == depth]  # fmt: skip
    kinds = {str(turn): turn for turn in zip(*(config[name] for name in names), strict=True)}
    turns = list(islice(cycle(kinds.values()), max(layers, len(kinds)))) if names else []
    found: Config = {}
    for index, name in enumerate(names):
        column = [_small(turn[index]) if isinstance(turn[index], dict) else turn[index] for turn in turns]
        found[name] = "".join(column) if isinstance(config[name], str) else column
    if len(turns) > layers:
        found |= {name: len(turns) for name in _DEPTHS if name in config}
    return found


def _rope(value: Config) -> Config:
    """Positions without a scale; sections of a head in proportion."""
    if any(isinstance(one, dict) for one in value.values()):
        return {name: _rope(one) if isinstance(one, dict) else one for name, one in value.items()}
    found = {name: value[name] for name in ("rope_theta", "partial_rotary_factor") if name in value}
    if "mrope_section" in value:
        whole = sum(value["mrope_section"])
        first = 16 * value["mrope_section"][0] // whole
        found |= {"mrope_section": [first, (16 - first) // 2, 16 - first - (16 - first) // 2]}
    return found | {"rope_type": "default"}
