"""What embeddings for every layer add to a batch."""

from __future__ import annotations

from vramcast.memory.layer_inputs import layer_inputs
from vramcast.memory.passes import end_pass
from vramcast.memory.seat import Seat
from vramcast.memory.term import term
from vramcast.num import Size, worst


def _lives(seat: Seat) -> bool:
    if seat.engine is not None or seat.arch.measured is not None or not int(seat.arch.ends.layer_inputs):
        return False
    reads = seat.state == "generate" and seat.instant in ("prefill", "decode")
    return reads or seat.state in ("forward", "loss", "backward", "infer")


@term(
    "activations.layer_inputs",
    lives=_lives,
    source="the model's front on the tape; equal to a fake-tensor trace of the Hugging Face class",
)
def activations_layer_inputs(seat: Seat) -> Size:
    """Embeddings that every layer reads a slice of (Gemma 3n, Gemma 4 E2B and E4B).

    Tokens × layers × their width, made before the first layer and kept to the end of backward, with the fp32 copies of
    the norm behind their projection. In backward each layer's slice has a gradient as large as all of them, which is
    added to those that are there.
    """
    side = layer_inputs(seat)
    if seat.state in ("infer", "generate"):
        return side.whole
    if seat.state != "backward" or seat.instant == "loss":
        return side.kept + side.whole
    if seat.instant == "embedding":  # it is over before the gradient of the tokens' own embedding is made
        end = end_pass(seat)
        return worst(0, side.backward + end.hidden - end.embedding)
    later = seat.instant == "last block" or seat.inner
    return side.kept + side.whole + (side.whole if later and int(side.backward) else 0)
