"""Bytes of a model's weights, packed or not: in all, by module, by block and by kind of tensor, on one rank.

A column-parallel layer is cut along its outputs and a row-parallel one along its inputs; packed words, scales and zero
points are cut with it, since their units are counted on the rank's own outputs and inputs (`quant/format.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from msgspec import Struct

from vramcast.catalog.dtypes import DTYPES
from vramcast.models.layout import MODULES, Axis, Blocks, Layout, Weight
from vramcast.models.place import Cut, held, is_expert, on_stage, share, stages
from vramcast.models.quant.format import ENGINES, Format, Holder
from vramcast.models.quant.names import is_turned, sides
from vramcast.models.quant.quantisation import Padding, Quantisation
from vramcast.num import Size, total, up_to

_ALONE = Cut()


class StoredBlock(Struct, frozen=True, kw_only=True):
    """Equal blocks of a model."""

    name: str
    prefix: str
    count: int
    bytes: Size
    """of all of them"""


class Stored(Struct, frozen=True, kw_only=True):
    """The weights that one rank holds."""

    bytes: Size
    modules: dict[str, Size]
    """module → bytes"""
    blocks: tuple[StoredBlock, ...]
    parts: dict[str, Size]
    """packed, scales, zeros …, or the dtype of what is not packed → bytes"""
    elements: dict[str, Size]
    """module → elements that the rank holds, padding of the vocabulary included"""
    formats: dict[str, tuple[str, ...]]
    """module → the formats of its tensors, a dtype for those that are not packed"""

    def bits(self, module: str = "") -> Fraction:
        """Bits for each weight of a module, or of all, scales included."""
        size = int(self.modules[module]) if module else int(self.bytes)
        elements = int(self.elements[module]) if module else sum(map(int, self.elements.values()))
        return Fraction(8 * size, elements)


class Tensor(Struct, frozen=True, kw_only=True):
    """A parameter as it is stored: `count` equal ones, one for each layer of their block."""

    name: str
    """of the first of them"""
    module: str
    count: int
    label: str
    """its format, or its dtype"""
    elements: Size
    """of one of them"""
    parts: dict[str, Size]
    """bytes of one of them"""

    @property
    def bytes(self) -> Size:
        """Of one of them."""
        return total(self.parts.values())


def stored(
    layout: Layout,
    quantisation: Quantisation | None,
    dtype: str,
    cut: Cut = _ALONE,
    stage: int = 0,
    holder: Holder = "checkpoint",
) -> Stored:
    """What a rank of a pipeline stage holds.

    Args:
        dtype: of what is not packed (`bf16`, `fp16`, `fp32`).
        cut: tensor, expert and pipeline parallel ranks, and what the vocabulary is padded to (vLLM: 64).
        holder: whose layout of tensors; see `quant/formats.py`.
    """
    modules: dict[str, Size] = {}
    parts: dict[str, Size] = {}
    elements: dict[str, Size] = {}
    labels: dict[str, dict[str, None]] = {}
    blocks: list[StoredBlock] = []
    for block, layers in _on_stage(layout, cut, stage):
        size: Size = 0
        for tensor in tensors(block, quantisation, dtype, cut, holder, layers):
            size = size + tensor.count * tensor.bytes
            _add(modules, tensor.module, tensor.count * tensor.bytes)
            _add(elements, tensor.module, tensor.count * tensor.elements)
            labels.setdefault(tensor.module, {})[tensor.label] = None
            for name, part in tensor.parts.items():
                _add(parts, name, tensor.count * part)
        blocks.append(StoredBlock(name=block.name, prefix=block.prefix, count=len(layers) or 1, bytes=size))
    return Stored(
        bytes=total(modules.values()),
        modules={name: modules[name] for name in MODULES if name in modules},
        blocks=tuple(blocks),
        parts=parts,
        elements=elements,
        formats={module: tuple(found) for module, found in labels.items()},
    )


def _add(sums: dict[str, Size], name: str, size: Size) -> None:
    sums[name] = sums[name] + size if name in sums else size


def tensors(
    block: Blocks,
    quantisation: Quantisation | None,
    dtype: str,
    cut: Cut = _ALONE,
    holder: Holder = "checkpoint",
    layers: tuple[int, ...] | None = None,
) -> list[Tensor]:
    """Every tensor of a block on a rank. Layers of a block that a list treats differently are told apart.

    `layers`: those of the block that the rank holds; all, if not given.
    """
    found: list[Tensor] = []
    held_layers = block.layers if layers is None else layers
    lead = [".".join(part for part in (block.prefix, str(layer)) if part) for layer in held_layers or ("",)]
    for weight in block.weights:
        module = block.module(weight)
        formats: dict[Format | None, list[str]] = {}
        for one in lead:
            name = f"{one}.{weight.name}" if one else weight.name
            form = quantisation.format_of(name, weight, module) if quantisation else None
            formats.setdefault(form, []).append(name)
        padding = quantisation.padded_to(holder) if quantisation and is_expert(weight) else None
        for form, names in formats.items():
            found.append(
                Tensor(
                    name=names[0],
                    module=module,
                    count=len(names),
                    label=form.name if form else dtype,
                    elements=held(weight, cut),
                    parts=packed(names[0], weight, form, cut, holder, padding)
                    if form
                    else {dtype: DTYPES[dtype].size(_elements(weight, cut, padding))},
                )
            )
    return found


def _on_stage(layout: Layout, cut: Cut, stage: int) -> Iterator[tuple[Blocks, tuple[int, ...]]]:
    """(blocks, their layers that a pipeline stage holds)."""
    own = stages(len(layout.layers()), cut.pp, cut.rule)[stage]
    for block, _ in on_stage(layout, cut, stage):
        decoder = block.name.startswith("decoder")
        yield block, tuple(layer for layer in block.layers if layer in own) if decoder else block.layers


_FUSED = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
    "q_a_proj": "fused_qkv_a_proj",
    "kv_a_proj_with_mqa": "fused_qkv_a_proj",
}
"""layers that an engine keeps as one: vLLM 0.11, `packed_modules_mapping` of its models; SGLang the same"""


def allocations(
    layout: Layout,
    quantisation: Quantisation | None,
    dtype: str,
    cut: Cut = _ALONE,
    stage: int = 0,
    holder: Holder = "checkpoint",
) -> list[Size]:
    """Bytes of every tensor that lies in memory, in the order of the model: what an allocator rounds, each by itself.

    An engine keeps query, key and value as one tensor, and gate and up. Other holders keep what the classes have.
    """
    found: list[Size] = []
    for block, layers in _on_stage(layout, cut, stage):
        together: dict[tuple[str, ...], tuple[int, Size]] = {}
        for tensor in tensors(block, quantisation, dtype, cut, holder, layers):
            for part, size in tensor.parts.items():
                key = (_fused(tensor.name) if holder in ENGINES else tensor.name, part)
                known = together.get(key)
                together[key] = (tensor.count, known[1] + size if known else size)
        for layer in range(len(layers) or 1):
            found += [size for count, size in together.values() if layer < count]
    return found


def _fused(name: str) -> str:
    """The tensor that an engine keeps a parameter in."""
    owner, _, kind = name.rpartition(".")
    parent, _, leaf = owner.rpartition(".")
    return f"{parent}.{_FUSED.get(leaf, leaf)}.{kind}"


def _elements(weight: Weight, cut: Cut, padding: Padding | None) -> Size:
    """Elements of a tensor that is not packed."""
    if padding is None:
        return held(weight, cut)
    elements: Size = 1
    for one in weight.axes:
        elements = elements * _local(one, cut, True, padding)
    return elements


WHOLE = Cut()


def packed(
    name: str,
    weight: Weight,
    form: Format,
    cut: Cut = WHOLE,
    holder: Holder = "checkpoint",
    padding: Padding | None = None,
) -> dict[str, Size]:
    """Bytes of a packed matrix, or of the matrices of all experts that a rank has."""
    expert = is_expert(weight)
    outputs, inputs = sides(name, weight)
    count: Size = _local(weight.axes[0], cut, expert, None) if expert else 1
    columns, all_columns = _local(inputs, cut, expert, padding), inputs.size
    # Files hold gate and up of an expert apart, unless the class itself has them as one matrix, inputs first.
    apart = expert and holder == "checkpoint" and not is_turned(name, weight)
    rows = [Axis((piece,)) for piece in outputs.pieces] if apart else [outputs]
    found: dict[str, Size] = {}
    for axis in rows:
        for part, size in form.parts(_local(axis, cut, expert, padding), columns, count, holder, all_columns).items():
            _add(found, part, size)
    return found


def _local(axis: Axis, cut: Cut, expert: bool, padding: Padding | None) -> Size:
    """A rank's share of a dimension, padded where its holder pads it."""
    sizes: list[Size] = []
    for piece in axis.pieces:
        size = share(piece, cut, expert)
        if padding is not None and piece.kind != "expert":
            size = up_to(size, padding.whole if piece.kind == "" else padding.cut)
        sizes.append(size)
    return total(sizes)
