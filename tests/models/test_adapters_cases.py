"""Configurations of LoRA on many models: they count, or are refused (`test_adapters_peft`: as PEFT does)."""

from __future__ import annotations

import itertools
import json
from typing import Any

from tests.models.peft_counts import shrunk

from vramcast.catalog.models import model_config
from vramcast.errors import Refused
from vramcast.models.adapters import count, read_adapter
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
CONVOLUTIONS: list[dict[str, Any]] = [
    {"r": 64, "target_modules": ["conv.conv"]},
    {"r": 64, "target_modules": ["conv.conv"], "use_dora": True},
    {"r": 8, "target_modules": ["conv.conv"]},
    {"target_modules": "all-linear"},
    {},
]
PATCHES: list[dict[str, Any]] = [
    {"target_modules": "all-linear"},
    {"r": 16, "target_modules": ["patch_embed.proj", "patch_embedding", "q_proj"]},
    {"r": 16, "use_dora": True, "target_modules": r".*patch_embed(ding|\.proj)"},
]
_PICTURES = ("llava-hf/llava-1.5-7b-hf", "Qwen/Qwen2-VL-2B-Instruct")
_FULL = ("meta-llama/Llama-3.2-3B", "Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B", "openai/gpt-oss-20b")


def _renamed(config: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """A configuration with other module names."""
    text = json.dumps(config)
    for old, new in names.items():
        text = text.replace(f'"{old}"', f'"{new}"')
    return json.loads(text)


def cases() -> list[tuple[str, dict[str, Any], dict[str, Any] | None]]:
    """(model, adapter, full configuration)."""
    plain = ("llama", "qwen3", "qwen2", "gemma2", "gemma3_text", "mistral", "phi")
    found = [(name, {"task_type": "CAUSAL_LM", **one}, None) for name in plain for one in LORA]
    found += [("gpt2", one, None) for one in GPT2]
    found += [(name, one, None) for name in ("qwen3_moe", "mixtral", "deepseek_v3", "gpt_oss") for one in EXPERTS]
    found += [(name, one, None) for name in ("mamba", "falcon_h1") for one in MAMBA]
    found += [("phi3", one, None) for one in PHI3]
    found += [("deepseek_v3", _renamed(one, {"q_proj": "q_b_proj"}), None) for one in EXPERTS]
    found += [("lfm2", one, None) for one in CONVOLUTIONS]
    whole = ({"target_modules": "all-linear"}, {"r": 64, "target_modules": _QV})
    found += [(name, one, model_config(name).config) for name, one in itertools.product(_FULL, whole)]
    found += [(name, one, model_config(name).config) for name in _PICTURES for one in PATCHES]
    return [(name, {"peft_type": "LORA", **one}, config) for name, one, config in found]


def test_every_case_counts_or_says_why_not() -> None:
    layouts: dict[str, Layout] = {}
    counted = 0
    for name, adapter, config in cases():
        if name not in layouts:
            layouts[name] = build_layout(name, config or shrunk(name), name)
        try:
            found = count(layouts[name], read_adapter(adapter, "adapter_config.json"))
        except Refused:
            continue
        counted += 1
        assert found.trainable == sum(found.modules.values())
        assert 0 <= found.total - layouts[name].params <= found.trainable <= found.total
    assert counted > 150
