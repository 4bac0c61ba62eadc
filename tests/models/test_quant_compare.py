"""A folder beside the forecast: the same bytes, or the groups that differ."""

from __future__ import annotations

from typing import Any

import pytest

from vramcast.catalog.checkpoint import Checkpoint, Entry
from vramcast.catalog.models import model_config
from vramcast.models.describe import build_layout
from vramcast.models.quant.compare import Group, compare, group_of
from vramcast.models.quant.read import read_quantisation

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}


def _folder(tensors: dict[str, int]) -> Checkpoint:
    return Checkpoint("x", {name: Entry("U8", (size,), size, "f") for name, size in tensors.items()})


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("model.layers.3.self_attn.q_proj.weight", "layers.*.self_attn.q_proj"),
        ("model.layers.3.self_attn.q_proj.qweight", "layers.*.self_attn.q_proj"),
        ("model.layers.3.self_attn.q_proj.weight_scale_inv", "layers.*.self_attn.q_proj"),
        ("model.layers.3.self_attn.q_proj.weight.quant_state.bitsandbytes__nf4", "layers.*.self_attn.q_proj"),
        ("model.layers.3.self_attn.q_proj.bias", "layers.*.self_attn.q_proj.bias"),
        ("model.layers.0.mlp.experts.17.up_proj.weight_packed", "layers.*.mlp.experts.gate_up_proj"),
        ("model.layers.0.block_sparse_moe.experts.7.w2.weight", "layers.*.mlp.experts.down_proj"),
        ("model.layers.0.mlp.experts.gate_up_proj_blocks", "layers.*.mlp.experts.gate_up_proj"),
        ("model.layers.0.mlp.experts.gate_up_proj_bias", "layers.*.mlp.experts.gate_up_proj_bias"),
        ("language_model.model.layers.0.mlp.up_proj.weight", "layers.*.mlp.up_proj"),
        ("model.language_model.layers.0.mlp.up_proj.weight", "layers.*.mlp.up_proj"),
        ("model.visual.blocks.1.attn.qkv.weight", "visual.blocks.*.attn.qkv"),
        ("lm_head.weight", "lm_head"),
    ],
)
def test_groups(name: str, group: str) -> None:
    assert group_of(name) == group


def _qwen(section: dict[str, Any] | None = None) -> Any:
    row = model_config("Qwen/Qwen2.5-0.5B")
    config = {**row.config, **({"quantization_config": section} if section else {})}
    return build_layout(row.id, config, row.where), read_quantisation(config, row.where)


def test_a_plain_checkpoint_has_the_same_bytes() -> None:
    layout, _ = _qwen()
    sizes: dict[str, int] = {}
    for name, shape in layout.tensors().items():
        sizes[name] = 2
        for one in shape:
            sizes[name] *= one
    assert compare(layout, None, "bf16", _folder(sizes)) == []
    # A head of its own, as some checkpoints of tied models have, and a norm in fp32.
    changed = {**sizes, "lm_head.weight": 100, "model.norm.weight": 4 * 896}
    assert compare(layout, None, "bf16", _folder(changed)) == [
        Group("norm", 2 * 896, 4 * 896),
        Group("lm_head", 0, 100),
    ]


def test_a_packed_checkpoint() -> None:
    layout, found = _qwen(AWQ)
    sizes: dict[str, int] = {}
    for block in layout.blocks:
        for name, weight in block.names():
            form = found.format_of(name, weight, block.module(weight))
            if form is None:
                sizes[name] = 2 * weight.elements
            else:
                parts = form.parts(*weight.shape)
                for part, suffix in (("packed", "qweight"), ("zeros", "qzeros"), ("scales", "scales")):
                    sizes[f"{name.removesuffix('.weight')}.{suffix}"] = parts[part]
    folder = _folder(sizes)
    assert compare(layout, found, "bf16", folder) == []
    groups = compare(layout, None, "bf16", folder)
    assert len(groups) == 7
    assert groups[0].name == "layers.*.mlp.gate_proj"
    assert groups[0].difference == 24 * (4864 * 896 * (1 - 4) // 2 + 4864 * 7 * 2 + 4864 * 7 // 2)
