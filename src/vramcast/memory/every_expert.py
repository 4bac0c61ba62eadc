"""Experts that are given every token, each times its score: Llama 4's."""

from __future__ import annotations

from vramcast.memory.experts import Experts
from vramcast.memory.tape import Tensor
from vramcast.num import Size


class EveryExpert(Experts):
    """`Experts` whose rows are tokens × experts.

    Source: transformers/models/llama4/modeling_llama4.py, Llama4TextMoe, Llama4TextExperts.
    """

    def temper(self, x: Tensor) -> Tensor:
        """Queries times a number of their position, which makes them fp32 until they are cast back."""
        tape = self.tape
        scales = tape.empty("scales of positions", self.seat.seq_len, 1, "fp32")
        wide = self.scale(x, scales, "tempered")
        out = self.cast(wide, x.dtype, "query")
        self.drop(wide, scales)
        return out

    def repeat(self, x: Tensor, count: Size) -> Tensor:
        """`x.repeat(count, 1)`: a copy for each; their gradients are added up."""
        out = self.tape.empty("repeated rows", x.rows * count, x.width, x.dtype)
        return self.tape.node(out, [x], [], lambda gradient: [self.tape.like(x, "gradient of the rows summed")])

    def column(self, x: Tensor) -> Tensor:
        """The elements of a matrix column by column, as one column: a copy."""
        out = self.tape.empty("column", x.rows * x.width, 1, x.dtype)
        return self.tape.node(out, [x], [], lambda gradient: [self.tape.view(gradient)])

    def scatter(self, values: Tensor, places: Tensor, like: Tensor) -> Tensor:
        """`values` at their places in a matrix of one constant."""
        out = self.tape.like(like, "scattered")
        return self.tape.node(out, [values], [places], lambda gradient: [self.tape.like(values, "gathered gradient")])

    def store(self, *tensors: Tensor) -> None:
        """Keys and values for later layers: one more variable holds them."""
        self.stored += [self.tape.hold(one) for one in tensors]

    def reuse(self, x: Tensor, width: Size) -> Tensor:
        """Keys or values of an earlier layer, which has them; their gradient is added to that of other layers."""
        return Tensor(x.rows, width, x.dtype, None, self.tape.records and x.requires_grad)

    def layer_input(self, x: Tensor, width: Size, layers: Size) -> Tensor:
        """A layer's slice of what all layers are given. Its gradient is put into zeros of the whole, beside those of
        the layers behind it.

        Source: torch/csrc/autograd/FunctionsManual.cpp, select_backward_symint.
        """
        tape = self.tape
        whole = Tensor(x.rows, width * layers, self.weights_dtype, None, tape.records and self.base_trains)
        out = Tensor(x.rows, width, self.weights_dtype, None)

        def backward(gradient: Tensor) -> list[Tensor | None]:
            found = tape.like(whole, "gradient of all layers")
            tape.drop(tape.like(whole, "gradient of a slice"))
            return [found]

        return tape.node(out, [whole], [], backward)

    def times_in_place(self, x: Tensor) -> Tensor:
        """`x *= buffer`: no new memory, but for its gradient; the buffer is kept as any tensor is."""
        tape = self.tape
        out, buffer = Tensor(x.rows, x.width, x.dtype, x.storage), tape.empty("buffer", 1, 1, x.dtype)
        tape.node(out, [x], [buffer], lambda gradient: [tape.like(x, "multiple gradient")])
        self.drop(buffer)
        return out

    def weighted(self, name: str, x: Tensor) -> Tensor:
        """Rows times a vector that learns."""
        return self.scale(x, self.tape.parameter(1, x.width, self.weights_dtype, self.base_trains), "weighted")

    def elements_of(self, name: str, places: Tensor) -> Tensor:
        """Elements of a vector that learns, by their places."""
        tape = self.tape
        vector = tape.parameter(1, self.weights[name].elements, self.weights_dtype, self.base_trains)
        out = tape.empty("elements", places.rows, places.width, self.weights_dtype)
        return tape.node(out, [vector], [places], lambda _: [tape.like(vector, "gradient", kind="gradient")])

    def batched(self, name: str, x: Tensor) -> Tensor:
        """The rows of every expert times its matrix (`bmm`), inputs first."""
        tape = self.tape
        count, inputs, outputs = self.weights[name].shape
        weight = self._weight(name.rpartition(".")[2], count * inputs, outputs, self.weights_dtype, self.base_trains)
        low = self._computed(x)
        out = tape.empty("product of every expert", x.rows, outputs, low.dtype)

        def backward(gradient: Tensor) -> list[Tensor | None]:
            grad_weight = tape.like(weight, f"{name} gradient", kind="gradient") if weight.requires_grad else None
            grad_x = tape.like(low, "input gradient") if low.requires_grad else None
            return [grad_x, grad_weight]

        saved = ([low] if weight.requires_grad else []) + ([weight] if low.requires_grad else [])
        tape.node(out, [low, weight], saved, backward)
        self.drop(low, weight)
        return out

    def add_groups(self, x: Tensor, groups: Tensor) -> Tensor:
        """`x.add_(sum of what every expert gives)`: the gradient of the sum is copied for every expert."""
        tape = self.tape
        sums = tape.empty("sum of the experts", x.rows, x.width, groups.dtype)
        tape.node(sums, [groups], [], lambda gradient: [tape.like(groups, "gradient of every expert")])
        out = Tensor(x.rows, x.width, x.dtype, tape.hold(x).storage)
        tape.node(out, [x, sums], [], lambda gradient: [tape.view(gradient), self._gradient_as(sums, gradient)])
        self.drop(sums, x)
        return out
