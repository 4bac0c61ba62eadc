"""What a forward makes and a backward needs."""

from __future__ import annotations

from vramcast.catalog.dtypes import BYTES
from vramcast.memory.pass_sizes import BlockPass, EndPass, Stack
from vramcast.memory.passes import end_pass, sparse_end_pass, stack, tied_gradient
from vramcast.memory.promotion import promoted
from vramcast.memory.seat import Seat
from vramcast.memory.sight import sight_pass
from vramcast.memory.term import Interval, term
from vramcast.memory.terms.cache import kept
from vramcast.num import Size, at_most, total, worst

_TRACED = "the block's program on the tape; equal to a fake-tensor trace of the Hugging Face class"


def _in_step(seat: Seat) -> bool:
    return seat.state in ("forward", "loss", "backward")


def _without_grad(seat: Seat) -> bool:
    return seat.engine is None and seat.state in ("infer", "generate")


def _has_inputs(seat: Seat) -> bool:
    return _in_step(seat) or _without_grad(seat) or (seat.trains and seat.sees and seat.state == "step")


@term("inputs", lives=_has_inputs, source=_TRACED)
def inputs(seat: Seat) -> Size:
    """Token ids and the attention mask (8 bytes a token each), the pixels of images in fp32 and, while blocks run, the
    rope tables. Small, but for eager attention's mask of every pair of tokens: 2 bytes × micro-batch × length², 4 with
    fp32 weights."""
    pixels = sight_pass(seat).pixels if seat.sees else 0
    if seat.state == "step":  # the loop has its batch until it takes the next one: ids are nothing beside pixels
        return pixels
    end = end_pass(seat)
    alone = seat.state == "backward" and seat.instant == "last block" and not seat.reentrant
    mask = (end.first_mask if alone else end.mask) if _masked(seat) else 0
    if seat.instant in ("embedding", "first token"):
        return end.inputs + pixels + (mask if seat.reentrant else 0)
    forward = seat.state == "forward" or (_without_grad(seat) and seat.instant in ("prefill", "last block"))
    idle = seat.tokens * seat.seq_len if seat.arch.ends.idle_mask and forward else 0
    return end.inputs + pixels + end.tables + mask + idle


def _masked(seat: Seat) -> bool:
    """Checkpoints keep the mask for the recomputation, the reentrant kind until the graph is gone; the backward of a
    plain block does not need it."""
    blocks = _without_grad(seat) and seat.instant in ("last block", "prefill", "decode")
    runs_forward = seat.state == "forward" or blocks
    ends = seat.arch.ends
    asked = ends.fills or (ends.masks == "biased" and not seat.autocast)  # backward needs it, of plain blocks too
    if asked and seat.records and seat.instant != "embedding":
        return True
    return runs_forward or (seat.recompute == "full" and seat.records)


def _blocks_done(seat: Seat) -> bool:
    """The last block of backward runs, or nothing after it: what it needs is counted with it."""
    return seat.state == "backward" and seat.instant in ("last block", "embedding")


def _embedded(seat: Seat) -> Size:
    """What the embedding gives."""
    return seat.tokens * seat.arch.hidden * BYTES[seat.param_dtype]


def _saved_tensors(seat: Seat) -> list[tuple[Size, Size]]:
    layers = stack(seat)
    if not layers.is_mixed:
        return [(seat.arch.layers, size) for size in layers.last.tensors]
    return [(1, size) for kind in layers.order for size in layers.kinds[kind].tensors]


@term(
    "activations.saved",
    lives=lambda seat: seat.trains and _in_step(seat) and not _blocks_done(seat),
    source=_TRACED,
    tensors=_saved_tensors,
    kept=lambda seat: seat.recompute == "none",
)
def activations_saved(seat: Seat) -> Size:
    """What backward will need, of all layers: kept from the forward on and freed layer by layer.

    Grows with micro-batch × length × layers, and does not shrink with LoRA except for the inputs of frozen layers. With
    `recompute=full` only each block's input stays, and the block runs a second time in backward.
    """
    layers, end = stack(seat), end_pass(seat)
    first = layers.first
    if seat.instant == "first block" and seat.state == "forward":
        return end.front
    if seat.state == "forward":  # the last block is running: what the ones before it keep, and its input
        last_input = layers.last.carried if layers.last.keeps_input else end.hidden
        own = first.carried if seat.arch.ends.moved else 0  # else it is what the embedding gave
        returned = layers.most(_returned) if seat.recompute == "full" else 0
        return end.front + own + first.saved + first.cached + layers.inner(_kept_and_cached) + last_input + returned
    if seat.instant == "first block":  # backward begins with the last layer, which counts its own
        return end.leaf + first.carried + first.saved + layers.inner(_kept)
    cached = layers.all(lambda block: block.cached) if seat.state == "loss" else 0
    return end.leaf + first.carried + first.saved + layers.later(_kept) + cached


def _returned(block: BlockPass) -> Size:
    return block.returned


