"""A model type without a program: sizes and parameter rows, from the table of its tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any

from vramcast.models.adapters.methods import facts
from vramcast.models.arch import Arch, Block, Row
from vramcast.models.build import HEADS, check_head
from vramcast.models.describe import build_layout
from vramcast.models.layout import Blocks, Layout, Piece, Weight
from vramcast.models.program import Dims, no_program

_LINEARS = ("attention", "mlp", "shared_experts")
_LENGTHS = ("max_position_embeddings", "n_positions", "max_sequence_length")


def described_arch(name: str, config: dict[str, Any], source: str) -> Arch:
    """The architecture of a type that only the table of tensors knows. Its block stands for the last layer and has no
    program: it can be traced, and not yet be forecast.

    Raises:
        Refused: an unknown model type, or a class without a language-model head; `source` says which file.
    """
    layout = build_layout(name, config, source)
    check_head(config, source, (*HEADS, "ForConditionalGeneration"))
    layers = layout.layers()
    last = layers[-1] if layers else layout.blocks[-1]
    dims = _dims(layout, last)
    biased = any(weight.name.endswith("bias") and len(weight.shape) == 1 for weight in _linears(last))
    return Arch(
        name=name,
        model_type=layout.model_type,
        dims=dims,
        block=Block(last.name, tuple(_row(last, weight, dims) for weight in last.weights), no_program),
        outer=tuple(_row(one, weight, dims) for one in layout.blocks if not one.layers for weight in one.weights),
        tied=layout.tied,
        dtype=layout.dtype,
        max_len=next((config[field] for field in _LENGTHS if isinstance(config.get(field), int)), 0),
        qkv_bias=biased,
        output_bias=biased,
        qk_norm=False,
        mlp_bias=False,
        shares_keys=dims.kv_heads != dims.heads,
        small_heads=dims.head_dim <= 128,
        default_targets=tuple(facts()["LORA"].targets.get(layout.model_type) or ()),
    )


def kinds(layout: Layout) -> list[Blocks]:
    """The kinds of layers whose parameters differ."""
    return list({id(block): block for block in layout.layers()}.values())


def _dims(layout: Layout, layer: Blocks) -> Dims:
    """Sizes that the tensors show. Where there is no attention, one head of the whole width."""
    embedding = next((block for block in layout.blocks if block.name == "embedding"), layout.blocks[0])
    vocab, hidden = (*embedding.weights[0].shape, 1)[:2]
    attention = list(_pieces(layer, ("attention",)))
    queries = next((piece for piece in attention if piece.kind == "tp" and piece.width > 1), Piece(1, hidden))
    keys = next((piece for piece in attention if piece.kind == "kv"), queries)
    wide = [piece for piece in _pieces(layer, ("mlp", "shared_experts", "routed_experts")) if piece.kind == "tp"]
    return Dims(
        layers=len(layout.layers()),
        hidden=hidden,
        heads=queries.count,
        kv_heads=keys.count,
        head_dim=queries.width,
        ffn=wide[0].count * wide[0].width if wide else hidden,
        vocab=vocab,
    )


def _pieces(block: Blocks, modules: Iterable[str]) -> Iterator[Piece]:
    for weight in block.weights:
        if block.module(weight) in modules:
            yield from (piece for axis in weight.axes for piece in axis.pieces)


def _linears(block: Blocks) -> Iterator[Weight]:
    return (weight for weight in block.weights if block.module(weight) in _LINEARS and "norm" not in weight.name)


def _row(block: Blocks, weight: Weight, dims: Dims) -> Row:
    """A tensor as a matrix: its first dimension, and all others together. A vector has a width only."""
    rows, *rest = weight.shape
    module = block.module(weight)
    if not rest:
        norm = module in _LINEARS and not weight.name.endswith("bias")
        return Row(weight.name, "", _named(rows, dims), "norms" if norm else module)
    known = "mlp" if module == "shared_experts" else module
    return Row(weight.name, _named(rows, dims), _named(prod(rest), dims), known)


def _named(size: int, dims: Dims) -> str:
    """The name of a size, or its digits."""
    names = ("hidden", "ffn", "vocab", "query", "kv", "head_dim")
    return next((name for name in names if dims.size(name) == size), str(size))
