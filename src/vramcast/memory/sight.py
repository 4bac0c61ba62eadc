"""What a tower makes of the images of a batch: its layers, front and projector as passes over the tape.

A tower runs before the language model's blocks and, where it learns, gets its gradient behind theirs. All images are
counted as one batch: so many rows of patches.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import structs

from vramcast.catalog.dtypes import BYTES
from vramcast.memory.pass_sizes import BlockPass
from vramcast.memory.passes import infer_block, train_block
from vramcast.memory.seat import Seat
from vramcast.memory.units import block_adapters, learns_to_see
from vramcast.models.layout import Blocks, Ends, Sight
from vramcast.models.sight import Patches
from vramcast.num import Size, total, whole, worst


class SightPass(NamedTuple):
    """Bytes of a tower, from pixels to the tokens that the language model is given."""

    pixels: Size
    """what the processor gives, fp32: alive as long as the batch is"""
    saved: Size
    """kept for backward"""
    forward: Size
    """most alive while it runs forward, what it saves among it"""
    backward: Size
    """most alive while it runs backward, less all gradients that its parameters get"""
    casts: Size
    """copies of its weights that autocast alone holds, until the forward is over"""
    features: Size
    """what the model's outputs hold: the tokens, the last hidden states where nothing saves them, and what layers keep
    that the tokens do not come from"""
    together: Size
    """the tokens of all images in one tensor, while the language model runs"""


def sight_pass(seat: Seat) -> SightPass:
    """The tower of a seat whose sequences have images."""
    return seat.once("sight", lambda: _run(seat))


def rows_of(sight: Sight, images: Size, sequences: Size) -> tuple[Size, Size]:
    """(images that attention sees apart, rows of each) of all sequences."""
    if not int(sight.image):
        return sequences, images * sight.patches
    return sequences * whole(images, sight.image), sight.image * sight.patches + sight.extra


def runs_on_images(block: Blocks) -> bool:
    """A block of a tower that has a forward."""
    return block.needs.startswith("images") and block.forward is not None


_PLACES = {"vision embedding": 0, "deepstack merger": 1}
"""what a tower does first; mergers of inner layers wait for backward until it is at those layers"""


class _Step(NamedTuple):
    """A block of a tower, so many times."""

    times: Size
    given: Size
    """bytes of its input"""
    work: BlockPass
    stays: bool
    """what it keeps waits for backward"""


def _run(seat: Seat) -> SightPass:
    sight = seat.arch.ends.sight
    assert sight is not None
    steps = [*_steps(seat, sight)]
    tables = _tables(seat, sight)
    learns = learns_to_see(seat)
    kept: Size = tables + _leaf(seat, sight)
    casts: Size = 0
    own_gradients: Size = 0
    forward: list[Size] = []
    backward: list[Size] = []
    for step in steps:
        work, before = step.work, step.times - 1
        own = work.saved + work.carried + work.saved_casts
        forward.append(kept + casts + before * (own + work.casts - work.saved_casts) + step.given + work.forward)
        own_gradients = own_gradients + step.times * work.gradients
        if step.stays:
            backward.append(kept + before * own + work.backward - own_gradients)
        casts = casts + step.times * (work.casts - work.saved_casts)
        if step.stays:
            kept = kept + step.times * own
    images, rows = rows_of(sight, seat.images, seat.sequences)
    deep = sum(block.count for block in seat.arch.layout.blocks if block.name == "deepstack merger")
    tokens = (1 + deep) * seat.sequences * seat.images * seat.arch.hidden * BYTES[seat.param_dtype]
    unread = [step for step in steps if not step.stays]
    dtype = _view(seat, sight, sight.width, images, rows).hidden_dtype
    hidden = 0 if steps[-1].work.keeps_input and not unread else images * rows * sight.width * BYTES[dtype]
    held = tokens + hidden + total(step.times * (step.work.saved + step.work.carried) for step in unread)
    pixels = images * (rows - sight.extra) * sight.pixels * BYTES["fp32"]
    saved = kept if learns else 0
    most = worst(*backward) if learns else 0
    return SightPass(pixels, saved, worst(*forward), most, casts, held, whole(tokens, 1 + deep) if sight.listed else 0)


def _leaf(seat: Seat, sight: Sight) -> Size:
    """What the convolution gives is a leaf where inputs are made to ask for gradients: it stays beside what is made of
    it."""
    front = next(block.forward for block in seat.arch.layout.blocks if runs_on_images(block))
    if not seat.inputs_require_grad or not (isinstance(front, Patches) and front.changes):
        return 0
    images, rows = rows_of(sight, seat.images, seat.sequences)
    return images * (rows - sight.extra) * sight.width * BYTES[seat.compute_dtype]


def _tables(seat: Seat, sight: Sight) -> Size:
    return 2 * seat.sequences * seat.images * sight.patches * sight.rotary * BYTES["fp32"]


def _steps(seat: Seat, sight: Sight) -> list[_Step]:
    found: list[_Step] = []
    full = learns = seat.tuning == "full"
    images, rows = rows_of(sight, seat.images, seat.sequences)
    seen = [block for block in seat.arch.layout.blocks if runs_on_images(block)]
    for block in sorted(seen, key=lambda block: _PLACES.get(block.name, 2)):
        front = block.name == "vision embedding"
        shared = front and seat.param_dtype == "fp32"  # pixels that are fp32 need no copy
        width = sight.pixels if front else sight.width
        view = _view(seat, sight, width, images, rows)
        trains = seat.records and (full or (learns and not front) or bool(int(block_adapters(seat, block))))
        if block.name == "vision layer" and seat.records and seat.recompute == "full":
            trains = learns = True  # `enable_input_require_grads` reaches the tower's embedding too
        given, count = 0 if shared else images * rows * width * BYTES[view.hidden_dtype], block.count
        if trains and block.name == "vision layer" and not learns:  # nothing before the first of these layers learns
            found.append(_Step(1, given, train_block(view, block, False), block.needs == "images"))
            learns, count = True, count - 1
        beside = block.name == "deepstack merger"
        again = view if block.name == "vision layer" else structs.replace(view, recompute="none")
        work = train_block(again, block, learns and not front) if trains else infer_block(view, block)
        work = work._replace(carried=0) if beside else work  # the next layer keeps what it is given
        learns = learns or trains
        if front and work.carried:  # the class token has no pixels
            work = work._replace(carried=0 if shared else whole(work.carried, rows) * (rows - sight.extra))
        found.append(_Step(count, given, work, trains and block.needs == "images"))
    return found


def _view(seat: Seat, sight: Sight, width: Size, images: Size, rows: Size) -> Seat:
    """The seat as a tower sees it: rows of patches for tokens, its own width, no cache."""
    narrow = sight.narrow and width == sight.width
    ends = Ends(rotary=sight.rotary, own_positions=True, wide_tables=True, narrow=narrow, sight=sight)
    arch = structs.replace(seat.arch, hidden=width, layout=structs.replace(seat.arch.layout, ends=ends))
    recipe = structs.replace(seat.recipe, outputs_kept=False)
    alone = {"caches": False, "images": 0, "sees": False, "masked": frozenset[int]()}
    return structs.replace(seat, arch=arch, sequences=images, seq_len=rows, recipe=recipe, memo={}, **alone)

