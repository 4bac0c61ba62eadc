"""Parameters as the ranks of a layout hold them: whole, cut by FSDP, and gathered unit by unit."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from msgspec import structs

from vramcast.catalog.dtypes import BYTES
from vramcast.memory.packing import Packing, path_of
from vramcast.memory.seat import Seat
from vramcast.models.layout import Blocks, Weight
from vramcast.models.place import Zero, at_rest, resting
from vramcast.models.stored import packed
from vramcast.num import Size, let, shard, total, worst


def parameters(seat: Seat) -> Size:
    """Parameters of the base model."""
    return seat.once("parameters", lambda: let("params", root_parameters(seat) + _layers(seat, block_parameters)))


def root_parameters(seat: Seat) -> Size:
    """Parameters outside the layers: embedding, final norm, head (once if tied)."""
    return seat.once(
        "root parameters",
        lambda: total(
            block.count * let(weight.name.removesuffix(".weight"), weight.elements)
            for block in seat.arch.root
            for weight in block.weights
        ),
    )


def block_parameters(seat: Seat, block: Blocks) -> Size:
    """Parameters of one layer of a kind."""
    name = _label(seat, block)
    return seat.once(
        f"{block.prefix} {block.name} {block.layers[:1]} parameters",
        lambda: let(name, total(let(weight.name, weight.elements) for weight in block.weights)),
    )


def _label(seat: Seat, block: Blocks) -> str:
    return "block" if len(seat.arch.kinds) == 1 and block.is_layer else block.name


def _units(seat: Seat) -> list[Blocks]:
    """The blocks that are layers, of the language model and of towers: FSDP wraps each."""
    return [block for block in seat.arch.layout.blocks if block.layers]


def runs(seat: Seat, block: Blocks) -> bool:
    """Whether a batch goes through a block: towers wait for images and sound. What does not run gets no gradient, and
    so no optimizer state (torch: `.grad` stays None)."""
    return not block.needs or (block.needs == "images" and seat.sees)


def learns_to_see(seat: Seat) -> bool:
    """Whether backward goes through the tower: its weights learn, or its adapters do, or its input asks for it
    (adapters and recomputation: `enable_input_require_grads` reaches the embedding of every part)."""
    if not seat.sees or not seat.records:
        return False
    adapted = any(_adapted(seat, block) for block in seat.arch.layout.blocks if block.needs and runs(seat, block))
    return seat.tuning == "full" or adapted or seat.recompute == "full"


def _layers(seat: Seat, value: Callable[[Seat, Blocks], Size]) -> Size:
    """A value summed over all layers."""
    return total(seat.arch.times(block) * value(seat, block) for block in _units(seat))


def block_adapters(seat: Seat, block: Blocks) -> Size:
    """Parameters of the adapters of one layer: `rank * (inputs + outputs)` for every adapted linear layer, and for
    every expert of a packed parameter."""
    pairs = total(let(f"{label} in + out", inputs + outputs) for label, inputs, outputs in _adapted(seat, block))
    return seat.lora_rank * pairs


def adapter_parameters(seat: Seat) -> Size:
    """Parameters of all adapters."""
    blocks = seat.arch.layout.blocks
    found = [seat.arch.times(block) * block_adapters(seat, block) for block in blocks if _adapted(seat, block)]
    return seat.once("adapter parameters", lambda: let("adapter_params", total(found)))


def trainable_parameters(seat: Seat) -> Size:
    """Parameters that learn."""
    if not seat.trains:
        return 0
    return parameters(seat) if seat.tuning == "full" else adapter_parameters(seat)


def learned_parameters(seat: Seat) -> Size:
    """Those of them that get a gradient."""
    if not seat.trains or _all_learn(seat):
        return trainable_parameters(seat)
    count = block_parameters if seat.tuning == "full" else block_adapters
    blocks = [(block, _idle(seat, block)) for block in seat.arch.layout.blocks]
    idle = total(seat.arch.times(block) * count(seat, part) for block, part in blocks if part.weights)
    return let("learned", trainable_parameters(seat) - idle)


def _all_learn(seat: Seat) -> bool:
    return not any(_idle(seat, block).weights for block in seat.arch.layout.blocks)


def _idle(seat: Seat, block: Blocks) -> Blocks:
    """What of a block gets no gradient: all of what does not run, and scorers that only choose (`torch.no_grad`)."""
    if not runs(seat, block):
        return block
    idle = tuple(weight for weight in block.weights if ".indexer." in weight.name)
    return structs.replace(block, name=f"scorer of a {block.name}", weights=idle)


def _learning(seat: Seat, block: Blocks) -> Blocks:
    """The rest of it."""
    idle = set(_idle(seat, block).weights)
    return structs.replace(block, weights=tuple(one for one in block.weights if one not in idle)) if idle else block


def _unit(seat: Seat, block: Blocks) -> Size:
    return block_parameters(seat, block) + block_adapters(seat, block)


def gathered_block(seat: Seat) -> Size:
    """Parameters of the largest layer as FSDP gathers it, its adapters included; 0 when the whole model is one unit."""
    running = [block for block in _units(seat) if runs(seat, block)]
    return 0 if seat.whole_unit else let("unit", worst(*(_unit(seat, block) for block in running)))


def gathered_layers(seat: Seat) -> Size:
    """Parameters of all units but the root that run."""
    running = [block for block in _units(seat) if runs(seat, block)]
    return 0 if seat.whole_unit else total(seat.arch.times(block) * _unit(seat, block) for block in running)


def gathered_root(seat: Seat) -> Size:
    """Parameters of FSDP's root unit: what is in no layer."""
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
    """The same of the first layer, which backward comes to last."""
    if seat.tuning == "full" or seat.whole_unit:
        return gathered_block(seat)
    return block_adapters(seat, seat.arch.kinds[0])


