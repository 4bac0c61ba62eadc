"""What several data-parallel ranks need beside their shares: gathered units, buckets, reduce buffers, NCCL."""

from __future__ import annotations

from vramcast.catalog.dtypes import BYTES
from vramcast.memory.communicator import communicator
from vramcast.memory.passes import end_pass, stack
from vramcast.memory.seat import Seat
from vramcast.memory.term import Interval, term
from vramcast.memory.units import (
    gathered_block,
    gathered_layers,
    gathered_root,
    learned_parameters,
    learns_whole,
    reduced_block,
    reduced_root,
    trainable_dtype,
    trainable_parameters,
    unit_gradients,
)
from vramcast.num import Size, shard, worst

_FSDP2 = "torch/distributed/fsdp/_fully_shard: _fsdp_param_group.py, _fsdp_collectives.py; equal to a fake-tensor trace"


@term(
    "ddp.buckets",
    lives=lambda seat: seat.shard == "ddp" and seat.trains and seat.state != "absent",
    source="torch/nn/parallel/distributed.py: gradient_as_bucket_view defaults to False",
)
def ddp_buckets(seat: Seat) -> Size:
    """DDP's flat copy of all trainable gradients.

    Gradients are stored twice: in `.grad` and in the buckets that are reduced. Small with LoRA. FSDP has none.
    """
    return trainable_parameters(seat) * BYTES[trainable_dtype(seat)]


@term(
    "fsdp.gathered",
    lives=lambda seat: seat.sharded and seat.state in ("forward", "loss", "backward", "infer", "generate"),
    basis="derived",
    source=_FSDP2 + "; torch/distributed/fsdp/_runtime_utils.py, _post_forward, _get_handle_to_prefetch",
)
def fsdp_gathered(seat: Seat) -> Size:
    """Whole weights of the units at work, in the dtype of the forward.

    The root unit (embedding, head, norm) is gathered first and stays while blocks run; of the blocks one is in use and
    with FSDP2 the buffer of one more is alive. FSDP2 copies a gathered buffer out into parameters and keeps it until it
    gathers the next unit, so the root exists twice when the first block is gathered. FSDP1 frees a block before it
    gathers the next, and in backward gathers one ahead, unless blocks are recomputed by reentrant checkpoints, whose
    forward leaves no hook to do it. `reshard=false` keeps every block from the forward to its backward. Without a wrap
    policy the whole model is one unit: nothing is saved, and with FSDP2 it is there twice until the loss is.
    """
    root, block = gathered_root(seat), gathered_block(seat)
    if seat.state == "generate":
        return root * BYTES[seat.param_dtype]
    blocks = _all_gathered(seat, block) if not seat.reshards else _blocks_gathered(seat) * block
    return (_roots_gathered(seat) * root + blocks) * BYTES[seat.param_dtype]


def _roots_gathered(seat: Seat) -> int:
    """FSDP2 frees what it gathered before it reduces gradients, FSDP1 when they are in its flat tensor."""
    if seat.instant == "embedding":
        return 1 if seat.shard == "fsdp1" else 0
    runs_forward = seat.state in ("forward", "loss", "infer")
    twice = seat.whole_unit or (seat.state == "forward" and seat.instant == "first block")
    return 2 if seat.shard == "fsdp2" and runs_forward and twice else 1


def _blocks_gathered(seat: Seat) -> Size:
    """Blocks whose buffers are there: the one at work, and the one before or behind it."""
    if seat.instant == "embedding":
        return 0
    at_work = 0 if seat.state == "loss" or seat.instant in ("head", "loss") else 1
    if seat.shard == "fsdp2":
        return at_work + 1
    hooked = not (seat.recompute == "full" and seat.reentrant)
    ahead = seat.state == "backward" and seat.instant != "last block" and hooked
    return at_work + (1 if ahead else 0)


def _all_gathered(seat: Seat, block: Size) -> Size:
    """Blocks gathered and not freed before their own backward; in the forward the last buffer of FSDP2 beside them."""
    if seat.instant == "embedding":
        return 0
    if seat.state == "backward":
        return block if seat.instant == "last block" else gathered_layers(seat)
    buffers = 1 if seat.shard == "fsdp2" else 0
    return (block if seat.instant == "first block" else gathered_layers(seat)) + buffers * block


