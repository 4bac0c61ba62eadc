"""The numbers of a pass: what one block, or the two ends of a model, keep and hold at most."""

from __future__ import annotations

from typing import NamedTuple

from vramcast.num import Size


class BlockPass(NamedTuple):
    """Bytes of one block."""

    saved: Size
    """kept for backward, inside the block"""
    carried: Size
    """its input, when that is kept for backward; 0 if nothing needs it"""
    casts: Size
    """low-precision weight copies alive until the forward ends"""
    saved_casts: Size
    """those that the graph keeps until the block's backward"""
    forward: Size
    """most that its forward adds to what was alive before"""
    backward: Size
    """most alive in its backward: saved tensors, input, recomputation and its gradients counted"""
    gradients: Size
    """gradients of its parameters"""
    keeps_input: bool = False
    """whether `carried` is anything: a mode"""
    tensors: tuple[Size, ...] = ()
    """the tensors that `saved` and `carried` are the sum of"""
    held: Size = 0
    """what nodes hold themselves, until the whole graph goes: not part of `saved`"""


class EndPass(NamedTuple):
    """Bytes before the first block and behind the last one."""

    inputs: Size
    """ids and mask: alive until backward is over"""
    tables: Size
    """rope tables: alive until the blocks are done"""
    hidden: Size
    """one hidden state of all tokens, as the embedding gives it"""
    loss: Size
    """most alive from the head to the loss, the final norm's saved tensors counted"""
    casts: Size
    """the head's low-precision copy, part of `loss`"""
    backward: Size
    """most alive until the gradient of the hidden states is complete, gradients counted"""
    gradients: Size
    """gradients of head and final norm"""
    embedding: Size
    """most alive while the embedding's gradient is made"""
    embedding_gradient: Size
    logits: Size = 0
    """logits that the caller still holds when the gradient of the hidden states is complete"""
    leaf: Size = 0
    """what was made before the blocks and stays until backward is over, beside the first one's input"""
    mask: Size = 0
    """what eager attention adds to scores: there while blocks run forward, with checkpoints until they are done"""
    front: Size = 0
    """what was made before the blocks and is there while they run forward"""
