"""What an engine keeps beside the weights while it loads them: rotary tables, MLA's absorbed projections, workspaces.

Each is a named part with its source; none of them is in a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, cast

from vramcast.models.layout import Layout
from vramcast.models.place import Cut, on_stage, share
from vramcast.models.quant.format import Holder
from vramcast.models.quant.quantisation import Quantisation
from vramcast.num import Size, total

_NO_TABLE = frozenset(
    """gpt2 gpt_bigcode gpt_neo opt mpt bloom mamba mamba2 falcon_mamba jamba nemotron_h granitemoehybrid
    baichuan""".split()
)
"""types without rotary positions, or whose configs may have none"""
_STRETCHED = ("yarn", "deepseek_yarn", "linear", "dynamic", "ntk")
"""kinds of scaling whose table has `factor` times the positions that the model was trained on"""
_MULTIMODAL = 4
"""a table of multimodal positions has four times the positions"""


def extras(
    config: dict[str, Any],
    layout: Layout,
    quantisation: Quantisation | None,
    dtype_bytes: int,
    cut: Cut,
    stage: int = 0,
    holder: Holder = "vllm",
    *,
    copies: bool = True,
    multiprocessors: int | None = None,
) -> dict[str, Size]:
    """Bytes by part for an engine; nothing for other holders.

    Args:
        copies: the engine copies MLA's `kv_b_proj` also where it is not packed, as newer ones do; in vLLM 0.11 the
            absorbed halves of an unpacked one are views of it.
        multiprocessors: of the GPU; Marlin's workspaces are left out without it.
    """
    if holder not in ("vllm", "sglang"):
        return {}
    found = {
        "rope_tables": rope_tables(config, layout.model_type, dtype_bytes if holder == "vllm" else 4),
        "absorbed": absorbed(layout, quantisation, dtype_bytes, cut, stage, copies=copies),
        "workspaces": workspaces(layout, quantisation, cut, stage, multiprocessors or 0),
    }
    return {name: size for name, size in found.items() if size}


def rope_tables(config: Mapping[str, Any], model_type: str, element_bytes: int) -> Size:
    """Cosines and sines for every position: one table for each distinct rope of the model, positions × rotary width.

    vLLM 0.11 `layers/rotary_embedding/`: the model's dtype, `get_rope` shares equal tables. SGLang keeps fp32 on CUDA.
    """
    nested = config.get("text_config")
    text = cast("Mapping[str, Any]", nested) if isinstance(nested, Mapping) else config
    if model_type in _NO_TABLE or not (_number(text, "max_position_embeddings") or _number(text, "max_seq_len")):
        return 0
    width = _rotary_width(text)
    return total(_positions(text, scaling) * width * element_bytes for scaling in _ropes(text))


def _ropes(text: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The scaling of each distinct rope."""
    nested = text.get("rope_parameters")
    if isinstance(nested, Mapping):
        by_kind = [cast("Mapping[str, Any]", one) for one in cast("Mapping[str, Any]", nested).values()
                   if isinstance(one, Mapping)]  # fmt: skip
        if by_kind:
            return [one for index, one in enumerate(by_kind) if one not in by_kind[:index]]
        return [cast("Mapping[str, Any]", nested)]
    scaling = text.get("rope_scaling")
    own: Mapping[str, Any] = cast("Mapping[str, Any]", scaling) if isinstance(scaling, Mapping) else {}
    return [own, {}] if text.get("rope_local_base_freq") else [own]


def _positions(text: Mapping[str, Any], scaling: Mapping[str, Any]) -> Size:
    """Rows of a table."""
    longest = _number(text, "max_position_embeddings") or _number(text, "max_seq_len")
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    trained = _number(scaling, "original_max_position_embeddings") or _number(text, "original_max_position_embeddings")
    if "mrope_section" in scaling:
        return _MULTIMODAL * longest
    if kind in ("longrope", "su"):  # a short table of the trained length, and a long one
        return (trained or longest) + longest
    if kind in _STRETCHED:
        factor = scaling.get("factor") or 1
        base = (trained or longest) if "yarn" in kind else longest
        return _times(base, factor)
    return longest


def _rotary_width(text: Mapping[str, Any]) -> Size:
    if width := _number(text, "qk_rope_head_dim"):
        return width
    heads = _number(text, "num_attention_heads") or _number(text, "n_head") or 1
    head = _number(text, "head_dim") or (_number(text, "hidden_size") or _number(text, "n_embd")) // heads
    if width := _number(text, "rotary_dim"):
        return width
    part = text.get("partial_rotary_factor") or text.get("rotary_pct")
    for scaling in _ropes(text):
        part = part or scaling.get("partial_rotary_factor")
    return _times(head, part or 1)


def _times(size: int, factor: object) -> int:
    """A size times a decimal of a config, rounded down, without floats."""
    return int(size * Fraction(str(factor)))


def _number(section: Mapping[str, Any], name: str) -> int:
    value = section.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def absorbed(
    layout: Layout,
    quantisation: Quantisation | None,
    dtype_bytes: int,
    cut: Cut,
    stage: int = 0,
    *,
    copies: bool = True,
) -> Size:
    """MLA's key and value up-projections by heads, in the model's dtype, for multiplying the latent cache.

    vLLM 0.11 v1/attention/backends/mla/common.py: halves of `kv_b_proj`, dequantised if it is packed, else views of it;
    vLLM 0.33 attention/mla_attention.py: always copies.
    """
    found: list[Size] = []
    for block, count in on_stage(layout, cut, stage):
        for (name, weight), module in zip(block.names(), map(block.module, block.weights), strict=False):
            if not weight.name.endswith("kv_b_proj.weight"):
                continue
            if copies or (quantisation and quantisation.format_of(name, weight, module)):
                heads = total(share(piece, cut, False) for piece in weight.axes[0].pieces)
                found.append(count * heads * weight.axes[1].size * dtype_bytes)
    return total(found)


def workspaces(layout: Layout, quantisation: Quantisation | None, cut: Cut, stage: int, multiprocessors: int) -> Size:
    """Marlin's locks: an int32 for each multiprocessor and fused layer, four for a layer of experts.

    vLLM 0.11 quantization/utils/marlin_utils.py `marlin_make_workspace_new`. Query, key and value are one fused layer,
    gate and up another.
    """
    if quantisation is None or quantisation.kind not in ("gptq", "awq"):
        return 0
    found: list[Size] = []
    fused = ("k_proj.weight", "v_proj.weight", "up_proj.weight")
    for block, count in on_stage(layout, cut, stage):
        for (name, weight), module in zip(block.names(), map(block.module, block.weights), strict=False):
            if quantisation.format_of(name, weight, module) is None or weight.name.endswith(fused):
                continue
            locks = 4 if weight.name.endswith("gate_up_proj") else 0 if weight.name.endswith("experts.down_proj") else 1
            found.append(count * locks * 4 * multiprocessors)
    return total(found)
