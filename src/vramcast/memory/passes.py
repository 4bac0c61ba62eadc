"""One block and the model's two ends, run over the tape: the numbers from which every activation term is made.

Blocks of a kind are equal, so a model is a sum over its kinds of what one block keeps, and the worst moment of one
block. Passes are cached on the seat: all its terms and instants read the same ones.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs

from vramcast.catalog.dtypes import BYTES
from vramcast.memory.head import Model
from vramcast.memory.pass_sizes import BlockPass, EndPass, Stack
from vramcast.memory.plans import planned
from vramcast.memory.seat import Seat
from vramcast.memory.tape import Tape
from vramcast.memory.units import learns_to_see, learns_whole, runs
from vramcast.models.layout import Blocks
from vramcast.num import Size, total, worst


def stack(seat: Seat) -> Stack:
    """The layers of the seat's architecture, forward and, if the seat trains, backward."""
    if seat.arch.measured is not None:
        return seat.once("stack", lambda: measured().measured_stack(seat))
    return seat.once("stack", lambda: planned(seat, "stack", _stack))


def _stack(seat: Seat) -> Stack:
    kinds = [kind for kind in seat.arch.kinds if runs(seat, kind)]
    passes = [train_block(seat, kind) if seat.records else infer_block(seat, kind) for kind in kinds]
    order = {layer: index for index, kind in enumerate(kinds) for layer in kind.layers}
    places = tuple([order[layer] for layer in sorted(order)])
    first = _first_block(seat, kinds[places[0]]) or passes[places[0]]
    if len(seat.arch.kinds) == 1:
        return Stack.of_one(first, passes[0], seat.arch.layers)
    return Stack.of_many(first, tuple(passes), places)


def _first_block(seat: Seat, kind: Blocks) -> BlockPass | None:
    """The block behind the embedding, where it is not like later ones. With adapters and no checkpoints nothing before
    it learns, so it keeps less; what it is given may be of another dtype than what it gives."""
    learns = seat.tuning == "full" or learns_whole(seat) or seat.recompute == "full" or learns_to_see(seat)
    if not seat.records or (learns and seat.hidden_dtype == seat.param_dtype):
        return None
    if seat.recompute == "full":
        return _checkpointed_block(seat, kind, embedded=True)
    return _plain_block(seat, kind, input_learns=learns, embedded=True)


def end_pass(seat: Seat) -> EndPass:
    """Embedding, final norm, head and loss, forward and, if the seat trains, backward."""
    return seat.once("end", lambda: _ends(seat))


def sparse_end_pass(seat: Seat) -> EndPass:
    """`end_pass` with one labelled token a sequence: the least a fused head can need."""
    return seat.once("sparse end", lambda: _ends(structs.replace(seat, scored_len=1)))


def _ends(seat: Seat) -> EndPass:
    return planned(seat, "ends", _run_ends) if seat.arch.measured is None else measured().measured_ends(seat)


def measured() -> Any:
    """The reader of measured rows, which most jobs do not need."""
    from vramcast.memory import measured

    return measured


def new_tape(seat: Seat, *, records: bool) -> Model:
    """The model's operators on a fresh tape."""
    return Model(Tape(records=records, accumulates=seat.adds_gradients), seat)


def infer_block(seat: Seat, kind: Blocks) -> BlockPass:
    """A block of which nothing is kept; nothing to speak of where `generate` gives it the last token only."""
    if seat.state == "generate" and getattr(kind.forward, "last_only", False):
        return BlockPass(0, 0, 0, 0, 0, 0, 0)
    ops = new_tape(seat, records=False)
    _, since = _forward_block(ops, kind)
    returned = total(ops.tape.size(x) for x in ops.returned)
    return BlockPass(0, 0, ops.tape.alive("cast", since), 0, ops.tape.peak(since), 0, 0, returned=returned)


def train_block(seat: Seat, kind: Blocks, input_learns: bool = True) -> BlockPass:
    """A block forward and backward. Only layers are recomputed."""
    if seat.recompute == "none" or not kind.layers:
        return _plain_block(seat, kind, input_learns=input_learns)
    return _checkpointed_block(seat, kind)


def _forward_block(
    ops: Model, kind: Blocks, *, input_learns: bool = True, embedded: bool = False
) -> tuple[tuple[Any, Any], int]:
    """Run a block's forward: ((input, output), the step at which the input was there)."""
    ops.rope_tables()
    hidden = ops.hidden("block input", embedded=embedded)
    hidden.requires_grad = hidden.requires_grad and input_learns
    since = len(ops.tape.steps)
    return (hidden, ops.run(kind, hidden)), since


