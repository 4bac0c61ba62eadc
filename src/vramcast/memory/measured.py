"""Measured rows in place of a program: the same numbers of a block and of both ends, from what a trace saw."""

from __future__ import annotations

from vramcast.memory.pass_sizes import BlockPass, EndPass, Stack
from vramcast.memory.passes import cached_casts
from vramcast.memory.seat import Seat
from vramcast.models.extents import Sizes
from vramcast.models.measured import NEVER, Kind, Measured, Measurement, Part, Parts, Tensor
from vramcast.num import Size, let, running_peak, total, worst


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
    front = Rows(_parts(seat).front, _sizes(seat))
    _, middle, first, _ = front.part.borders
    masks = [size for tensor, size in front.sized if tensor.kind == "batch" and _lives(tensor, middle)
             and not _lives(tensor, first)]  # fmt: skip
    return total(masks)


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
    rows, tail = Rows(part, _sizes(seat)), Rows(_parts(seat).tail, _sizes(seat))
    norm, loss, *_ = tail.part.borders
    given = total(size for tensor, size in rows.sized if tensor.kind == "input")
    keeps_input = any(_lives(tensor, backward) for tensor in part.tensors if tensor.kind == "input")
    kept = [size for tensor, size in rows.sized if tensor.kind == "activation" and _lives(tensor, backward)]
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
    front, tail, embedding = (Rows(part, sizes) for part in (parts.front, parts.tail, parts.embedding))
    forward, middle, _, over = parts.front.borders
    _, loss, emptied, backward = parts.tail.borders
    behind = tail.peak(emptied, backward) - cached_casts(seat) if emptied < backward else 0
    inputs = front.alive(over, "batch")
    batch = front.alive(middle, "batch")
    hidden = total(size for tensor, size in front.sized if tensor.kind == "output")
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
        logits=total(size for tensor, size in tail.sized if tensor.born < backward and tensor.dies == NEVER),
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


def _lives(tensor: Tensor, step: int) -> bool:
    """Whether a tensor is there when a step begins."""
    return tensor.born < step and (tensor.dies == NEVER or tensor.dies >= step)


class Rows:
    """A part at a seat's sizes."""

    def __init__(self, part: Part, sizes: Sizes) -> None:
        self.part = part
        self.sized = [(tensor, let(_name(tensor), tensor.size(sizes))) for tensor in part.tensors]

    def alive(self, step: int, kind: Kind) -> Size:
        """Bytes of a kind that are there when a step begins."""
        return total(size for tensor, size in self.sized if tensor.kind == kind and _lives(tensor, step))

    def left(self, kind: Kind) -> Size:
        """Bytes of a kind that outlive the part."""
        return total(size for tensor, size in self.sized if tensor.kind == kind and tensor.dies == NEVER)

    def peak(self, start: int, end: int | None = None, without: Kind | None = None) -> Size:
        """Most that is alive from a step on until another one, tensors of a kind left out."""
        steps: list[tuple[int, int, Size]] = []
        for tensor, size in self.sized:
            if tensor.kind == without or (tensor.born < start and not _lives(tensor, start)):
                continue
            steps.append((max(tensor.born, start - 1), 1, size))
            if tensor.dies != NEVER:
                steps.append((tensor.dies, -1, size))
        steps.sort(key=lambda step: step[0])
        return running_peak([(sign, size) for at, sign, size in steps if end is None or at < end])


def _name(tensor: Tensor) -> str:
    """`mlp.down_proj mm` of `aten.mm.default`; the operators of backward have no module."""
    operator = tensor.operator.removeprefix("aten.").partition(".")[0]
    return f"{tensor.module} {operator}" if tensor.module else operator
