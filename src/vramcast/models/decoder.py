"""The pre-norm decoder: Llama, Mistral, Qwen2, Qwen3, Granite. Grouped-query attention, gated MLP, RMSNorm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramcast.models.arch import Row
from vramcast.models.program import Operators, Tensor
from vramcast.num import Size

if TYPE_CHECKING:
    from vramcast.models.arch import Arch

OUTER = (
    Row("embed_tokens.weight", "vocab", "hidden", "embedding", "vocab"),
    Row("norm.weight", "", "hidden", "norms"),
    Row("lm_head.weight", "vocab", "hidden", "lm_head", "vocab"),
)


def rows(*, qkv_bias: bool, output_bias: bool, qk_norm: bool, mlp_bias: bool) -> tuple[Row, ...]:
    """The parameters of one block, in the order of the Hugging Face classes."""
    projections = (("q_proj", "query", "tp"), ("k_proj", "kv", "kv"), ("v_proj", "kv", "kv"))
    attention = [Row(f"self_attn.{name}.weight", out, "hidden", "attention", cut) for name, out, cut in projections]
    if qkv_bias:
        attention += [Row(f"self_attn.{name}.bias", out, "", "attention", cut) for name, out, cut in projections]
    attention.append(Row("self_attn.o_proj.weight", "hidden", "query", "attention", "tp"))
    if output_bias:
        attention.append(Row("self_attn.o_proj.bias", "hidden", "", "attention"))
    norms = [Row("input_layernorm.weight", "", "hidden", "norms")]
    if qk_norm:
        norms += [Row(f"self_attn.{name}.weight", "", "head_dim", "norms") for name in ("q_norm", "k_norm")]
    norms.append(Row("post_attention_layernorm.weight", "", "hidden", "norms"))
    layers = (("gate_proj", "ffn", "hidden"), ("up_proj", "ffn", "hidden"), ("down_proj", "hidden", "ffn"))
    mlp = [Row(f"mlp.{name}.weight", out, width, "mlp", "tp") for name, out, width in layers]
    if mlp_bias:
        mlp += [Row(f"mlp.{name}.bias", out, "", "mlp", "tp" if out == "ffn" else "") for name, out, _ in layers]
    return (*attention, *mlp, *norms)


def block(ops: Operators, arch: Arch, hidden: Tensor, tables: Tensor) -> Tensor:
    """One decoder layer, in the order of `LlamaDecoderLayer.forward`."""
    ops.scope("input_layernorm")
    normed = ops.rms_norm(hidden)
    attended, weights = _attention(ops, arch, normed, tables)
    ops.drop(normed)
    ops.scope("residual")
    middle = _residual(ops, arch, hidden, attended)
    ops.scope("post_attention_layernorm")
    normed = ops.rms_norm(middle)
    mixed = _mlp(ops, arch, normed)
    ops.drop(normed)
    ops.scope("residual")
    out = _residual(ops, arch, middle, mixed)
    ops.drop(middle, *weights)
    return out


def _residual(ops: Operators, arch: Arch, hidden: Tensor, added: Tensor) -> Tensor:
    """What a part of the block adds; Granite multiplies it first."""
    if not arch.multiplies:
        out = ops.add(hidden, added)
    else:
        product = ops.times(added)
        out = ops.add(hidden, product)
        ops.drop(product)
    ops.drop(added)
    return out


def _attention(ops: Operators, arch: Arch, x: Tensor, tables: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Its output, and the attention weights if the kernel makes any: the block holds them until it is through."""
    dims = arch.dims
    ops.scope("self_attn")
    query = ops.by_head(ops.linear("q_proj", x, dims.hidden, dims.query, arch.qkv_bias))
    if arch.qk_norm:
        query = _head_norm(ops, query, dims.query)
    key = ops.by_head(ops.linear("k_proj", x, dims.hidden, dims.kv, arch.qkv_bias))
    if arch.qk_norm:
        key = _head_norm(ops, key, dims.kv)
    value = ops.by_head(ops.linear("v_proj", x, dims.hidden, dims.kv, arch.qkv_bias))
    turned_query, turned_key = ops.rope(query, tables), ops.rope(key, tables)
    ops.drop(query, key)
    turned_key, value = ops.cache(turned_key, value)
    mixed, weights = ops.attention(turned_query, turned_key, value)
    out = ops.linear("o_proj", mixed, dims.query, dims.hidden, arch.output_bias)
    ops.drop(mixed, turned_query, turned_key, value)
    return out, weights


def _head_norm(ops: Operators, x: Tensor, width: Size) -> Tensor:
    heads = ops.split_heads(x)
    normed = ops.rms_norm(heads)
    merged = ops.merge_heads(normed, width)
    ops.drop(x, heads, normed)
    return merged


def _mlp(ops: Operators, arch: Arch, x: Tensor) -> Tensor:
    dims = arch.dims
    ops.scope("mlp")
    gate = ops.linear("gate_proj", x, dims.hidden, dims.ffn, arch.mlp_bias)
    active = ops.silu(gate)
    ops.drop(gate)
    up = ops.linear("up_proj", x, dims.hidden, dims.ffn, arch.mlp_bias)
    product = ops.multiply(active, up)
    ops.drop(active, up)
    out = ops.linear("down_proj", product, dims.ffn, dims.hidden, arch.mlp_bias)
    ops.drop(product)
    return out