def _kept_and_cached(block: BlockPass) -> Size:
    return _kept(block) + block.cached


def _kept(block: BlockPass) -> Size:
    return block.saved + block.carried


def _nodes_hold(seat: Seat) -> bool:
    """Int8 products keep their input in the graph itself: not where a reentrant checkpoint makes no graph."""
    packs = seat.packing is not None and seat.packing.product == "int8"
    within = seat.recompute == "full" and seat.reentrant
    first = seat.state == "forward" and seat.instant == "first block"
    return packs and seat.trains and _in_step(seat) and not within and not first


@term("activations.held", lives=_nodes_hold, source=_TRACED)
def activations_held(seat: Seat) -> Size:
    """Inputs of 8-bit products (LLM.int8()), which their nodes hold until the whole graph is freed, after backward.

    Recomputation does not free them, unless it is reentrant: bitsandbytes keeps them beside what autograd saves. It is
    why 8-bit training needs more than 4-bit training.
    """
    layers = stack(seat)
    if seat.state == "forward" or seat.instant == "first block":  # the last block counts its own while it runs
        return layers.first.held + layers.inner(_held)
    return layers.later(_held) if seat.instant == "last block" else layers.all(_held)


def _held(block: BlockPass) -> Size:
    return block.held


def _tied_waits(seat: Seat) -> bool:
    """Autograd adds a tied weight's two gradients to each other before it adds them to what is there.

    Measured rows have the one that waits among them.
    """
    shared = seat.arch.tied and seat.tuning == "full" and not seat.sharded and seat.arch.measured is None
    return shared and seat.keeps_gradients and seat.state == "backward"


def _block_runs(seat: Seat) -> bool:
    if _without_grad(seat):
        return seat.instant in ("last block", "prefill", "decode")
    if seat.state == "forward":
        return seat.instant == "last block"
    return seat.state == "backward" and seat.instant != "loss"


@term(
    "activations.block",
    lives=_block_runs,
    source=_TRACED,
)
def activations_block(seat: Seat) -> Size:
    """The working set of the one block that is running: MLP products, attention inputs, fp32 copies in norms.

    With `recompute=full` it is a whole block's activations at once, during backward. Without, it is what backward makes
    for a moment. Freed before the next block. With accumulation, a tied head's new gradient waits beside it until the
    embedding's is there.
    """
    layers, end = stack(seat), end_pass(seat)
    if _without_grad(seat):  # beside the block its input and the embedding's output, which the model's forward holds
        return end.front + end.hidden + layers.most(_forward) + layers.most(_returned)
    waits = tied_gradient(seat) if _tied_waits(seat) else 0
    match seat.instant:
        case "first block" if seat.state == "backward":
            return (_inner_backward(layers) if seat.inner else _backward(layers.last)) + waits
        case "last block" if seat.state == "backward":
            return _backward(layers.first) + layers.over(1, len(layers.order), _left) + waits + end.leaf
        case "embedding":
            return end.embedding - end.embedding_gradient + waits + (_at_leaf(seat) if seat.inputs_require_grad else 0)
        case _:
            return _last_forward(layers)


def _at_leaf(seat: Seat) -> Size:
    """What is beside the gradient of what the embedding gave: that itself, and the gradient behind its dropout."""
    return end_pass(seat).leaf + (_embedded(seat) if seat.arch.ends.drops else 0)


def _forward(block: BlockPass) -> Size:
    return block.forward - block.casts


def _backward(block: BlockPass) -> Size:
    return block.backward - block.gradients


def _left(block: BlockPass) -> Size:
    return block.left


def _last_forward(layers: Stack) -> Size:
    """The last block's, or an earlier one's of another kind that needs more beside what is kept by then."""
    if not layers.is_mixed:
        return _forward(layers.last)
    length = len(layers.order)

    def at(place: int, block: BlockPass) -> Size:
        casts = layers.over(place + 1, length, lambda later: later.casts)
        return _forward(block) - layers.over(place, length - 1, _kept) - casts

    first = at(0, layers.first) - _kept(layers.first)
    return worst(_forward(layers.last), first, *(at(place, block) for place, block in layers.places(inner=True)))


def _inner_backward(layers: Stack) -> Size:
    """The worst of the blocks between the first and the last, beside what there is when the last one is at work."""
    length = len(layers.order)

    def at(place: int, block: BlockPass) -> Size:
        learned = layers.over(place, length, lambda later: later.gradients) - layers.last.gradients
        gone = layers.over(place, length - 1, _kept) + layers.over(place, length - 1, _saved_casts)
        return _backward(block) + learned - gone + layers.over(place + 1, length, _left)

    return worst(0, *(at(place, block) for place, block in layers.places(inner=True)))


