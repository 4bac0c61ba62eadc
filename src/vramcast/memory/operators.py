"""Operators: what each PyTorch operator allocates, saves for backward, and allocates again in its backward.

Read from the autograd formulas and CUDA kernels of PyTorch 2.13 and checked, operator by operator, against a trace of
the Hugging Face classes on fake tensors. Method names follow torch; the byte counts follow from shapes and dtypes.
"""

from __future__ import annotations

from typing import Any

from vramcast.memory.promotion import promoted
from vramcast.memory.seat import Seat
from vramcast.memory.tape import Tape, Tensor
from vramcast.memory.units import learns_whole
from vramcast.models.layout import Blocks, Weight
from vramcast.num import whole


class Eager:
    """The operators of `models/ops.py` in eager mode on one seat's sizes, dtypes and trainable parts."""

    def __init__(self, tape: Tape, seat: Seat) -> None:
        self.tape = tape
        self.seat = seat
        self.weights_dtype = seat.param_dtype
        self.base_trains = seat.tuning == "full" or learns_whole(seat)
        self.weights: dict[str, Weight] = {}
        """of the block that runs, by their names below it"""
        self.prefix = ""
        """of their full names"""
        self.variables: list[Tensor] = []
        """what the block holds until it is through"""
        self.returned: list[Tensor] = []
        """what the block returns beside hidden states: the loop over blocks holds it until the next one returns"""
        self.locals: list[Tensor] = []
        """what its attention's own forward holds until it is through"""
        self.stored: list[Tensor] = []
        """keys and values that later layers may use"""
        self.cached: list[Tensor] = []
        """what a cache has of the block's keys and values, until the loss is there"""
        self.handed_on: list[Tensor] = []
        """what the block gives to later ones beside hidden states: a checkpoint of those keeps it"""
        self.tables: tuple[Tensor, Tensor] | None = None

    def run(self, block: Blocks, hidden: Tensor) -> Tensor:
        """The forward of a block; the caller holds what it is given."""
        assert block.forward is not None
        self.weights, self.prefix = {weight.name: weight for weight in block.weights}, block.prefix
        out = block.forward(self, hidden)
        self.let_go()
        return out

    def let_go(self) -> None:
        """The end of a function: its variables go."""
        self.drop(*self.variables)
        self.variables.clear()

    def keep(self, *tensors: Tensor) -> None:
        """Variables of the block, which it holds until it is through."""
        self.variables += tensors

    def hand_on(self, x: Tensor) -> None:
        """Gives something to later blocks beside hidden states."""
        if self.seat.recompute == "full":
            self.handed_on.append(self.tape.hold(x))

    def has(self, name: str) -> bool:
        """Whether the block that runs has a parameter."""
        return name in self.weights

    def scope(self, module: str) -> None:
        """Names what follows after the module it belongs to."""
        self.tape.module = module

    def drop(self, *tensors: Tensor) -> None:
        self.tape.drop(*tensors)

    # --- elementwise --------------------------------------------------------------------------------------------------

    def cast(self, x: Tensor, dtype: str, name: str = "cast") -> Tensor:
        """`x.to(dtype)`: the same memory when nothing changes, else a copy; the gradient is cast back."""
        tape = self.tape
        if x.dtype == dtype:
            return self._alias(x)
        out = tape.like(x, name, dtype)

        def backward(gradient: Tensor) -> list[Tensor | None]:
            return [self._gradient_as(x, gradient)]

        return tape.node(out, [x], [], backward)

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        """Sum; both inputs share the gradient, cast where dtypes were promoted."""
        out = self.tape.like(left, "sum", promoted(left.dtype, right.dtype))

        def backward(gradient: Tensor) -> list[Tensor | None]:
            return [self._gradient_as(x, gradient) if x.requires_grad else None for x in (left, right)]

        return self.tape.node(out, [left, right], [], backward)

    def add_into(self, left: Tensor, right: Tensor) -> Tensor:
        """`left += right`: no memory of its own; both share the gradient."""
        out = Tensor(left.rows, left.width, left.dtype, self.tape.hold(left).storage)
        self.drop(left)

        def backward(gradient: Tensor) -> list[Tensor | None]:
            return [self._gradient_as(x, gradient) if x.requires_grad else None for x in (left, right)]

        return self.tape.node(out, [left, right], [], backward)

    def bound(self, x: Tensor) -> Tensor:
        """`x.clamp_`: in its place, but backward needs what was there, and so a copy of it, and then two masks.

        Source: torch/csrc/autograd/FunctionsManual.cpp, clamp_backward; tools/autograd/gen_variable_type.py.
        """
        tape = self.tape
        before = [tape.like(x, "before its bounds")] if tape.records and x.requires_grad else []
        out = Tensor(x.rows, x.width, x.dtype, tape.hold(x).storage)

        def backward(gradient: Tensor) -> list[Tensor | None]:
            masks = [tape.like(x, "within a bound", "bool") for _ in range(2)]
            found = tape.like(x, "bounded gradient")
            tape.drop(*masks)
            return [found]

        tape.node(out, [x], before, backward)
        self.drop(x, *before)
        return out

    def copied(self, x: Tensor) -> Tensor:
        """A view's elements side by side; their gradient is a view again. The view is gone."""
        out = self.tape.like(x, "copy")
        self.tape.node(out, [x], [], lambda gradient: [self.tape.view(gradient)])
        self.drop(x)
        return out

    def multiply(self, left: Tensor, right: Tensor) -> Tensor:
        """Elementwise product of equal shapes: each input is saved for the other's gradient."""
        tape = self.tape
        out = tape.like(left, "product", promoted(left.dtype, right.dtype))
        saved = [x for x, other in ((left, right), (right, left)) if other.requires_grad]

        def backward(gradient: Tensor) -> list[Tensor | None]:
            return [self._product_gradient(x, gradient) if x.requires_grad else None for x in (left, right)]

        return tape.node(out, [left, right], saved, backward)

    def _product_gradient(self, x: Tensor, gradient: Tensor) -> Tensor:
        """In the dtype of the product, and then in that of the side."""
        wide = self.tape.like(x, "product gradient", gradient.dtype)
        if gradient.dtype == x.dtype:
            return wide
        low = self.tape.like(x, "product gradient cast")
        self.drop(wide)
        return low

    def scale(self, x: Tensor, by: Tensor, name: str) -> Tensor:
        """Product with a smaller tensor that is broadcast (a norm's weight, a row's root mean square, rope tables)."""
        tape = self.tape
        out = tape.like(x, name, promoted(x.dtype, by.dtype))
        saved = ([x] if by.requires_grad else []) + ([by] if x.requires_grad else [])

        def backward(gradient: Tensor) -> list[Tensor | None]:
            grad_x = grad_by = unreduced = None
            if x.requires_grad:
                grad_x = tape.like(x, f"{name} gradient", gradient.dtype)
            if by.requires_grad:
                kind = "gradient" if by.is_parameter else "activation"
                unreduced = tape.like(x, f"{name} gradient unreduced", gradient.dtype)
                grad_by = tape.like(by, f"{name} gradient reduced", kind=kind)
                tape.drop(unreduced)
            if grad_x is not None and gradient.dtype != x.dtype:  # the engine casts what a node gives
                wide, grad_x = grad_x, tape.like(x, f"{name} gradient cast")
                tape.drop(wide)
            return [grad_x, grad_by]

        return tape.node(out, [x, by], saved, backward)

    def times(self, x: Tensor) -> Tensor:
        """Product with a constant: nothing is kept."""
        out = self.tape.like(x, "multiple")
        return self.tape.node(out, [x], [], lambda gradient: [self.tape.like(x, "multiple gradient")])

    # --- normalisation and positions ----------------------------------------------------------------------------------

    def norm(self, kind: str, name: str, x: Tensor) -> Tensor:
        """A norm of a block or of the model's end, by its kind."""
        self.scope(name)
        return self.rms_norm(x)

    def rms_norm(self, x: Tensor) -> Tensor:
        """Hugging Face's RMSNorm: an fp32 copy (kept), its root mean square (kept), the normalised rows (kept if the
        weight trains)."""
        tape = self.tape
        normal, mean = self.normalised(x)
        low = self.cast(normal, x.dtype, "normalised")
        dtype = "fp32" if self.seat.norms_fp32 else self.weights_dtype
        weight = tape.parameter(1, x.width, dtype, self.base_trains)
        out = self.scale(low, weight, "norm output")
        self.drop(normal, low, mean)
        return out

    def normalised(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(rows divided by their root mean square, in fp32; the mean of the squares, which the norm holds)."""
        wide = self.cast(x, "fp32", "fp32 copy")
        squares = self.square(wide)
        mean = self.mean(squares)
        self.drop(squares)
        shifted = self.pointwise(mean, "shifted", saves=False)
        root = self.pointwise(shifted, "rsqrt", saves=True)
        self.drop(shifted)
        normal = self.scale(wide, root, "normalised fp32")
        self.drop(root, wide)
        return normal, mean

    def square(self, x: Tensor) -> Tensor:
        tape = self.tape
        out = tape.like(x, "squares")

        def backward(gradient: Tensor) -> list[Tensor | None]:
            power = tape.like(x, "square gradient power")
            scaled = tape.like(x, "square gradient scaled")
            result = tape.like(x, "square gradient")
            tape.drop(power, scaled)
            return [result]

        return tape.node(out, [x], [x], backward)

    def mean(self, x: Tensor) -> Tensor:
        out = self.tape.empty("mean", x.rows, 1, x.dtype)

        def backward(gradient: Tensor) -> list[Tensor | None]:
            return [self.tape.like(x, "mean gradient")]

        return self.tape.node(out, [x], [], backward)

    def pointwise(self, x: Tensor, name: str, *, saves: bool) -> Tensor:
        out = self.tape.like(x, name)

        def backward(gradient: Tensor) -> list[Tensor | None]:
            if not saves:
                return [self.tape.view(gradient)]
            return [self.tape.like(x, f"{name} gradient")]

        return self.tape.node(out, [x], [out] if saves else [], backward)

    def rope(self, x: Tensor, *, widens: bool = False) -> Tensor:
        """Rotary positions: `x * cos + rotate_half(x) * sin`; only the tables are saved. `widens`: both are products
        of fp32 copies (transformers/models/ernie4_5/modeling_ernie4_5.py)."""
        tables = self.tables
        assert tables is not None
        dtype = "fp32" if widens else x.dtype
        wide = self.cast(x, dtype, "fp32 copy")
        cosines = self.scale(wide, tables[0], "x * cos")
        self.drop(wide)
        turned = self._rotate_half(x)
        wide = self.cast(turned, dtype, "fp32 copy")
        self.drop(turned)
        sines = self.scale(wide, tables[1], "rotated * sin")
        self.drop(wide)
        out = self.add(cosines, sines)
        self.drop(cosines, sines)
        return out

    def interleave_tables(self) -> Any:
        """Tables of positions with each number twice, which a layer makes for itself; gives those of all layers.

        Source: transformers/models/glm/modeling_glm.py, apply_rotary_pos_emb: repeat_interleave.
        """
        shared = self.tables
        assert shared is not None
        self.tables = self.tape.like(shared[0], "cosines twice"), self.tape.like(shared[1], "sines twice")
        return shared

    def restore_tables(self, tables: Any) -> None:
        """The tables of all layers again; None: they are there."""
        if tables is not None and self.tables is not None:
            self.drop(*self.tables)
            self.tables = tables

    def _rotate_half(self, x: Tensor) -> Tensor:
        """`cat((-x2, x1))` of the two halves of every head."""
        tape = self.tape
        half = whole(x.width, 2)

        def half_of() -> Tensor:
            def backward(gradient: Tensor) -> list[Tensor | None]:
                return [tape.like(x, "slice gradient")]

            return tape.node(Tensor(x.rows, half, x.dtype, tape.hold(x).storage), [x], [], backward)

        first, second = half_of(), half_of()
        negative = tape.empty("negated half", x.rows, half, x.dtype)
        tape.node(negative, [second], [], lambda gradient: [tape.empty("negation gradient", x.rows, half, x.dtype)])
        out = tape.like(x, "rotated")
        tape.node(out, [negative, first], [], lambda gradient: [tape.view(gradient), tape.view(gradient)])
        self.drop(first, second, negative)
        return out

    # --- helpers ------------------------------------------------------------------------------------------------------

    def _alias(self, x: Tensor) -> Tensor:
        """The same tensor once more (`.to` that changes nothing): one more variable holds it."""
        return self.tape.hold(x)

    def _gradient_as(self, x: Tensor, gradient: Tensor) -> Tensor:
        """The gradient in the dtype of `x`: shared, or a cast copy."""
        if gradient.dtype == x.dtype:
            return self.tape.view(gradient)
        kind = "gradient" if x.is_parameter else "activation"
        return self.tape.like(x, "gradient cast", kind=kind)
