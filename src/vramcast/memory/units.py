"""Parameters as the ranks of a layout hold them: whole, cut by FSDP, and gathered unit by unit."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from vramcast.catalog.dtypes import BYTES
from vramcast.memory.packing import Packing
from vramcast.memory.seat import Seat
from vramcast.models.arch import Row
from vramcast.num import Size, let, shard, total


def parameters(seat: Seat) -> Size:
    """Parameters of the base model."""
    return seat.once("parameters", lambda: let("params", root_parameters(seat) + seat.arch.dims.layers * _block(seat)))


def root_parameters(seat: Seat) -> Size:
    """Parameters outside the blocks: embedding, final norm, head (once if tied)."""
    arch = seat.arch

    def count() -> Size:
        rows = [row for row in arch.outer if not (arch.tied and row.module == "lm_head")]
        return total(let(row.name.removesuffix(".weight"), row.elements(arch.dims)) for row in rows)

    return seat.once("root parameters", count)


def _block(seat: Seat) -> Size:
    rows, dims = seat.arch.block.rows, seat.arch.dims
    return seat.once("block parameters", lambda: let("block", total(let(row.name, row.elements(dims)) for row in rows)))


def block_adapters(seat: Seat) -> Size:
    """Parameters of the adapters of one block: `rank * (inputs + outputs)` for every adapted linear layer."""
    dims = seat.arch.dims
    pairs = total(let(f"{row.linear} in + out", dims.size(row.rows) + dims.size(row.width)) for row in _adapted(seat))
    return seat.lora_rank * pairs


def adapter_parameters(seat: Seat) -> Size:
    """Parameters of all adapters."""
    return let("adapter_params", seat.arch.dims.layers * block_adapters(seat))


def trainable_parameters(seat: Seat) -> Size:
    """Parameters that learn."""
    if not seat.trains:
        return 0
    return parameters(seat) if seat.tuning == "full" else adapter_parameters(seat)


def gathered_block(seat: Seat) -> Size:
    """Parameters of one block as FSDP gathers them, its adapters included; 0 when the whole model is one unit."""
    return 0 if seat.whole_unit else let("unit", _block(seat) + block_adapters(seat))


def gathered_root(seat: Seat) -> Size:
    """Parameters of FSDP's root unit: what is in no block."""
    if not seat.whole_unit:
        return let("root", root_parameters(seat))
    return let("root", parameters(seat) + adapter_parameters(seat))


def learns_whole(seat: Seat) -> bool:
    """FSDP 1 makes one tensor of a unit, and a view of a tensor that learns has a gradient: frozen weights as well."""
    return seat.tuning == "lora" and seat.flat_model


def reduced_root(seat: Seat) -> Size:
    """Parameters of the root unit that have gradients to reduce."""
    if seat.tuning == "full" or learns_whole(seat):
        return gathered_root(seat)
    return adapter_parameters(seat) if seat.whole_unit else 0


def reduced_block(seat: Seat) -> Size:
    """The same of a block that is a unit."""
    if seat.tuning == "full" or seat.whole_unit:
        return gathered_block(seat)
    return block_adapters(seat)


def unit_gradients(seat: Seat, blocks: Size, *, embedding: bool) -> Size:
    """Parameters of the one unit whose gradients are there when backward is done with so many blocks."""
    if seat.tuning == "lora" and not learns_whole(seat):
        return blocks * block_adapters(seat)
    table = 0 if embedding or seat.arch.tied else embedding_elements(structs.replace(seat, shard="none"))
    return root_parameters(seat) - table + blocks * (_block(seat) + block_adapters(seat))


def held_tensors(seat: Seat) -> list[tuple[Size, Size]]:
    """(how many, elements of each) of the base model's tensors on one rank.

    FSDP2 cuts every tensor along its first dimension; FSDP1 flattens a unit and cuts that. Both pad to the ranks.
    """
    return seat.once("held tensors", lambda: list(_flat_units(seat) if seat.shard == "fsdp1" else _cut_tensors(seat)))


def stored_tensors(seat: Seat) -> list[tuple[Size, Size]]:
    """(how many, bytes of each) of the base model's tensors on one rank: a packed weight is several."""
    width, packing = BYTES[seat.weights_dtype], seat.packing
    if packing is None:
        return [(count, elements * width) for count, elements in held_tensors(seat)]
    found: list[tuple[Size, Size]] = []
    for row, count in seat.arch.tensors():
        parts = _parts(seat, row, packing)
        plain = row.elements(seat.arch.dims) * (BYTES["fp32"] if _is_wide(seat, row) else width)
        found += [(count, part) for part in parts] if parts else [(count, plain)]
    return found


def _is_wide(seat: Seat, row: Row) -> bool:
    return seat.norms_fp32 and row.module == "norms"