def unit_gradients(seat: Seat, instant: str) -> Size:
    """Parameters of the one unit whose gradients are there at an instant of backward."""
    kinds = seat.arch.kinds
    learns = seat.tuning == "full" or learns_whole(seat)

    def of(block: Blocks) -> Size:
        return _unit(seat, block) if learns else block_adapters(seat, block)

    last = next(block for block in kinds if len(seat.arch.layout.layers()) - 1 in block.layers)
    layers: Size = 0
    if instant != "loss":
        layers = of(last) if instant == "first block" else total(seat.arch.times(block) * of(block) for block in kinds)
    if not learns:
        return layers
    table = 0 if instant == "embedding" or seat.arch.tied else seat.arch.embedding.elements
    return root_parameters(seat) - table + layers


def held_tensors(seat: Seat, *, learned: bool = False) -> list[tuple[Size, Size]]:
    """(how many, elements of each) of the base model's tensors on one rank; `learned`: of those that get a gradient.

    FSDP2 cuts every tensor along its first dimension; FSDP1 flattens a unit and cuts that: a flat unit that runs learns
    whole. Both pad to the ranks.
    """

    def cut() -> list[tuple[Size, Size]]:
        flat = seat.flat_model
        blocks = seat.arch.counted()
        if learned and seat.shard == "fsdp1":  # a unit is one tensor: it learns whole
            blocks = [(block, count) for block, count in blocks if flat or runs(seat, block)]
        elif learned:
            blocks = [(_learning(seat, block), count) for block, count in blocks]
        return list(resting(blocks, seat.ranks, _at_rest(seat), whole=seat.whole_unit))

    return seat.once(f"held tensors {learned}", cut)


def stored_tensors(seat: Seat) -> list[tuple[Size, Size]]:
    """(how many, bytes of each) of the base model's tensors on one rank: a packed weight is several."""
    width, packing = BYTES[seat.weights_dtype], seat.packing
    if packing is None:
        return [(count, elements * width) for count, elements in held_tensors(seat)]
    found: list[tuple[Size, Size]] = []
    for block, weight, count in seat.arch.tensors():
        parts = _parts(block, weight, packing)
        plain = weight.elements * (BYTES["fp32"] if _is_wide(seat, block, weight) else width)
        found += [(count, part) for part in parts] if parts else [(count, plain)]
    return found


def _is_wide(seat: Seat, block: Blocks, weight: Weight) -> bool:
    return seat.norms_fp32 and is_norm(block, weight)


def is_norm(block: Blocks, weight: Weight) -> bool:
    """The scale or shift of a norm, of heads too."""
    return block.module(weight) == "norms" or (len(weight.axes) == 1 and "norm" in weight.name)


def stored_weights(seat: Seat) -> Size:
    """Bytes of the base model on one rank."""
    packing = seat.packing
    if packing is None:
        return held_parameters(seat) * BYTES[seat.weights_dtype]
    found = list(seat.arch.tensors())
    are_packed = [(weight, count, _parts(block, weight, packing)) for block, weight, count in found]
    unpacked = total(count * weight.elements for weight, count, parts in are_packed if parts)
    plain = let("not_packed", parameters(seat) - let("packed_params", unpacked))
    stored = plain * BYTES[seat.weights_dtype] + total(
        count * let(f"{linear_of(weight)} packed", total(parts)) for weight, count, parts in are_packed if parts
    )
    if not seat.norms_fp32:
        return stored
    norms = total(count * weight.elements for block, weight, count in found if _is_wide(seat, block, weight))
    return stored + let("norm_params", norms) * (BYTES["fp32"] - BYTES[seat.weights_dtype])


def _parts(block: Blocks, weight: Weight, packing: Packing) -> list[Size]:
    """Bytes of the tensors that stand for a packed weight; none for a plain one."""
    form = packing.formats.get(path_of(block.prefix, weight.name))
    return list(packed(weight.name, weight, form).values()) if form is not None else []


