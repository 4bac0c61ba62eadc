"""Views side by side on one memory, and what puts them together again: how latent attention is made of its parts."""

from __future__ import annotations

from vramcast.memory.attention import Attention
from vramcast.memory.tape import Tensor
from vramcast.models.ops import Rotation
from vramcast.num import Size, whole


class Views(Attention):
    """`Attention` with views of several widths, and rotary positions of a part of a head."""

    def split(self, x: Tensor, *widths: Size, by_head: bool = False) -> tuple[Tensor, ...]:
        """Views of one memory side by side; one operator, which waits for the gradients of all and puts them together.
        What was seen head by head (`by_head`) is then copied into rows.

        Source: torch/csrc/autograd/FunctionsManual.cpp, split_with_sizes_backward.
        """
        tape = self.tape
        first, *others = (Tensor(x.rows, width, x.dtype, tape.hold(x).storage) for width in widths)

        def backward(gradient: Tensor) -> list[Tensor | None]:
            together = tape.like(x, "gradients side by side")
            for other in others:
                if other.gradient is not None:
                    tape.drop(other.gradient)
                    other.gradient = None
            if not by_head:
                return [together]
            rows = tape.like(x, "gradient by row")
            tape.drop(together)
            return [rows]

        tape.node(first, [x], [], backward)
        for other in others:
            other.requires_grad = first.requires_grad
        return first, *others

    def slices(self, x: Tensor, *widths: Size) -> tuple[Tensor, ...]:
        """Views of one memory, each an operator of its own: the gradient of each is a tensor of the whole.

        Source: torch/csrc/autograd/FunctionsManual.cpp, slice_backward_wrapper.
        """
        tape = self.tape
        views = tuple([Tensor(x.rows, width, x.dtype, tape.hold(x).storage) for width in widths])
        for view in views:
            tape.node(view, [x], [], lambda gradient: [tape.like(x, "slice gradient")])
        return views

    def join(self, *parts: Tensor) -> Tensor:
        """`cat` of a head's parts; their gradients are views."""
        tape = self.tape
        width = sum(part.width for part in parts)
        out = tape.empty("joined", parts[0].rows, width, parts[0].dtype)
        return tape.node(out, parts, [], lambda gradient: [tape.view(gradient) for _ in parts])

    def fill(self, own: Tensor, shared: Tensor, count: Size) -> Tensor:
        """A new tensor of `count` heads into which two parts are copied, the second one the same for all heads. Each
        copy gives the gradient of what was there before, whole.

        Source: torch/csrc/autograd/functions/tensor.cpp, CopySlices.
        """
        tape, width = self.tape, count * shared.width
        seen = Tensor(own.rows, width, shared.dtype, tape.hold(shared).storage)
        tape.node(seen, [shared], [], lambda gradient: [tape.like(shared, "gradient of all heads")])
        out = tape.empty("filled", own.rows, own.width + width, own.dtype)

        def copied(part: Tensor, first: bool) -> list[Tensor | None]:
            before = tape.like(out, "gradient before the copy")
            gradient = tape.like(part, "gradient of the copy")
            if first:
                tape.drop(before)
                return [gradient]
            tape.drop(tape.like(part, "zeros"))
            return [before, gradient]

        half = Tensor(out.rows, out.width, out.dtype, tape.hold(out).storage)
        tape.node(half, [own], [], lambda gradient: copied(own, True))
        tape.node(out, [half, seen], [], lambda gradient: copied(seen, False))
        self.drop(seen, half)
        return out

    def turn(self, x: Tensor, how: Rotation) -> Tensor:
        """Rotary positions of a head or of a part of it: a sum with a rotated copy, a product of each half or of every
        second element with each table, or a product of complex numbers."""
        if how == "halves":
            return self.rope(x)
        return self._turned_complex(x) if how == "complex" else self._turned_pairs(x, how == "chunks")

    def _turned_pairs(self, x: Tensor, chunks: bool) -> Tensor:
        """Both halves of the elements are views; each half of the result is a sum of two products. The gradients of
        chunks are put together, those of slices added.

        Source: transformers/models: deepseek_v3/modeling_deepseek_v3.py, apply_rotary_pos_emb_interleave;
        gpt_oss/modeling_gpt_oss.py, _apply_rotary_emb.
        """
        tape, tables = self.tape, self.tables
        assert tables is not None
        half = whole(x.width, 2)

        def halves(name: str, count: int) -> list[Tensor]:
            return [tape.empty(name, x.rows, half, x.dtype) for _ in range(count)]

        parts: list[Tensor] = []
        for _ in range(2):
            products = halves("product with a table", 2)
            parts += halves("turned half", 1)
            self.drop(*products)
        out = tape.like(x, "turned")
        self.drop(*parts)

        def backward(gradient: Tensor) -> list[Tensor | None]:
            sums = halves("half gradient", 2)
            products = halves("half gradient", 2)
            tape.drop(*products)
            result = tape.like(x, "gradient of a half")
            if chunks:
                tape.drop(*sums)
                return [result]
            tape.drop(sums[0])
            other = tape.like(x, "gradient of a half")
            tape.drop(sums[1], other)
            return [result]

        return tape.node(out, [x], list(tables), backward)

    def _turned_complex(self, x: Tensor) -> Tensor:
        """In fp32, two elements a complex number, times a table of them.

        Source: transformers/models/deepseek_v2/modeling_deepseek_v2.py, apply_rotary_emb.
        """
        tape, tables = self.tape, self.tables
        assert tables is not None
        wide = self.cast(x, "fp32", "fp32 copy")
        product = tape.like(wide, "complex product")
        tape.node(product, [wide], list(tables), lambda gradient: [tape.like(wide, "complex gradient")])
        self.drop(wide)
        out = self.cast(product, x.dtype, "turned")
        self.drop(product)
        return out

    def remember(self, *latents: Tensor) -> tuple[Tensor, ...]:
        """The cache's compressed keys of all tokens so far, from which those of every head are made again."""
        first, second = self.cache(*latents)
        seat = self.seat
        if not (seat.caches and seat.state == "generate"):
            return first, second
        rows = seat.sequences * seat.cached_len
        return tuple(self.tape.parameter(rows, x.width, x.dtype, trains=False) for x in (first, second))