@term(
    "autocast.weights",
    lives=lambda seat: seat.caches_casts and (_in_step(seat) or _without_grad(seat)),
    source="aten/src/ATen/autocast_mode.cpp: copies of fp32 weights that train are cached until the region ends",
)
def autocast_weights(seat: Seat) -> Size:
    """Low-precision copies of fp32 weights under torch.autocast.

    Two bytes a parameter, alive at the end of the forward, beside the fp32 weights; scoring and generation make them
    too. Gone in backward if blocks are recomputed. Loading in bf16 avoids them.
    """
    layers, end = stack(seat), end_pass(seat)
    if _without_grad(seat):
        return layers.all(_casts) + (end.casts if _head_runs(seat) else 0)
    if seat.state == "forward":
        return layers.all(_casts)
    if seat.state == "loss":
        return layers.all(_casts) + end.casts
    if seat.instant == "loss":
        return layers.all(_saved_casts)
    if seat.instant == "first block":
        return layers.first.saved_casts + layers.inner(_saved_casts)
    return 0


def _casts(block: BlockPass) -> Size:
    return block.casts


def _saved_casts(block: BlockPass) -> Size:
    return block.saved_casts


def _head_runs(seat: Seat) -> bool:
    if _without_grad(seat):
        return seat.instant in ("head", "first token", "decode")
    return seat.state == "loss" or (seat.state == "backward" and seat.instant == "loss")


@term(
    "logits",
    lives=_head_runs,
    source="transformers ForCausalLMLoss; trl/kernels/chunked_logprob.py (since TRL 1.15)",
)
def logits(seat: Seat) -> Size | Interval:
    """Head and loss: the matrix of tokens × vocabulary and what the loss makes of it.

    The largest cause of out-of-memory reports. The plain loss keeps 2 + 4 bytes a logit and needs 12 to 14 in backward.
    A fused head works in tiles and needs almost none, but sums the head's gradient in fp32: 4 (+2) bytes × vocabulary ×
    width, whatever the batch. In generation: the last position only. Entropy in an old-log-probability pass adds
    nothing as one compiled kernel, and three fp32 tensors of that size when it is run eagerly, or of a chunk's.
    """
    if seat.instant == "decode":  # the last token's fp32 logits, while the next one is computed
        return seat.sequences * seat.arch.vocab * BYTES["fp32"]
    point = _head(seat, end_pass(seat))
    scores = seat.phase == "score.old" and seat.loss == "full"  # a fused head has the entropy in its chunks
    if scores and seat.entropy == "eager":
        return point + _ENTROPY * seat.tokens * seat.arch.vocab
    if scores and seat.entropy == "chunked":  # the compiler makes a kernel for each number of chunks, up to a limit
        most = point + _ENTROPY * at_most(seat.tokens, seat.entropy_chunk) * seat.arch.vocab
        return Interval(point, most, most)
    if seat.loss == "fused" and seat.labels_unknown and seat.state != "generate":
        return Interval(_head(seat, sparse_end_pass(seat)), point, point)
    return point


_ENTROPY = 12
"""bytes a logit: softmax, product and fp32 copy of verl/utils/torch_functional.py, entropy_from_logits, run eagerly"""


def _head(seat: Seat, end: EndPass) -> Size:
    return end.backward - end.gradients if seat.state == "backward" else end.loss - end.casts


def _outputs_kept(seat: Seat) -> bool:
    """Nothing but the loop needs the model's outputs any more."""
    over = seat.state == "step" or (seat.state == "backward" and seat.instant != "loss")
    return over and seat.recipe.outputs_kept


def _cached(seat: Seat) -> Size:
    """Keys and values of all layers that backward is not done with. Values are what the product gave; rotary positions
    in the dtype of weights widen keys."""
    value = seat.compute_dtype if seat.autocast else seat.param_dtype
    widths = {"key": BYTES[promoted(seat.param_dtype, value)], "value": BYTES[value]}
    kinds = [(kind, set(kind.layers) - {0} if seat.instant == "last block" else kind.layers) for kind in kept(seat)]
    return seat.tokens * total(
        len(layers) * part.axis.size * widths.get(part.name, BYTES[value])
        for kind, layers in kinds
        for part in kind.parts
        if part.keeps == "token"
    )


@term(
    "outputs",
    lives=lambda seat: seat.trains and _outputs_kept(seat),
    source="transformers modeling_outputs.py CausalLMOutputWithPast; peft_model.py: enable_input_require_grads",
)
def outputs(seat: Seat) -> Size:
    """What the model returned and the training loop still holds: logits, and without recompute keys and values.

    `outputs = model(**batch)` keeps them until the next batch, through backward and step, where nothing needs them.
    Transformers makes a cache in training too, unless blocks are recomputed or `use_cache=False`. The graph stays with
    them: under adapters and recompute the embedded tokens are a leaf of it and keep their gradient. Keep the loss only.
    """
    end = end_pass(seat)
    over = seat.instant in ("embedding", "update")
    if not seat.caches_in_step:
        return end.logits + (2 * _embedded(seat) if over and seat.inputs_require_grad else 0)
    done = 0 if seat.instant == "first block" else _cached(seat)  # of the others it is saved
    return end.logits + done