@term(
    "fsdp.held_inputs",
    lives=lambda seat: seat.holds_inputs and seat.state == "backward" and seat.instant in ("last block", "embedding"),
    source="torch/distributed/fsdp/_runtime_utils.py, _register_post_backward_reshard_only_hook; "
    "torch/autograd/graph.py, register_multi_grad_hook",
    basis="derived",
)
def fsdp_held_inputs(seat: Seat) -> Size:
    """Two hidden states for every block that backward is done with, which FSDP 1 does not let go of.

    The weights of a block under adapters are frozen, so FSDP 1 frees what it gathered by a hook on the block's inputs.
    The hook refers to the input's own gradient node, a circle that lasts until backward ends. Under reentrant recompute
    the input is a leaf: it stays, and its gradient with it. With long sequences that is more than the logits.
    `recompute.reentrant=false` or FSDP 2 does without. Where the whole model is one unit its inputs are ids, which have
    no gradient, and nothing is held.
    """
    layers, hidden = seat.arch.layers, end_pass(seat).hidden
    if seat.instant == "embedding":  # all inputs; the gradient of the first is what the embedding gets
        return (2 * layers - 1) * hidden
    # The running block has its own input; the gradient of its output is that of the next block's input.
    return (layers - 1) * hidden + worst(layers - 2, 0) * hidden


def _has_whole_gradients(seat: Seat) -> bool:
    """The last backward reduces what was kept, so the step finds shares only."""
    return seat.records and seat.state != "step" and (seat.state == "backward" or seat.keeps_gradients)


@term(
    "gradients.unsharded",
    lives=lambda seat: seat.sharded and _has_whole_gradients(seat),
    basis="derived",
    source=_FSDP2 + "; accelerate no_sync during accumulation",
)
def gradients_unsharded(seat: Seat) -> Size:
    """Whole gradients that are not reduced yet.

    The block at work and the root (whose head comes first and whose embedding comes last) hold whole gradients until
    they are reduced. With gradient accumulation and no reduction in between (the default of Hugging Face, TRL, axolotl)
    every rank keeps the gradients of the whole model: 2 bytes a parameter that sharding does not divide. Without a wrap
    policy all gradients are there before the first is reduced; under FSDP1 those of frozen weights too.
    """
    kept = _learning(seat) * BYTES[_whole_dtype(seat)] if seat.keeps_gradients else 0
    if seat.state != "backward":
        return kept
    if seat.whole_unit:
        return kept + (_unit_gradients(seat) if _new_beside_kept(seat) else 0)
    if seat.keeps_gradients:
        return kept
    end = end_pass(seat)
    if seat.instant == "embedding":
        return end.gradients + end.embedding_gradient
    return end.gradients + (0 if seat.instant == "loss" else stack(seat).most(lambda block: block.gradients))


def _learning(seat: Seat) -> Size:
    return gathered_root(seat) if learns_whole(seat) else learned_parameters(seat)


def _new_beside_kept(seat: Seat) -> bool:
    """FSDP2 adds to what is kept where it is of one dtype; the views of FSDP1 have new gradients each time."""
    return not seat.keeps_gradients or seat.flat_model or seat.reduce_dtype != seat.param_dtype


def _unit_gradients(seat: Seat) -> Size:
    return unit_gradients(seat, seat.instant) * BYTES[seat.param_dtype]


def _whole_dtype(seat: Seat) -> str:
    return seat.reduce_dtype if seat.shard == "fsdp2" else seat.param_dtype


@term(
    "fsdp.reduce",
    lives=lambda seat: (
        seat.sharded and seat.records and seat.state == "backward" and (seat.whole_unit or not seat.keeps_gradients)
    ),
    basis="derived",
    source=_FSDP2 + "; torch/distributed/fsdp/_flat_param.py, _get_unflat_views; two ranks on CPU under the profiler",
)
def fsdp_reduce(seat: Seat) -> Size:
    """The input of the reduce-scatter: a flat copy of a unit's gradients in the dtype they are reduced in.

    The last block's copy is alive while the next one runs. The root's comes at the very end, with embedding and head:
    for small models with large vocabularies that sets the peak. Under FSDP1 it is made while the gathered weights are
    still there. Without a wrap policy it is as large as the model.
    """
    if seat.instant == "last block":
        return reduced_block(seat) * BYTES[seat.reduce_dtype]
    return _root_copy(seat) if seat.instant == "embedding" else 0


def _root_copy(seat: Seat) -> Size:
    """FSDP1 makes the flat gradient of its views' first; then it frees the weights and the views' gradients, casts, and
    reduces into a share."""
    root, wide = reduced_root(seat), BYTES[seat.reduce_dtype]
    if seat.shard == "fsdp2":
        return root * wide
    flat = root * BYTES[seat.param_dtype]
    if seat.reduce_dtype == seat.param_dtype:
        return flat
    return worst(flat, (root + shard(root, seat.ranks)) * wide - flat)


@term(
    "nccl",
    lives=lambda seat: seat.leads and seat.communicates and seat.engine is None,
    counter="outside",
    basis="calibrated",
    source="measured buffers by ranks: NVIDIA/nccl issues 864, 964, 1685",
)
def nccl_buffers(seat: Seat) -> Interval:
    """NCCL's channels and buffers of one communicator, outside PyTorch's counters.

    Grows with the channels to every peer: some hundred MiB on two GPUs, one to two GiB on eight. More communicators
    (tensor, pipeline, expert parallel) add more; an all-to-all adds several GiB.
    """
    return communicator(seat.gpus)
