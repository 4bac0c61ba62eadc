"""Measured rows in place of a program: the same numbers of a block and of both ends, from what a trace saw."""

from __future__ import annotations

from vramcast.memory.lifetimes import Life, Lifetimes
from vramcast.memory.pass_sizes import BlockPass, EndPass, Stack
from vramcast.memory.passes import cached_casts
from vramcast.memory.seat import Seat
from vramcast.models.extents import Sizes
from vramcast.models.measured import NEVER, Measured, Measurement, Part, Parts, Tensor
from vramcast.num import Size, let, total, worst


def modes_of(seat: Seat) -> dict[str, str]:
    """The modes that decide what a training step allocates: path → value."""
    modes = {
        "tuning": seat.tuning,
        "weights_dtype": seat.param_dtype,
        "compute_dtype": seat.compute_dtype,
        "autocast": _said(seat.autocast),
        "attention": seat.attention,
        "recompute": seat.recompute,
        "loss": seat.loss,
    }
    if seat.recompute != "none":
        modes["recompute.reentrant"] = _said(seat.reentrant)
    if seat.tuning == "lora":
        modes["lora.rank"] = str(int(seat.lora_rank))  # a size, but one of the file's modes
        modes["lora.targets"] = ",".join(sorted(seat.targets))
        modes["lora.dtype"] = seat.adapter_param_dtype
        modes["lora.dropout"] = "some" if seat.adapter_dropout else "none"
    if seat.packing is not None:
        modes["quant.kind"] = seat.packing.product
        modes["quant.double"] = _said(seat.packing.nested)
        modes["quant.compute_dtype"] = seat.packing.compute_dtype
    if seat.loss == "full":
        modes["outputs"] = _outputs(seat)
    return modes


def _said(value: bool) -> str:
    return "true" if value else "false"


def _outputs(seat: Seat) -> str:
    """What becomes of the logits that the model returns."""
    held = "held" if seat.recipe.outputs_kept else "dropped"
    return f"fp32, {held}" if seat.recipe.outputs_fp32 else held


def under(measurement: Measurement, modes: dict[str, str]) -> list[Measured]:
    """What was measured under these modes, if it was."""
    return [one for one in measurement.variants if one.modes == modes]


def measured_stack(seat: Seat) -> Stack:
    """Blocks of the last one's kind stand for all behind the first; with that is counted what those of other kinds keep
    beyond. In its backward, masks that only other kinds read are gone: they are counted with all tables."""
    first, (usual, *others) = _block(_parts(seat).first, seat), _parts(seat).layers
    first = first._replace(backward=first.backward - _gone(seat))
    for layers in others:
        first = _with_others(first, layers.count, _block(layers.part, seat), _block(usual.part, seat))
    return Stack.of_one(first, _block(usual.part, seat), seat.arch.layers)


def _gone(seat: Seat) -> Size:
    """Masks that live in the backward of a middle block, and not in the first one's."""
    front = _parts(seat).front
    _, middle, first, _ = front.borders
    batch = sized(front, _sizes(seat)).living(middle, "batch")
    return total(life.size for life in batch if not life.is_there(first))


def _with_others(first: BlockPass, count: int, other: BlockPass, usual: BlockPass) -> BlockPass:
    gradients = count * (other.gradients - usual.gradients)
    return first._replace(
        saved=first.saved + count * (other.saved - usual.saved),
        carried=first.carried + count * (other.carried - usual.carried),
        casts=first.casts + count * (other.casts - usual.casts),
        saved_casts=first.saved_casts + count * (other.saved_casts - usual.saved_casts),
        gradients=first.gradients + gradients,
        backward=first.backward + gradients,
    )


def _block(part: Part, seat: Seat) -> BlockPass:
    """Blocks of one kind. The last one's output goes through the final norm, which can be more than the block's own."""
    begins, ends, backward, _ = part.borders
    rows, tail = sized(part, _sizes(seat)), sized(_parts(seat).tail, _sizes(seat))
    norm, loss, *_ = _parts(seat).tail.borders
    given = total(life.size for life in rows.lives if life.kind == "input")
    keeps_input = bool(rows.living(backward, "input"))
    kept = [life.size for life in rows.living(backward, "activation")]
    casts, saved = rows.alive(ends, "cast"), total(kept)
    carried = given if keeps_input else 0
    behind = tail.peak(norm, loss) + saved + casts - (0 if keeps_input else given)
    return BlockPass(
        saved=saved,
        carried=carried,
        casts=casts,
        saved_casts=rows.alive(backward, "cast"),
        forward=worst(rows.peak(begins, ends, without="input"), behind),
        backward=rows.peak(backward, without="output"),
        gradients=rows.left("gradient"),
        keeps_input=keeps_input,
        tensors=(*kept, carried),
    )


def measured_ends(seat: Seat) -> EndPass:
    """Before the first block and behind the last one."""
    parts, sizes = _parts(seat), _sizes(seat)
    front, tail, embedding = (sized(part, sizes) for part in (parts.front, parts.tail, parts.embedding))
    forward, middle, _, over = parts.front.borders
    _, loss, emptied, backward = parts.tail.borders
    behind = tail.peak(emptied, backward) - cached_casts(seat) if emptied < backward else 0
    inputs = front.alive(over, "batch")
    batch = front.alive(middle, "batch")
    hidden = total(life.size for life in front.lives if life.kind == "output")
    begun = total(front.alive(forward, kind) for kind in ("activation", "output", "batch"))
    return EndPass(
        inputs=inputs,
        tables=batch - inputs,
        hidden=hidden,
        loss=worst(tail.peak(loss, emptied), behind),
        casts=tail.alive(backward, "cast"),
        backward=tail.peak(backward),
        gradients=tail.left("gradient"),
        embedding=embedding.peak(0) if parts.embedding.tensors else hidden,  # at most its output's gradient
        embedding_gradient=embedding.left("gradient"),
        logits=total(life.size for life in tail.lives if life.born < backward and life.dies == NEVER),
        leaf=front.alive(middle, "activation"),
        front=begun - batch,
    )


def _parts(seat: Seat) -> Parts:
    """The micro-batch that the seat is about."""

    def find() -> Parts:
        measurement = seat.arch.measured
        found = under(measurement, modes_of(seat)) if measurement is not None else []
        assert found  # `estimate/measured_checks.py` refuses a job that was not measured
        if len(found) > 1:  # one sequence is run in another way: a mode that the number says
            found = [one for one in found if one.has(int(seat.sequences))]
        return found[0].adding if seat.keeps_gradients else found[0].fresh

    return seat.once("measured", find)


def _sizes(seat: Seat) -> Sizes:
    return Sizes(seat.sequences, seat.seq_len, seat.scored_len)


def sized(part: Part, sizes: Sizes) -> Lifetimes:
    """A part at some sizes."""
    return Lifetimes(
        Life(name, tensor.kind, let(name, tensor.size(sizes)), tensor.born, tensor.dies)
        for tensor in part.tensors
        for name in (_name(tensor),)
    )


def _name(tensor: Tensor) -> str:
    """`mlp.down_proj mm` of `aten.mm.default`; the operators of backward have no module."""
    operator = tensor.operator.removeprefix("aten.").partition(".")[0]
    return f"{tensor.module} {operator}" if tensor.module else operator
