"""Compressed convolutional attention (ZAYA): queries and keys mixed by two short convolutions along a sequence.

Source: transformers/models/zaya/modeling_zaya.py, ZayaCCAProjection, ZayaQKNorm, ZayaResidualScaling.
"""

from __future__ import annotations

from vramcast.memory.delta import DeltaRule
from vramcast.memory.tape import Tensor
from vramcast.num import Size


class Compressed(DeltaRule):
    """`DeltaRule` with what that attention is made of."""

    def learned(self, name: str, x: Tensor, operator: str) -> Tensor:
        """`x` times a learned vector, or plus one. A product keeps x; a vector's gradient is summed over the rows."""
        weight = self.tape.parameter(1, self.weights[name].shape[0], self.weights_dtype, self.base_trains)
        if operator == "times":
            return self.scale(x, weight, "scaled")
        tape, out = self.tape, self.tape.like(x, "shifted")

        def backward(gradient: Tensor) -> list[Tensor | None]:
            summed = tape.like(weight, "shift gradient", kind="gradient") if weight.requires_grad else None
            return [tape.view(gradient), summed]

        return tape.node(out, [x, weight], [], backward)

    def narrowed(self, x: Tensor) -> Tensor:
        """In the dtype of the weights."""
        return self.cast(x, self.weights_dtype, "narrowed")

    def group_mean(self, x: Tensor, width: Size) -> Tensor:
        """The mean of the query heads that share a key; the gradient is divided, then copied."""
        tape = self.tape
        out = tape.empty("mean of heads", x.rows, width, x.dtype)

        def backward(gradient: Tensor) -> list[Tensor | None]:
            divided = tape.like(x, "divided gradient")
            copied = tape.like(x, "mean gradient")
            tape.drop(divided)
            return [copied]

        return tape.node(out, [x], [], backward)

    def pad(self, x: Tensor, steps: Size) -> Tensor:
        """`steps` more positions before every sequence."""
        out = self.tape.empty("padded", x.rows + self.seat.sequences * steps, x.width, x.dtype)
        return self.tape.node(out, [x], [], lambda gradient: [self.tape.like(x, "unpadded gradient")])

    def convolve_steps(self, name: str, x: Tensor, steps: Size) -> Tensor:
        """A convolution along every sequence, which gets `steps` shorter, or longer where it is padded. One backward
        makes all gradients, so it keeps its input whatever learns (derivatives.yaml, convolution)."""
        tape = self.tape
        channels, each, taps = self.weights[f"{name}.weight"].shape
        sizes = (("weight", channels, each * taps), ("bias", 1, channels))
        own = [one for one in sizes if self.has(f"{name}.{one[0]}")]
        learned = [self._weight(*one, self.weights_dtype, self.base_trains) for one in own]
        given = self._computed(x)
        out = tape.empty("convolution", x.rows - self.seat.sequences * steps, x.width, given.dtype)

        def backward(gradient: Tensor) -> list[Tensor | None]:
            result = tape.like(given, "convolution gradient")
            grads = [tape.like(one, "gradient", kind="gradient") if one.requires_grad else None for one in learned]
            return [result, *grads]

        tape.node(out, [given, *learned], [learned[0], given], backward)
        self.drop(given, *learned)
        return out

    def cut(self, x: Tensor, steps: Size) -> Tensor:
        """A view without the last `steps` positions of every sequence; its gradient is a tensor of the whole."""
        tape = self.tape
        out = Tensor(x.rows - self.seat.sequences * steps, x.width, x.dtype, tape.hold(x).storage)
        return tape.node(out, [x], [], lambda gradient: [tape.like(x, "slice gradient")])

    def delayed(self, x: Tensor) -> Tensor:
        """Every row from the token before."""
        out = self.tape.like(x, "delayed")
        return self.tape.node(out, [x], [], lambda gradient: [self.tape.like(x, "slice gradient")])

    def unit(self, x: Tensor, heads: Size) -> Tensor:
        """Every head divided by its length: heads and their factors are kept."""
        tape, rows = self.tape, x.rows * heads
        beside = [tape.empty(name, rows, 1, x.dtype) for name in ("lengths", "clamped lengths", "factors")]
        out = tape.like(x, "heads of one length")

        def backward(gradient: Tensor) -> list[Tensor | None]:
            direct, by_length = tape.like(x, "direct gradient"), tape.like(x, "length gradient")
            tape.drop(tape.like(x, "ratio"))
            result = tape.like(x, "unit gradient")
            tape.drop(direct, by_length)
            return [result]

        tape.node(out, [x], [x, *beside], backward)
        self.drop(*beside)
        return out
