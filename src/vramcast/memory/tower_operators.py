"""What towers do beside the operators of a language model: patches, positions, merging, attention over parts."""

from __future__ import annotations

from math import prod

from vramcast.memory.every_expert import EveryExpert
from vramcast.memory.tape import Tensor
from vramcast.models.ops import Heads
from vramcast.num import Size, whole


class TowerOperators(EveryExpert):
    """`EveryExpert` with the operators of towers."""

    def convolve(self, name: str, pixels: Tensor) -> Tensor:
        """A convolution that reads every pixel once is a product with rows, each of a patch's pixels, cast before to
        the dtype of the weight (transformers: `pixel_values.to(dtype=target_dtype)`)."""
        self.scope("")
        weight = self.weights[f"{name}.weight"]
        low = self.cast(pixels, self.weights_dtype, "pixels")
        bias, last = self.has(f"{name}.bias"), name.rpartition(".")[2]
        inputs, outputs = prod(weight.shape[1:]), weight.shape[0]
        out = self._product(last, low, inputs, outputs, bias, self.weights_dtype, self.base_trains)
        self.drop(low)
        return out

    def prepend(self, x: Tensor) -> Tensor:
        """`cat` of a class token and the patches of each image; the gradient is a view of what is behind it."""
        tape, seat = self.tape, self.seat
        out = tape.empty("class and patches", seat.tokens, x.width, x.dtype)
        return tape.node(out, [x], [], lambda gradient: [tape.view(gradient)])

    def without_class(self, x: Tensor) -> Tensor:
        """`x[:, 1:]`, which a product copies; its gradient is put into zeros of the whole."""
        tape, sight = self.tape, self.seat.arch.ends.sight
        extra = sight.extra if sight is not None else 0
        if not int(extra):
            return self._alias(x)
        out = tape.empty("patches", x.rows - self.seat.sequences * extra, x.width, x.dtype)
        return tape.node(out, [x], [], lambda gradient: [tape.like(x, "gradient of the patches")])

    def add_positions(self, name: str, x: Tensor, gathers: Size) -> Tensor:
        """`x + table`: the rows of one image, which all images share; or, `gathers` rows for each patch, weighted."""
        tape, seat = self.tape, self.seat
        length, width = self.weights[f"{name}.weight"].shape
        table = tape.parameter(length, width, self.weights_dtype, self.base_trains)
        if not int(gathers):
            rows = tape.empty("positions", seat.seq_len, x.width, self.weights_dtype)
            tape.node(rows, [table], [], lambda gradient: [tape.like(table, "positions gradient", kind="gradient")])
            out = self.add(x, rows)
            self.drop(rows)
            return out
        rows = tape.empty("gathered positions", x.rows * gathers, x.width, self.weights_dtype)
        tape.node(rows, [table], [], lambda gradient: [tape.like(table, "positions gradient", kind="gradient")])
        weights = tape.empty("resampling weights", x.rows * gathers, 1, "fp32")
        weighted = self.scale(rows, weights, "weighted positions")
        self.drop(rows)
        summed = tape.empty("resampled positions", x.rows, x.width, weighted.dtype)
        tape.node(summed, [weighted], [], lambda gradient: [tape.view(gradient)])
        self.drop(weighted)
        low = self.cast(summed, x.dtype, "positions")
        out = self.add(x, low)
        self.drop(summed, low, weights)
        return out

    def permute(self, x: Tensor) -> Tensor:
        """Rows in another order, or made contiguous: a copy; its gradient is one too."""
        tape = self.tape
        out = tape.like(x, "rows in order")
        return tape.node(out, [x], [], lambda gradient: [tape.like(x, "gradient in order")])

    def side_by_side(self, x: Tensor, rows: Size) -> Tensor:
        """Neighbouring rows seen as one."""
        return self._reshaped(x, whole(x.rows, rows), x.width * rows)

    def unbind(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Views of the parts of each row; their gradients are stacked, and copied into rows.

        Source: torch derivatives.yaml, unbind and permute; `reshape` of a permuted gradient copies.
        """
        tape, waiting = self.tape, list[Tensor]()
        width = whole(x.width, parts)

        def part(last: bool) -> Tensor:
            def backward(gradient: Tensor) -> list[Tensor | None]:
                waiting.append(tape.view(gradient))
                if not last:
                    return [None]
                stacked = tape.like(x, "stacked gradients", gradient.dtype)
                tape.drop(*waiting)
                waiting.clear()
                rows = tape.like(x, "gradient by row", gradient.dtype)
                tape.drop(stacked)
                return [rows]

            return tape.node(Tensor(x.rows, width, x.dtype, tape.hold(x).storage), [x], [], backward)

        return tuple([part(index == 0) for index in range(parts)])

    def widen(self, x: Tensor) -> Tensor:
        """`x.float()`."""
        return self.cast(x, "fp32", "fp32 copy")

    def cast_as(self, x: Tensor, like: Tensor) -> Tensor:
        """`x` in the dtype of another tensor."""
        return self.cast(x, like.dtype)

    def attention_of_parts(self, query: Tensor, key: Tensor, value: Tensor, heads: Heads) -> Tensor:
        """Attention inside each image or window: the sides are split, and what comes out is put together, a copy each
        way (transformers: `torch.split`, `torch.cat`)."""
        tape = self.tape
        sides = [self._split(side) for side in (query, key, value)]
        mixed = self.attention(sides[0], sides[1], sides[2], heads)
        self.drop(*sides)
        out = tape.like(mixed, "attention of all parts")
        tape.node(out, [mixed], [], lambda gradient: [tape.view(gradient)])
        self.drop(mixed)
        return out

    def _split(self, x: Tensor) -> Tensor:
        tape = self.tape
        out = Tensor(x.rows, x.width, x.dtype, tape.hold(x).storage)
        return tape.node(out, [x], [], lambda gradient: [tape.like(x, "gradient of all parts")])

    def pool(self, x: Tensor, rows: Size) -> Tensor:
        """The mean of neighbouring rows (`avg_pool2d`, which keeps its input)."""
        tape = self.tape
        out = tape.empty("pooled", whole(x.rows, rows), x.width, x.dtype)
        return tape.node(out, [x], [x], lambda gradient: [tape.like(x, "pool gradient")])

    def matmul(self, name: str, x: Tensor) -> Tensor:
        """A product with a bare matrix, stored inputs first."""
        inputs, outputs = self.weights[name].shape
        return self._product(name, x, inputs, outputs, False, self.weights_dtype, self.base_trains)
