"""Configurations of every method on many models: they count, or are refused (`test_adapters_peft`: as PEFT does)."""

from __future__ import annotations

import itertools
import json
from typing import Any

from tests.models.peft_counts import shrunk

from vramcast.catalog.models import model_config
from vramcast.errors import Refused
from vramcast.models.adapters import count, read_adapter
from vramcast.models.adapters.methods import REFUSED, facts
from vramcast.models.describe import build_layout
from vramcast.models.layout import Layout

_QV = ["q_proj", "v_proj"]
_MLP = ["gate_proj", "up_proj", "down_proj"]
LORA: list[dict[str, Any]] = [
    {"target_modules": "all-linear"},
    {},
    {"r": 4, "target_modules": [*_QV, *_MLP], "use_rslora": True},
    {"target_modules": _QV, "use_dora": True},
    {"target_modules": _QV, "bias": "lora_only", "lora_bias": True},
    {"target_modules": [*_QV, "o_proj"], "bias": "all"},
    {"target_modules": r".*\.self_attn\.(q|k)_proj"},
    {"target_modules": ["q_proj", "lm_head"], "exclude_modules": ["layers.0.self_attn.q_proj"]},
    {"target_modules": _QV, "layers_to_transform": [1], "layers_pattern": "layers"},
    {"target_modules": _QV, "layers_to_transform": 0},
    {"target_modules": [*_QV, "k_proj"], "rank_pattern": {"v_proj": 2, r"layers\.1\.self_attn\.q_proj": 5}},
    {"target_modules": _QV, "modules_to_save": ["lm_head", "embed_tokens"]},
    {"target_modules": _QV, "modules_to_save": ["norm"]},
    {"target_modules": ["q_proj", "embed_tokens"]},
    {"target_modules": ["q_proj", "embed_tokens"], "use_dora": True},
    {"target_modules": ["q_proj", "embed_tokens"], "ensure_weight_tying": True},
    {"target_modules": ["q_proj", "lm_head"], "ensure_weight_tying": True},
    {"target_modules": _QV, "modules_to_save": ["lm_head"], "ensure_weight_tying": True},
    {"target_modules": _QV, "trainable_token_indices": [1, 5, 7]},
    {"target_modules": _QV, "trainable_token_indices": {"embed_tokens": [1, 5], "lm_head": [1, 5]}},
    {"target_modules": _QV, "trainable_token_indices": {"embed_tokens": [1, 5], "lm_head": [2]}},
    {"target_modules": _QV, "init_lora_weights": "mica"},
    {"target_modules": ["q_proj", "embed_tokens"], "init_lora_weights": "mica"},
    {"target_modules": _QV, "kasa_config": {}},
    {"target_modules": _QV, "velora_config": {"num_groups": 8}},
    {"target_modules": _QV, "monteclora_config": {"num_samples": 3}},
    {
        "target_modules": _QV,
        "use_bdlora": {"target_modules_bd_a": ["v_proj"], "target_modules_bd_b": ["q_proj"], "nblocks": 2},
    },
    {"target_modules": _QV, "alora_invocation_tokens": [3]},
    {"target_modules": [], "target_parameters": ["self_attn.q_proj.weight"]},
    {"target_modules": ["nowhere"]},
]
GPT2: list[dict[str, Any]] = [
    {"target_modules": ["c_attn", "c_proj", "wte", "wpe"]},
    {"target_modules": ["c_attn"], "bias": "all"},
    {"target_modules": ["c_attn"], "bias": "lora_only", "lora_bias": True},
    {"target_modules": ["c_attn", "c_fc"], "use_dora": True, "fan_in_fan_out": True},
    {"target_modules": ["c_attn"], "modules_to_save": ["ln_f"]},
    {"target_modules": ["attn.c_proj"], "layers_to_transform": [0], "layers_pattern": "h"},
]
EXPERTS: list[dict[str, Any]] = [
    {"target_modules": ["q_proj"], "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]},
    {"target_modules": [], "target_parameters": ["experts.down_proj"], "rank_pattern": {"experts.down_proj": 3}},
    {"target_modules": ["q_proj", *_MLP]},
    {"target_modules": ["gate", "q_proj"]},
    {"target_modules": ["w1", "w2", "w3", "q_proj"]},
    {"target_modules": ["gate_proj", "q_proj"]},
    {"target_modules": "all-linear"},
    {"target_modules": r".*\.(q_proj|gate_proj|up_proj)"},
    {"target_modules": ["router"]},
    {},
]
PHI3: list[dict[str, Any]] = [{"target_modules": ["qkv_proj", "gate_up_proj"]}, {"target_modules": "all-linear"}, {}]
MAMBA: list[dict[str, Any]] = [
    {"target_modules": ["in_proj", "x_proj"]},
    {"target_modules": ["conv1d"]},
    {"target_modules": "all-linear"},
    {"target_modules": ["in_proj"], "modules_to_save": ["embeddings"]},
    {"target_modules": ["in_proj"], "bias": "all"},
]
_T = {"target_modules": [*_QV, "down_proj"]}
OTHERS: list[dict[str, Any]] = [
    {"peft_type": "ADALORA", "total_step": 10, **_T},
    {"peft_type": "BEFT"},
    {"peft_type": "BEFT", **_T},
    {"peft_type": "BOFT", **_T},
    {"peft_type": "BOFT", "boft_block_size": 0, "boft_block_num": 8, "bias": "boft_only", **_T},
    {"peft_type": "C3A", "block_size": 16, **_T},
    {"peft_type": "C3A", "block_size": 16, "block_size_pattern": {"down_proj": 8}, **_T},
    {"peft_type": "DEFT", **_T},
    {"peft_type": "DEFT", "para": True, "decomposition_method": "qr", **_T},
    {"peft_type": "DELORA", "r": 4, "rank_pattern": {"v_proj": 2}, **_T},
    {"peft_type": "FOURIERFT", "n_frequency": 50, "n_frequency_pattern": {"v_proj": 20}, **_T},
    {"peft_type": "FROD", "progressbar": False, "sparse_rate": 0.05, **_T},
    {"peft_type": "GLORA", "r": 4, **_T},
    {"peft_type": "GLORA", "r": 4, "config_A_B": "vector", "config_C": "vector", "config_D_E": "vector", **_T},
    {"peft_type": "GLORA", "r": 4, "config_A_B": "none", **_T},
    {"peft_type": "GLORA", "r": 4, "config_A_B": "constant", **_T},
    {"peft_type": "GRALORA", "r": 8, "gralora_k": 2, "hybrid_r": 4, **_T},
    {"peft_type": "GRALORA", "r": 8, "gralora_k": 4, **_T},
    {
        "peft_type": "HIRA",
        "r": 8,
        "rank_pattern": {"v_proj": 2},
        "target_modules": ["q_proj", "v_proj", "embed_tokens"],
    },
    {"peft_type": "HRA", **_T},
    {"peft_type": "IA3"},
    {"peft_type": "IA3", "feedforward_modules": ["down_proj"], **_T},
    {"peft_type": "LILY", "r": 8, "stride_A": 2, "num_B": 3, **_T},
    {"peft_type": "LILY", "r": 8, "target_modules": r".*\.(q|v)_proj"},
    {"peft_type": "LN_TUNING"},
    {"peft_type": "LN_TUNING", "target_modules": ["input_layernorm"], "modules_to_save": ["lm_head"]},
    {"peft_type": "LOHA", **_T},
    {"peft_type": "LOKR", **_T},
    {"peft_type": "LOKR", "r": 2, "decompose_both": True, "decompose_factor": 4, **_T},
    {"peft_type": "LOKR", "r": 1, "decompose_both": True, **_T},
    {"peft_type": "MISS", "r": 16, **_T},
    {"peft_type": "MISS", "r": 16, "init_weights": "bat", **_T},
    {"peft_type": "MISS", "r": 16, "init_weights": "mini", "mini_r": 8, **_T},
    {"peft_type": "OFT", **_T},
    {"peft_type": "OFT", "r": 5, "oft_block_size": 0, "target_modules": ["q_proj", "embed_tokens"]},
    {"peft_type": "OFT", "oft_block_size": 24, "block_share": True, **_T},
    {"peft_type": "OSF", **_T},
    {"peft_type": "OSF", "effective_rank": 0.25, "rank_pattern": {"v_proj": 10}, **_T},
    {"peft_type": "PEANUT", "r": 8, "depth": 2, **_T},
    {"peft_type": "POLY", "r": 4, "n_tasks": 3, "n_splits": 2, **_T},
    {"peft_type": "PSOFT", "r": 8, **_T},
    {"peft_type": "PSOFT", "r": 8, "psoft_orth": False, "psoft_mag_a": False, **_T},
    {"peft_type": "PVERA", "r": 16, **_T},
    {"peft_type": "RANDLORA", "r": 7, **_T},
    {"peft_type": "ROAD", "variant": "road_4", "group_size": 16, **_T},
    {"peft_type": "SHIRA", "r": 8, **_T},
    {"peft_type": "SUPERTUNING", **_T},
    {"peft_type": "SUPERTUNING", "sparsity": 0.9, "r": 4, **_T},
    {"peft_type": "TINYLORA", "u": 12, **_T},
    {"peft_type": "TINYLORA", "u": 12, "weight_tying": 0.6, **_T},
    {"peft_type": "TRAINABLE_TOKENS", "token_indices": [0, 3, 4]},
    {"peft_type": "UNILORA", "theta_d_length": 100, **_T},
    {"peft_type": "VBLORA", "num_vectors": 20, "vector_length": 16, **_T},
    {"peft_type": "VERA", "r": 16, **_T},
    {"peft_type": "VERA", "r": 16, "bias": "vera_only", **_T},
    {"peft_type": "WAVEFT", "n_frequency": 60, **_T},
    {"peft_type": "WAVEFT", "n_frequency": 60, "proportional_parameters": True, **_T},
    {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 5},
    {"peft_type": "MULTITASK_PROMPT_TUNING", "num_virtual_tokens": 5, "num_tasks": 3, "num_ranks": 2},
    {"peft_type": "CPT", "cpt_token_ids": [1, 2, 3]},
    {"peft_type": "P_TUNING", "num_virtual_tokens": 5},
    {"peft_type": "P_TUNING", "num_virtual_tokens": 5, "encoder_hidden_size": 24},
    {
        "peft_type": "P_TUNING",
        "num_virtual_tokens": 5,
        "encoder_reparameterization_type": "LSTM",
        "encoder_num_layers": 3,
    },
    {"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 5},
    {"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 5, "prefix_projection": True, "encoder_hidden_size": 48},
    {"peft_type": "CARTRIDGE", "num_virtual_tokens": 5},
    {"peft_type": "CARTRIDGE", "num_virtual_tokens": 5, "num_frozen_tokens": 0},
    {"peft_type": "ADAPTION_PROMPT", "adapter_len": 4, "adapter_layers": 1},
]
CONVOLUTIONS: list[dict[str, Any]] = [
    {"r": 64, "target_modules": ["conv.conv"]},
    {"r": 64, "target_modules": ["conv.conv"], "use_dora": True},
    {"r": 8, "target_modules": ["conv.conv"]},
    {"target_modules": "all-linear"},
    {},
]
PATCHES: list[dict[str, Any]] = [
    {"peft_type": "LORA", "target_modules": "all-linear"},
    {"peft_type": "LORA", "r": 16, "target_modules": ["patch_embed.proj", "patch_embedding", "q_proj"]},
    {"peft_type": "LORA", "r": 16, "use_dora": True, "target_modules": r".*patch_embed(ding|\.proj)"},
    {"peft_type": "LOHA", "target_modules": r".*patch_embed(ding|\.proj)", "use_effective_conv2d": True},
    {"peft_type": "LOHA", "target_modules": r".*patch_embed(ding|\.proj)"},
    {"peft_type": "LOKR", "r": 2, "target_modules": r".*patch_embed(ding|\.proj)", "use_effective_conv2d": True},
    {"peft_type": "LOKR", "r": 2, "target_modules": r".*patch_embed(ding|\.proj)"},
    {"peft_type": "OFT", "target_modules": r".*patch_embed(ding|\.proj)", "oft_block_size": 12},
    {"peft_type": "HRA", "target_modules": r".*patch_embed(ding|\.proj)"},
    {"peft_type": "IA3", "target_modules": r".*patch_embed(ding|\.proj)", "feedforward_modules": []},
    {"peft_type": "HIRA", "target_modules": r".*patch_embed(ding|\.proj)"},
    {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 4},
    {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 4, "task_type": "CAUSAL_LM"},
    {"peft_type": "PREFIX_TUNING", "num_virtual_tokens": 4, "task_type": "CAUSAL_LM"},
]
_PICTURES = ("llava-hf/llava-1.5-7b-hf", "Qwen/Qwen2-VL-2B-Instruct")
_GPT2_NAMES = {"q_proj": "c_attn", "v_proj": "c_fc", "down_proj": "mlp.c_proj", "embed_tokens": "wte",
               "input_layernorm": "ln_1"}  # fmt: skip
_FULL = ("meta-llama/Llama-3.2-3B", "Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B", "openai/gpt-oss-20b")


def _renamed(config: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """A configuration with other module names."""
    text = json.dumps(config)
    for old, new in names.items():
        text = text.replace(f'"{old}"', f'"{new}"')
    return json.loads(text)


def cases() -> list[tuple[str, dict[str, Any], dict[str, Any] | None, str]]:
    """(model, adapter, full configuration, device)."""
    lora = [{"peft_type": "LORA", "task_type": "CAUSAL_LM", **one} for one in LORA]
    plain = ("llama", "qwen3", "qwen2", "gemma2", "gemma3_text", "mistral", "phi")
    found = [(name, one) for name in plain for one in lora]
    found += [(name, {**one, "task_type": "CAUSAL_LM"}) for name in ("llama", "qwen2", "gemma3_text") for one in OTHERS]
    found += [("gpt2", {"peft_type": "LORA", **one}) for one in GPT2]
    found += [("gpt2", {**_renamed(one, _GPT2_NAMES), "task_type": "CAUSAL_LM"}) for one in OTHERS]
    found += [(name, {"peft_type": "LORA", **one})
              for name in ("qwen3_moe", "mixtral", "deepseek_v3", "gpt_oss") for one in EXPERTS]  # fmt: skip
    found += [(name, {"peft_type": "LORA", **one}) for name in ("mamba", "falcon_h1") for one in MAMBA]
    found += [("phi3", {"peft_type": "LORA", **one})
              for one in PHI3]  # fmt: skip
    found += [(name, {"peft_type": method, "num_virtual_tokens": 3, "task_type": "CAUSAL_LM"})
              for name in ("phi3", "phi", "gemma2", "qwen3", "mistral", "mamba", "deepseek_v3")
              for method in ("PREFIX_TUNING", "PROMPT_TUNING")]  # fmt: skip
    found += [(name, {"peft_type": "ADAPTION_PROMPT", "adapter_len": 3, "adapter_layers": 2})
              for name in ("mistral", "qwen3")]  # fmt: skip
    found += [("deepseek_v3", _renamed({"peft_type": "LORA", **one}, {"q_proj": "q_b_proj"})) for one in EXPERTS]
    found += [("lfm2", {"peft_type": "LORA", **one}) for one in CONVOLUTIONS]
    small = [(name, one, None, "cpu") for name, one in found]
    full = [
        (name, {"peft_type": "LORA", **one}, model_config(name).config, "meta")
        for name, one in itertools.product(_FULL, ({"target_modules": "all-linear"}, {"r": 64, "target_modules": _QV}))
    ]
    pictures = [(name, one, model_config(name).config, "meta") for name in _PICTURES for one in PATCHES]
    return [*small, *full, *pictures]


def test_every_method_that_is_counted_is_in_a_case() -> None:
    counted = facts().keys() - REFUSED.keys()
    assert {case[1]["peft_type"] for case in cases()} == counted


def test_every_case_counts_or_says_why_not() -> None:
    layouts: dict[str, Layout] = {}
    counted = 0
    for name, adapter, config, _ in cases():
        if name not in layouts:
            layouts[name] = build_layout(name, config or shrunk(name), name)
        try:
            found = count(layouts[name], read_adapter(adapter, "adapter_config.json"))
        except Refused:
            continue
        counted += 1
        assert found.total - found.base == sum(one.elements for one in found.parameters)
        assert 0 <= found.trainable <= found.total
        assert sum(part.trainable for part in found.parts()) <= found.trainable
    assert counted > 450
