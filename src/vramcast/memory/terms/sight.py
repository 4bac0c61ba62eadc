"""What a vision tower adds to a batch with images."""

from __future__ import annotations

from vramcast.memory.passes import end_pass, stack
from vramcast.memory.seat import Seat
from vramcast.memory.sight import sight_pass
from vramcast.memory.term import term
from vramcast.num import Size, worst


def _lives(seat: Seat) -> bool:
    if not seat.sees or seat.engine is not None:
        return False
    reads = seat.state == "generate" and seat.instant == "prefill"
    return reads or seat.state in ("forward", "loss", "backward", "infer")


@term(
    "activations.vision",
    lives=_lives,
    source="the tower's blocks on the tape; equal to a fake-tensor trace of the Hugging Face class",
)
def activations_vision(seat: Seat) -> Size:
    """What the vision tower keeps and makes of the images of a batch, before the language model's first block.

    Where the tower learns (full tuning, or adapters in its layers) it keeps a block's activations for each of its
    layers until the end of backward: an image is many patches, four for each token in Qwen's towers, sixteen in Gemma
    3's. Frozen, it needs room for one of its blocks, before the language model needs its own. The model's outputs hold
    the image's tokens. `recompute=full` keeps one input a layer here too.
    """
    tower = sight_pass(seat)
    if seat.state in ("infer", "generate"):
        most = stack(seat).most(lambda block: block.forward) if seat.instant != "head" else tower.forward
        return worst(tower.features + tower.together, tower.forward - end_pass(seat).hidden - most)
    if seat.state == "backward":
        held = tower.features if seat.recipe.outputs_kept else 0
        return held + (_last(seat, tower.backward) if seat.instant == "embedding" else tower.saved)
    if seat.state == "forward" and seat.instant == "last block":
        layers = stack(seat)
        language = layers.first.saved + layers.inner(lambda block: block.saved + block.carried) + layers.last.forward
        held = tower.saved + tower.casts + tower.features + tower.together
        return worst(held, tower.forward - language)
    return tower.saved + tower.casts + tower.features


def _last(seat: Seat, most: Size) -> Size:
    """The tower's backward is over before the embedding's gradient is made: what this instant counts for that is not
    there yet, but for the gradient that the embedding will be given."""
    end = end_pass(seat)
    new = 0 if seat.keeps_gradients or seat.sharded else end.embedding_gradient
    return worst(0, most + end.hidden - new - (end.embedding - end.embedding_gradient))