def _plain_block(seat: Seat, kind: Blocks, *, input_learns: bool = True, embedded: bool = False) -> BlockPass:
    """The graph keeps its tensors from forward to backward."""
    ops = new_tape(seat, records=True)
    tape = ops.tape
    (hidden, out), since = _forward_block(ops, kind, input_learns=input_learns, embedded=embedded)
    forward, casts = tape.peak(since), tape.alive("cast", since)
    tape.end_autocast()
    tape.drop(hidden, *ops.returned)
    saved_casts = tape.alive("cast", since)
    keeps_input = hidden.storage is not None and hidden.storage.holds > 0
    carried = tape.size(hidden) if keeps_input else 0
    held = {id(x.storage): tape.size(x) for x in ops.held_inputs}
    before = len(tape.steps)
    tape.drop(*ops.cached)
    cached = total(storage.size for sign, storage in tape.steps[before:] if sign < 0)
    kept = [
        storage.size
        for storage in tape.living(since)
        if storage.kind == "activation" and storage is not out.storage and id(storage) not in held
    ]
    start = len(tape.steps)
    gradient = tape.like(hidden, "output gradient")
    tape.drop(out)
    tape.backward(out, gradient)
    return BlockPass(
        total(kept),
        carried,
        casts,
        saved_casts,
        forward,
        tape.peak(since - 1, start),
        tape.alive("gradient", since),
        keeps_input,
        (*kept, carried),
        total(held.values()),
        cached=cached,
    )


def _checkpointed_block(seat: Seat, kind: Blocks, *, embedded: bool = False) -> BlockPass:
    """Forward keeps the input only; backward runs the block again, the gradient of its output alive beside it.

    Source: torch/utils/checkpoint.py. The non-reentrant kind starts when backward first asks for a saved tensor: what
    the nodes before made is alive too. It stops where the last tensor is saved, before that operator runs. The
    reentrant kind runs the whole block; its output and that one's gradient are variables of the checkpoint's own
    backward.
    """
    quiet = new_tape(seat, records=not seat.reentrant)
    quiet.tape.checkpointed = True
    (_, out), since = _forward_block(quiet, kind, embedded=embedded)
    forward, casts = quiet.tape.peak(since), quiet.tape.alive("cast", since)
    returned = total(quiet.tape.size(x) for x in quiet.returned)
    ops = new_tape(seat, records=True)
    tape = ops.tape
    ops.rope_tables()
    since = len(tape.steps)
    held = [] if seat.reentrant else ops.hold_again(quiet.held_inputs)
    gradient, hidden = ops.hidden("output gradient"), ops.hidden("block input", embedded=embedded)
    sizes = [] if seat.reentrant else _waiting(quiet.tape, out)
    waiting = [tape.empty("waiting gradient", 1, size, "byte") for size in sizes]
    out = ops.run(kind, hidden)
    left = total(quiet.tape.size(one) for one in quiet.stored) + _behind(tape, ops.stored, since)
    tape.end_autocast()
    tape.drop(*waiting, *(() if seat.reentrant else ops.returned))
    if seat.reentrant:
        tape.hold(gradient)
    else:
        tape.drop(out)
        tape.unwind(max(node.step for node in tape.nodes if node.asks_for_saved))
        ops.forget_recomputation()
    tape.backward(out, gradient)
    kept = tape.size(hidden) + total(tape.size(one) for one in ops.handed_on)
    first = total(quiet.tape.size(one) for one in quiet.stored)
    return BlockPass(
        first,
        kept,
        casts,
        0,
        forward,
        tape.peak(since),
        tape.alive("gradient", since),
        True,
        (kept,),
        total(held),
        left=left,
        returned=returned,
    )


def _behind(tape: Tape, stored: list[Any], since: int) -> Size:
    """Bytes of tensors of this block that stay, and of what the nodes that made them keep: no backward runs those
    nodes, as a checkpoint's own graph has nodes for the same operators."""
    makers = {id(node.out): node for node in tape.nodes}
    found: dict[int, Any] = {id(one.storage): one.storage for one in stored if one.storage is not None}
    waiting, seen = list(stored), set[int]()
    while waiting:
        node = makers.get(id(waiting.pop()))
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        found |= {id(one.storage): one.storage for one in node.saved if one.storage is not None}
        waiting += node.inputs
    own = {id(storage) for sign, storage in tape.steps[since:] if sign > 0}
    return total(storage.size for key, storage in found.items() if key in own)


def _waiting(tape: Tape, out: Any) -> list[Size]:
    """Gradients that exist when backward first asks for a saved tensor of the block: an adapter on the last linear
    layer scales its gradient before. Runs the tape of the forward so far."""
    last = next(index for index in reversed(range(len(tape.nodes))) if tape.nodes[index].asks_for_saved)
    tape.nodes = tape.nodes[last + 1 :]
    start = len(tape.steps)
    gradient = tape.like(out, "output gradient")
    tape.backward(out, gradient)
    return [storage.size for storage in tape.living(start) if storage is not gradient.storage]


