"""Activation functions of a model's own code: a kernel each, or a few operators."""

from __future__ import annotations

from vramcast.memory.operators import Eager
from vramcast.memory.tape import Tensor


class ActivationFunctions(Eager):
    """What stands between an MLP's layers."""

    def activate(self, function: str, x: Tensor) -> Tensor:
        """An activation by its name in `hidden_act`; kernels of SiLU and GELU keep their input, that of ReLU what it
        gives. Source: transformers/activations.py."""
        match function:
            case "quick_gelu":
                return self._quick_gelu(x)
            case "relu":
                return self.pointwise(x, "relu", saves=True)
            case "relu2":
                return self._relu_squared(x)
            case "xielu":
                return self._xielu(x)
            case "bloom_gelu":
                return self._bloom_gelu(x)
            case "gelu_new" | "gelu_fast":
                return self._gelu_of_operators(x)
            case _:
                pass
        out = self.tape.like(x, function)

        def backward(gradient: Tensor) -> list[Tensor | None]:
            return [self.tape.like(x, f"{function} gradient")]

        return self.tape.node(out, [x], [x], backward)

    def _relu_squared(self, x: Tensor) -> Tensor:
        low = self.pointwise(x, "relu", saves=True)
        out = self.square(low)
        self.drop(low)
        return out

    def _xielu(self, x: Tensor) -> Tensor:
        """Two branches, each a few operators, and a choice between them: XIELUActivation. Its two numbers that
        learn are nothing beside."""
        tape = self.tape
        condition = tape.like(x, "x > 0", "bool")
        first = self._by_number(x)
        above = self.multiply(first, x)
        self.drop(first)
        linear = self.times(x)
        upper = self.add(above, linear)
        self.drop(above, linear)
        least = tape.like(x, "least")
        chosen = tape.like(x, "which is less", "bool") if tape.records else None
        tape.node(least, [x], [x], lambda gradient: [tape.like(x, "gradient of the least")])
        if chosen is not None:
            self.drop(chosen)
        grown = self.pointwise(least, "expm1", saves=True)
        self.drop(least)
        rest = self.add(grown, x)
        self.drop(grown)
        below = self._by_number(rest)
        self.drop(rest)
        linear = self.times(x)
        lower = self.add(below, linear)
        self.drop(below, linear)
        out = tape.like(upper, "xielu")

        def backward(gradient: Tensor) -> list[Tensor | None]:
            return [tape.like(upper, f"gradient of the {name} branch") for name in ("upper", "lower")]

        tape.node(out, [upper, lower], [condition], backward)
        self.drop(upper, lower, condition)
        return out

    def _by_number(self, x: Tensor) -> Tensor:
        """Product with a number that learns: x is kept for its gradient."""
        return self.scale(x, self.tape.parameter(1, 1, self.weights_dtype, self.base_trains), "times a number")

    def _gelu_of_operators(self, x: Tensor) -> Tensor:
        """`0.5 * x * (1 + tanh(c * (x + 0.044715 * x³)))`, operator by operator: NewGELUActivation."""
        half = self.times(x)
        cube = self.square(x)
        scaled = self.times(cube)
        self.drop(cube)
        inner = self.add(x, scaled)
        self.drop(scaled)
        argument = self.times(inner)
        self.drop(inner)
        bent = self.pointwise(argument, "tanh", saves=True)
        self.drop(argument)
        shifted = self.pointwise(bent, "shifted", saves=False)
        self.drop(bent)
        out = self.multiply(half, shifted)
        self.drop(half, shifted)
        return out

    def _bloom_gelu(self, x: Tensor) -> Tensor:
        """A function of its own, whose steps are no nodes: it keeps its input, and makes the rest again in backward.

        Source: transformers/models/bloom/modeling_bloom.py, bloom_gelu_forward and bloom_gelu_back.
        """
        tape = self.tape

        def most(count: int) -> None:
            tape.drop(*[tape.like(x, "step of the activation") for _ in range(count)])

        most(3)
        half, bent = tape.like(x, "half"), tape.like(x, "1 + tanh")
        out = tape.like(x, "activation")
        tape.drop(half, bent)

        def backward(gradient: Tensor) -> list[Tensor | None]:
            most(5)
            steps = [tape.like(x, "step of the derivative") for _ in range(2)]
            found = tape.like(x, "activation gradient")
            tape.drop(*steps)
            return [found]

        return tape.node(out, [x], [x], backward)

    def _quick_gelu(self, x: Tensor) -> Tensor:
        """`x * sigmoid(1.702 * x)`: three operators (transformers/activations.py, QuickGELUActivation)."""
        scaled = self.times(x)
        gate = self.pointwise(scaled, "sigmoid", saves=True)
        self.drop(scaled)
        out = self.multiply(x, gate)
        self.drop(gate)
        return out
