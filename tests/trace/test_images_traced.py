"""Towers beside a trace of the real classes with pixels: every instant within 1.5 %, or 4 %."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.random_jobs import said
from tests.trace.test_against_formulas import PRECISIONS, RECOMPUTES, TUNINGS, Here, _key, _tensors

from vramcast.estimate import forecast
from vramcast.trace import trace

pytestmark = [pytest.mark.trace, pytest.mark.filterwarnings("ignore")]
LIMIT = {"qwen3_vl": 0.04}
"""where not 0.015: mergers of inner layers are counted until backward is through with all of them"""
TEXT = {
    "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 768, "vocab_size": 8192, "max_position_embeddings": 4096,
}  # fmt: skip
SQUARE = {
    "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 256, "image_size": 56,
    "patch_size": 14, "num_channels": 3,
}  # fmt: skip
QWEN = {
    "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3, "num_heads": 2, "depth": 2,
}  # fmt: skip
AXES = {"rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]}, "tie_word_embeddings": False}
MODELS: dict[str, dict[str, Any]] = {
    "gemma3": {
        "architectures": ["Gemma3ForConditionalGeneration"], "mm_tokens_per_image": 4,
        "text_config": {
            "model_type": "gemma3_text", **TEXT, "head_dim": 64, "query_pre_attn_scalar": 64, "sliding_window": 128,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {kind: {"rope_type": "default", "rope_theta": 10000.0}
                                for kind in ("sliding_attention", "full_attention")},
        },
        "vision_config": {"model_type": "siglip_vision_model", **SQUARE, "vision_use_head": False},
    },
    "llava": {
        "architectures": ["LlavaForConditionalGeneration"], "image_token_index": 8191, "tie_word_embeddings": False,
        "text_config": {"model_type": "llama", **TEXT, "tie_word_embeddings": False},
        "vision_config": {"model_type": "clip_vision_model", **SQUARE, "projection_dim": 64},
    },
    "qwen2_vl": {
        "architectures": ["Qwen2VLForConditionalGeneration"], **TEXT, **AXES,
        "vision_config": {"model_type": "qwen2_vl", **QWEN, "embed_dim": 128, "hidden_size": 256, "mlp_ratio": 4},
    },
    "qwen2_5_vl": {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"], **TEXT, **AXES,
        "vision_config": {
            "model_type": "qwen2_5_vl", **QWEN, "hidden_size": 128, "out_hidden_size": 256, "intermediate_size": 256,
            "window_size": 56, "fullatt_block_indexes": [1],
        },
    },
    "qwen3_vl": {
        "architectures": ["Qwen3VLForConditionalGeneration"], "tie_word_embeddings": False,
        "text_config": {
            "model_type": "qwen3_vl_text", **TEXT, "head_dim": 64, "num_hidden_layers": 4,
            "rope_scaling": {"rope_type": "default", "mrope_section": [12, 10, 10], "mrope_interleaved": True},
        },
        "vision_config": {
            "model_type": "qwen3_vl", **QWEN, "patch_size": 16, "depth": 3, "hidden_size": 128, "out_hidden_size": 256,
            "intermediate_size": 256, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1, 2],
        },
    },
}  # fmt: skip
CASES = [(model, tuning, recompute) for model in MODELS for tuning, recompute in (("full", "none"), ("lora", "plain"))]


@pytest.mark.parametrize(("model", "tuning", "recompute"), CASES)
def test_every_instant(model: str, tuning: str, recompute: str, tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="not traced (extra `trace`)")
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": model, **MODELS[model]}))
    job = {
        "model": str(config), "gpu": "a100-sxm-80gb", "micro_batch": 2, "seq_len": 512, "image_tokens": 256,
        "labelled_frac": 1.0, "accumulation": 1, "framework": "transformers==5.24.0", "loss": "full",
        **TUNINGS[tuning], **PRECISIONS["bf16"], **RECOMPUTES[recompute],
    }  # fmt: skip
    known = {_key(phase): phase for phase in forecast(said(job), cards=False).groups[0].phases}
    traced = [phase for phase in trace(said(job), Here()).judged.phases if _key(phase) in known]
    off = {_key(phase): _tensors(known[_key(phase)]) / _tensors(phase) - 1 for phase in traced}
    assert len(off) >= 13
    assert {key: round(share, 4) for key, share in off.items() if abs(share) > LIMIT.get(model, 0.015)} == {}