def _run_ends(seat: Seat) -> EndPass:
    ops = new_tape(seat, records=seat.records)
    tape = ops.tape
    ops.inputs()
    inputs = tape.alive()
    ops.rope_tables()
    tables = tape.alive() - inputs
    if seat.arch.ends.wide and seat.records and seat.tuning == "full":  # the embedding as it was before it is scaled
        tables = tables + _embedded(seat)
    mask, first_mask = _mask(ops), _mask(ops, first=True)
    since = len(tape.steps)
    hidden, ends = ops.hidden("last hidden states"), seat.arch.ends
    ops.weights = {weight.name: weight for block in seat.arch.root for weight in block.weights}
    low = ops.narrowed(hidden) if ends.wide else tape.hold(hidden)
    normed = ops.norm(ends.norm, ends.final, low) if ends.final else tape.hold(low)
    tape.drop(low)
    tape.drop(hidden)
    start = len(tape.steps)
    loss = ops.last_logits(normed) if seat.state == "generate" else _loss(ops, normed)
    ops.let_go()
    most, casts = _until_loss(ops, since, start)
    if not seat.records:
        return EndPass(inputs, tables, tape.size(hidden), most, casts, 0, 0, 0, 0, mask=mask, first_mask=first_mask,
                       front=_front(seat))  # fmt: skip
    tape.end_autocast()
    start = len(tape.steps)
    tape.backward(loss, tape.like(loss, "loss gradient"))
    gradient, embedding = _embedding(seat)
    return EndPass(
        inputs,
        tables,
        tape.size(hidden),
        most,
        casts,
        tape.peak(since, start),
        tape.alive("gradient", since),
        embedding,
        gradient,
        tape.alive("logits", since),
        _leaf(seat) + _dropped(seat),
        mask,
        _front(seat),
        first_mask,
    )


def _until_loss(ops: Model, since: int, start: int) -> tuple[Size, Size]:
    """(most alive, casts while the model's forward runs). What autocast alone holds of the blocks' weights is counted
    to the end, and so taken off what is alive behind it."""
    tape = ops.tape
    if ops.left is None:
        return tape.peak(since, start), tape.alive("cast", since)
    border, casts = ops.left
    return worst(tape.peak(since, start, border), tape.peak(since, border) - cached_casts(ops.seat)), casts


def cached_casts(seat: Seat) -> Size:
    """Copies of the blocks' weights that only autocast holds."""
    return stack(seat).all(lambda block: block.casts - block.saved_casts)


def _mask(ops: Model, *, first: bool = False) -> Size:
    masks = ops.masks(first=first)
    ops.drop(*masks)
    return total(ops.tape.size(mask) for mask in masks)


def _leaf(seat: Seat) -> Size:
    """The embedding's output, a leaf that stays beside its multiple, or beside the same with the tokens of images or
    with learned positions."""
    ends = seat.arch.ends
    changed = ends.scales == "model" or ends.moved or seat.sees
    if ends.embed_norm and seat.records and (seat.tuning == "full" or seat.inputs_require_grad):
        return _embedded(seat) + 2 * seat.tokens * BYTES["fp32"]  # what that norm keeps
    return _embedded(seat) if changed and seat.inputs_require_grad else 0


def _dropped(seat: Seat) -> Size:
    """The mask of the embedding's dropout."""
    return seat.tokens * seat.arch.hidden if seat.arch.ends.drops and seat.records else 0


def _front(seat: Seat) -> Size:
    """What is there while blocks run forward: the embedding, the learned positions that were added to it, the mask of
    its dropout, and a leaf where the model's forward holds what was made of it."""
    learned, width = seat.arch.ends.learned, seat.arch.hidden * BYTES[seat.param_dtype]
    rows = seat.tokens if learned == "own" else seat.seq_len if learned else 0
    return _embedded(seat) + rows * width + _dropped(seat) + (0 if seat.arch.ends.moved else _leaf(seat))


def _embedded(seat: Seat) -> Size:
    """What the embedding gives."""
    return seat.tokens * seat.arch.hidden * BYTES[seat.param_dtype]


def _loss(ops: Model, normed: Any) -> Any:
    if ops.seat.loss == "fused":
        return ops.fused_loss(normed)
    if ops.seat.recipe.scores:
        return ops.scored_loss(normed)
    return ops.kernel_loss(normed) if ops.seat.recipe.cross_entropy == "flash" else ops.full_loss(normed)


def _embedding(seat: Seat) -> tuple[Size, Size]:
    """(the embedding's gradient, most alive while it is made); a tied head has made the gradient already.

    Autograd adds the two: into the head's, unless that is a transposed view, as the plain product's is. Then the sum is
    a tensor of its own (torch/csrc/autograd/input_buffer.cpp, accumulate).
    """
    ops = Model(Tape(records=True, accumulates=seat.adds_gradients or seat.arch.tied), seat)
    out = ops.embed()
    start = len(ops.tape.steps)
    gradient = ops.tape.like(out, "hidden gradient")
    ops.tape.drop(out)
    ops.tape.backward(out, gradient)
    peak = ops.tape.peak(start)
    if seat.arch.tied and seat.tuning == "full" and seat.loss == "full" and not seat.autocast:
        peak = worst(peak, 2 * tied_gradient(seat))
    return ops.tape.alive("gradient", start), peak


def tied_gradient(seat: Seat) -> Size:
    """One gradient of the table that embedding and head share."""
    return seat.arch.vocab * seat.arch.hidden * BYTES[seat.weights_dtype]