def stored_weights(seat: Seat) -> Size:
    """Bytes of the base model on one rank."""
    packing = seat.packing
    if packing is None:
        return held_parameters(seat) * BYTES[seat.weights_dtype]
    layers, rows = seat.arch.dims.layers, [row for row in seat.arch.block.rows if row.linear in packing.formats]
    unpacked = total(row.elements(seat.arch.dims) for row in rows)
    plain = let("not_packed", parameters(seat) - layers * let("packed_params", unpacked))
    packed = total(let(f"{row.linear} packed", total(_parts(seat, row, packing))) for row in rows)
    stored = plain * BYTES[seat.weights_dtype] + layers * packed
    if not seat.norms_fp32:
        return stored
    norms = total(count * row.elements(seat.arch.dims) for row, count in seat.arch.tensors() if _is_wide(seat, row))
    return stored + let("norm_params", norms) * (BYTES["fp32"] - BYTES[seat.weights_dtype])


def _parts(seat: Seat, row: Row, packing: Packing) -> list[Size]:
    """Bytes of the tensors that stand for a packed weight; none for a plain one."""
    if row.linear not in packing.formats:
        return []
    dims = seat.arch.dims
    return list(packing.formats[row.linear].parts(dims.size(row.rows), dims.size(row.width)).values())


def held_adapters(seat: Seat) -> list[tuple[Size, Size]]:
    """The same of the adapters."""
    dims = seat.arch.dims
    sizes = [seat.lora_rank * dims.size(side) for row in _adapted(seat) for side in (row.width, row.rows)]
    return [(dims.layers, shard(size, seat.ranks) if seat.sharded else size) for size in sizes]


def held(tensors: list[tuple[Size, Size]]) -> Size:
    """Elements in all of them."""
    return total(count * size for count, size in tensors)


def held_parameters(seat: Seat) -> Size:
    """Parameters of the base model on one rank."""
    if not seat.sharded:
        return parameters(seat)
    return seat.once("held parameters", lambda: let("params_per_rank", held(held_tensors(seat))))


def held_flat(seat: Seat) -> Size:
    """A rank's share of the whole model as one flat tensor, adapters included."""
    return let("share of the model", shard(gathered_root(seat), seat.ranks))


def held_trainable(seat: Seat) -> Size:
    """Trainable parameters on one rank."""
    if seat.tuning == "full":
        return held_parameters(seat)
    if not seat.sharded:
        return adapter_parameters(seat)
    return seat.once("held adapters", lambda: let("adapter_params_per_rank", held(held_adapters(seat))))


def held_trainable_block(seat: Seat) -> Size:
    """Trainable parameters of one block on one rank, under FSDP."""
    if seat.tuning == "lora":
        return let("adapter share of a block", held([(1, size) for _, size in held_adapters(seat)]))
    if seat.shard == "fsdp1":
        return let("share of a block", shard(gathered_block(seat), seat.ranks))
    rows = seat.arch.block.rows
    return let("share of a block", total(_cut(seat, row.elements(seat.arch.dims), row) for row in rows))


def trainable_tensors(seat: Seat) -> list[tuple[Size, Size]]:
    """(how many, elements of each) of the trainable tensors on one rank."""
    return held_tensors(seat) if seat.tuning == "full" else held_adapters(seat)


def embedding_elements(seat: Seat) -> Size:
    """Elements of the embedding on one rank."""
    row = next(row for row in seat.arch.outer if row.module == "embedding")
    return _cut(seat, row.elements(seat.arch.dims), row)


def trainable_shapes(seat: Seat) -> list[tuple[Size, Size, Size]]:
    """(how many, rows, columns) of the trainable tensors, whole; a vector has no columns."""
    dims = seat.arch.dims

    def side(name: str) -> Size:
        return dims.size(name) if name else 0

    if seat.tuning == "full":
        return [(count, side(row.rows), side(row.width)) for row, count in seat.arch.tensors()]
    pairs = [((seat.lora_rank, side(row.width)), (side(row.rows), seat.lora_rank)) for row in _adapted(seat)]
    return [(dims.layers, rows, width) for pair in pairs for rows, width in pair]


def trainable_dtype(seat: Seat) -> str:
    """Stored dtype of what learns."""
    return seat.weights_dtype if seat.tuning == "full" else seat.adapter_dtype


def _adapted(seat: Seat) -> list[Row]:
    return [row for row in seat.arch.block.rows if row.linear in seat.targets]


def _cut(seat: Seat, elements: Size, row: Row) -> Size:
    if not seat.sharded:
        return elements
    dims = seat.arch.dims
    rows = dims.size(row.rows) if row.rows else 1
    width = dims.size(row.width) if row.width else 1
    # a vector's only dimension is its first: `rows` is 1 when the width carries it
    return shard(rows, seat.ranks) * width if row.rows else shard(width, seat.ranks)


def _cut_tensors(seat: Seat) -> Iterator[tuple[Size, Size]]:
    for row, count in seat.arch.tensors():
        yield count, _cut(seat, row.elements(seat.arch.dims), row)


def _flat_units(seat: Seat) -> Iterator[tuple[Size, Size]]:
    if seat.whole_unit:
        yield 1, shard(parameters(seat), seat.ranks)
    else:
        yield 1, shard(root_parameters(seat), seat.ranks)
        yield seat.arch.dims.layers, shard(_block(seat), seat.ranks)