def linear_of(weight: Weight) -> str:
    """The last name (`q_proj`) of the linear layer whose weight this is; "" of another tensor."""
    name, _, leaf = weight.name.rpartition(".")
    return name.rpartition(".")[2] if leaf == "weight" and len(weight.axes) == 2 else ""


def held_adapters(seat: Seat, *, learned: bool = False) -> list[tuple[Size, Size]]:
    """The same of the adapters; `learned`: of those that get a gradient."""
    sizes = [
        (seat.arch.times(block), seat.lora_rank * side)
        for block in seat.arch.layout.blocks
        for _, *sides in _adapted(seat, _learning(seat, block) if learned else block)
        for side in sides
    ]
    return [(count, shard(size, seat.ranks) if seat.sharded else size) for count, size in sizes]


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


def held_learned(seat: Seat) -> Size:
    """Those of them that get a gradient."""
    if _all_learn(seat):
        return held_trainable(seat)
    return held(trainable_tensors(seat)) if seat.sharded else learned_parameters(seat)


def held_trainable_blocks(seat: Seat, *, without_first: bool) -> Size:
    """Trainable parameters of the layers, or of all but the first, on one rank, under FSDP."""
    first = seat.arch.kinds[0]
    return total(
        (seat.arch.times(block) - (1 if without_first and block is first else 0)) * _held_trainable(seat, block)
        for block in seat.arch.kinds
    )


def _held_trainable(seat: Seat, block: Blocks) -> Size:
    if seat.tuning == "lora":
        sides = [side for _, *pair in _adapted(seat, block) for side in pair]
        shares = [shard(seat.lora_rank * side, seat.ranks) for side in sides]
        return let(f"adapter share of a {_label(seat, block)}", total(shares))
    if seat.shard == "fsdp1":
        share = 0 if seat.whole_unit else shard(_unit(seat, block), seat.ranks)
    else:
        share = total(_cut(seat, weight) for weight in block.weights)
    return let(f"share of a {_label(seat, block)}", share)


def trainable_tensors(seat: Seat) -> list[tuple[Size, Size]]:
    """(how many, elements of each) of the tensors on one rank that get a gradient."""
    return held_tensors(seat, learned=True) if seat.tuning == "full" else held_adapters(seat, learned=True)


def embedding_elements(seat: Seat) -> Size:
    """Elements of the embedding on one rank."""
    return _cut(seat, seat.arch.embedding)


def trainable_shapes(seat: Seat) -> list[tuple[Size, Size, Size]]:
    """(how many, rows, columns) of the matrices that get a gradient, whole; of a tensor with more dimensions, its last
    two. A vector has no columns."""
    if seat.tuning == "full":
        learning = [(_learning(seat, block), count) for block, count in seat.arch.counted()]
        found = [(list(weight.shape), count) for block, count in learning for weight in block.weights]
        return [(count * prod(shape[:-2]), shape[-2] if len(shape) > 1 else 0, shape[-1]) for shape, count in found]
    running = [(seat.arch.times(block), _learning(seat, block)) for block in seat.arch.layout.blocks]
    adapted = [(count, *sides) for count, block in running for _, *sides in _adapted(seat, block)]
    pairs = [(n, ((seat.lora_rank, inputs), (outputs, seat.lora_rank))) for n, inputs, outputs in adapted]
    return [(count, rows, width) for count, pair in pairs for rows, width in pair]


def trainable_dtype(seat: Seat) -> str:
    """Stored dtype of what learns."""
    return seat.weights_dtype if seat.tuning == "full" else seat.adapter_dtype


def _adapted(seat: Seat, block: Blocks) -> list[tuple[str, Size, Size]]:
    """(label, inputs, outputs) of every pair of adapter matrices, which have `lora_rank` between them. A parameter of
    packed experts has the ranks of all experts side by side: its pair is that many times as wide."""
    linears = block.linears()
    found: list[tuple[str, Size, Size]] = []
    for weight in block.weights:
        ranks = seat.ranks_of(weight.name)
        if weight.name.removesuffix(".weight") in linears and linear_of(weight) in seat.targets:
            found.append((linear_of(weight), weight.shape[1], weight.shape[0]))
        elif ranks:
            *experts, outputs, inputs = weight.shape
            count = ranks * prod(experts)
            found.append((weight.name, count * inputs, count * outputs))
    return found


def _cut(seat: Seat, weight: Weight) -> Size:
    """Elements of a tensor that is cut by itself."""
    return at_rest(weight, seat.ranks, "fsdp2" if seat.sharded else "none")


def _at_rest(seat: Seat) -> Zero:
    return "fsdp1" if seat.shard == "fsdp1" else "fsdp2" if seat.sharded else "none"
