"""Packed experts as Transformers' default runs them on a card.

The rows that all experts are given are tokens × experts a token, however the router spreads them: every sum here is
exact. A kernel works on the rows of all experts at once (`grouped_mm`), so no expert's share is a tensor of its own.
"""

from __future__ import annotations

from vramcast.memory.promotion import promoted
from vramcast.memory.routers import Routers
from vramcast.memory.tape import Tensor
from vramcast.num import Size, whole


class Experts(Routers):
    """`Routers` with the experts that they choose."""

    def experts(self, at: str, x: Tensor, places: Tensor, weights: Tensor, activation: str) -> Tensor:
        """What the experts make of the tokens that a router sent them, weighted and summed.

        Source: transformers/integrations/moe.py: `grouped_mm` is the default; `generate` runs `batched_mm` behind the
        prompt (generation/utils.py, _optimize_model_for_decode).
        """
        self.scope(at)
        run = self._batched if self.seat.decodes else self._grouped
        return run(at, x, places, weights, activation)

    def _grouped(self, at: str, x: Tensor, places: Tensor, weights: Tensor, activation: str) -> Tensor:
        """Rows in the order of experts, two grouped products, rows in the order of tokens, their sum. Python holds
        most of it until the function is through."""
        tape, rows = self.tape, x.rows * places.width
        up = self._first(at)
        factors = {name: self._factors(name) for name in (f"{at}.down_proj", up)}
        ids, order = (tape.empty(name, rows, 1, "int64") for name in ("sorted experts", "order"))
        tokens = tape.empty("tokens of the rows", rows, 1, "int64")
        given = self._rows(x, tokens, rows)
        self.drop(tokens)
        flat = self._reshaped(weights, rows, 1)
        weight = self._rows(flat, order, rows)
        counted = tape.empty("experts to count", rows, 1, "fp32")
        ends = tape.empty("ends of the experts", self.weights[f"{at}.down_proj"].shape[0], 1, "fp32")
        first, second = self._stacked(up), self._stacked(f"{at}.down_proj")
        first = self._merged(first, factors[up])
        middle, biases = self._projected(up, first, given, ends, ids, [])
        mixed = self._activated(at, activation, middle)
        self.drop(middle)
        second = self._merged(second, factors[f"{at}.down_proj"])
        down, biases = self._projected(f"{at}.down_proj", second, mixed, ends, ids, biases)
        self.drop(mixed)
        by_expert = self._weighted(down, weight)
        back = tape.empty("order back", rows, 1, "int64")
        self.drop(tape.empty("range", rows, 1, "int64"))
        by_token = self._rows(by_expert, back, rows)
        self.drop(by_expert)
        out = self._summed(by_token, x)
        self.drop(ids, order, given, flat, weight, counted, ends, down, *biases, back, by_token, first, second)
        self.drop(*(factor for pair in factors.values() for factor in pair))
        return out

    def _factors(self, name: str) -> list[Tensor]:
        """The matrices of adapters on a parameter of all experts, in its dtype, as they are folded into it; none if
        there are no adapters. They are folded once when they are put in place, which is forgotten.

        Source: peft/tuners/lora/layer.py, ParamWrapper.get_delta_factors, _activate_lora (0.21);
        torch/nn/utils/parametrize.py, register_parametrization.
        """
        tape, seat, ranks = self.tape, self.seat, self.seat.ranks_of(name)
        if not ranks:
            return []
        experts, outputs, inputs = self.weights[name].shape
        rank = seat.lora_rank * ranks * experts
        down, up = (tape.parameter(rank, side, seat.adapter_param_dtype, trains=True) for side in (inputs, outputs))
        turned = Tensor(up.rows, up.width, up.dtype, None, up.requires_grad)
        tape.node(turned, [up], [], lambda gradient: [tape.like(up, "adapter gradient", kind="gradient")])
        low = [self.cast(one, self.weights_dtype, "adapter copy") for one in (turned, down)]
        self.drop(tape.empty("folded experts", experts * outputs, inputs, self.weights_dtype))
        return low

    def _merged(self, weight: Tensor, factors: list[Tensor]) -> Tensor:
        """A parameter with its adapters folded in: a tensor as large, kept for backward, whose gradient is as large
        too."""
        if not factors:
            return weight
        tape = self.tape
        out = tape.like(weight, "folded experts")

        def backward(gradient: Tensor) -> list[Tensor | None]:
            grads: list[Tensor | None] = []
            for factor in factors:
                product = tape.like(factor, "adapter product")
                kind = "gradient" if factor.is_parameter else "activation"
                grads.append(tape.like(factor, "adapter gradient", kind=kind))
                tape.drop(product)
            return grads

        return tape.node(out, factors, factors, backward)

    def _rows(self, x: Tensor, order: Tensor, rows: Size) -> Tensor:
        """`x[order]`: a copy; its gradient is added up in zeros of the whole.

        Source: torch/csrc/autograd/FunctionsManual.cpp, index_backward.
        """
        out = self.tape.empty("rows", rows, x.width, x.dtype)
        return self.tape.node(out, [x], [order], lambda gradient: [self.tape.like(x, "gradient of the rows")])

    def _projected(
        self, name: str, weight: Tensor, x: Tensor, ends: Tensor, ids: Tensor, before: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """(every row times the matrix of its expert, the rows of biases that are added), in the dtype of the weights:
        autocast does not know this product. The biases `before` go when there are new ones.

        Source: aten/src/ATen/native/cuda/GroupedBlas.cpp; derivatives.yaml, _grouped_mm: the weight's gradient first.
        """
        tape, outputs = self.tape, self._outputs(name)
        low = self.cast(x, self.weights_dtype, "input cast")
        bias = self._stacked(f"{name}_bias") if self.has(f"{name}_bias") else None
        added = [self._rows_of(bias, ids, outputs)] if bias else []
        self.drop(*before)
        out = tape.empty("product", x.rows, outputs, self.weights_dtype)

        def backward(gradient: Tensor) -> list[Tensor | None]:
            kind = "gradient" if weight.is_parameter else "activation"
            grad_weight = tape.like(weight, f"{name} gradient", kind=kind) if weight.requires_grad else None
            grad_x = tape.like(low, "input gradient") if low.requires_grad else None
            return [grad_x, grad_weight, *(tape.view(gradient) if one.requires_grad else None for one in added)]

        saved = [low, ends, weight] if weight.requires_grad else [ends, weight]
        tape.node(out, [low, weight, *added], saved, backward)
        self.drop(low)
        return out, added

    def _stacked(self, name: str) -> Tensor:
        """The parameter of all experts, as rows of one matrix."""
        first, *others = self.weights[name].shape
        rows = first * others[0] if len(others) > 1 else first
        return self.tape.parameter(rows, others[-1], self.weights_dtype, self.base_trains)

    def _outputs(self, name: str) -> Size:
        """Inputs come last, but where biases are: those classes are transposed (GPT-OSS)."""
        return self.weights[name].shape[2 if self.has(f"{name}_bias") else 1]

    def _rows_of(self, bias: Tensor, ids: Tensor, width: Size) -> Tensor:
        """Biases of the expert of every row."""
        out = self.tape.empty("biases", ids.rows, width, bias.dtype)
        gradient = "bias gradient"
        return self.tape.node(out, [bias], [ids], lambda _: [self.tape.like(bias, gradient, kind="gradient")])

    def _first(self, at: str) -> str:
        """The parameter of the first product: gate and up in one, or up alone (Nemotron H)."""
        both = f"{at}.gate_up_proj"
        return both if self.has(both) else f"{at}.up_proj"

    def _activated(self, at: str, activation: str, x: Tensor) -> Tensor:
        return self._gate(activation, x) if self.has(f"{at}.gate_up_proj") else self.activate(activation, x)

    def _gate(self, activation: str, x: Tensor) -> Tensor:
        """activation(gate) × up, both halves of one projection."""
        if activation == "clamped":
            return self._clamped_gate(x)
        gate, up = self.halves(x)
        active = self.activate(activation, gate)
        out = self.multiply(active, up)
        self.drop(active, gate, up)
        return out

    def _clamped_gate(self, x: Tensor) -> Tensor:
        """(clamp(up) + 1) × gate × sigmoid(gate × alpha), of a clamped gate; both are every second element.

        Source: transformers/models/gpt_oss/modeling_gpt_oss.py, GptOssExperts._apply_gate.
        """
        half = whole(x.width, 2)
        first, second = self.slices(x, half, half)
        gate, up = self.clamp(first, 1), self.clamp(second, 2)
        scaled = self.times(gate)
        opened = self.sigmoid(scaled)
        self.drop(scaled)
        glu = self.multiply(gate, opened)
        self.drop(opened)
        plus = self.pointwise(up, "up + 1", saves=False)
        out = self.multiply(plus, glu)
        self.drop(plus, first, second, gate, up, glu)
        return out

    def clamp(self, x: Tensor, sides: int) -> Tensor:
        """Keeps its input; backward compares it with each bound.

        Source: torch/csrc/autograd/FunctionsManual.cpp, clamp_backward.
        """
        tape = self.tape
        out = tape.like(x, "clamped")

        def backward(gradient: Tensor) -> list[Tensor | None]:
            masks = [tape.like(x, "within the bound", "bool") for _ in range(sides)]
            result = tape.like(x, "clamp gradient")
            tape.drop(*masks)
            return [result]

        return tape.node(out, [x], [x], backward)

    def halves(self, x: Tensor) -> tuple[Tensor, ...]:
        """Two views of one memory (`chunk`), whose gradients are put together in a tensor."""
        half = whole(x.width, 2)
        return self.split(x, half, half)

    def _weighted(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Every row times its weight, which may be wider. Autograd makes both gradients whole before it casts the one
        and adds up the other; what a checkpoint computed again is gone by then.

        Source: torch/csrc/autograd/engine.cpp, validate_outputs; torch/utils/checkpoint.py, unpack_hook.
        """
        tape = self.tape
        out = tape.like(rows, "weighted rows", promoted(rows.dtype, weights.dtype))
        holds = tape.records and not tape.checkpointed and weights.requires_grad
        again = self.seat.recompute == "full"
        if holds:
            tape.hold(rows)

        def backward(gradient: Tensor) -> list[Tensor | None]:
            to_weights = tape.like(out, "product with the rows") if weights.requires_grad else None
            wide = tape.like(out, "product with the weights") if rows.requires_grad else None
            if holds and again:
                tape.drop(rows)
            to_rows = self._gradient_as(rows, wide) if wide else None
            summed = tape.like(weights, "gradient of the weights") if to_weights else None
            tape.drop(*(one for one in (wide, to_weights) if one))
            if holds and not again:
                tape.drop(rows)
            return [to_rows, summed]

        return tape.node(out, [rows, weights], [weights] if rows.requires_grad else [], backward)

    def _summed(self, by_token: Tensor, x: Tensor) -> Tensor:
        """The rows of each token added up, in the dtype of the tokens; autocast sums in fp32. The gradient is copied
        for every row."""
        tape = self.tape
        dtype = promoted(by_token.dtype, "fp32") if self.seat.autocast else by_token.dtype
        sums = tape.empty("sum of the rows", x.rows, by_token.width, dtype)
        tape.node(sums, [by_token], [], lambda gradient: [tape.like(by_token, "gradient of every row")])
        out = self.cast(sums, x.dtype, "output cast")
        self.drop(sums)
        return out

    def _batched(self, at: str, x: Tensor, places: Tensor, weights: Tensor, activation: str) -> Tensor:
        """Every row has a copy of its expert's matrices: the second one is made while the first is still there."""
        tape, rows, dtype = self.tape, x.rows * places.width, self.weights_dtype
        given = tape.empty("rows", rows, x.width, x.dtype)
        names = [self._first(at), f"{at}.down_proj"]
        copies = [self._copies(name, rows) for name in names[:1]]
        middle = tape.empty("product", rows, self._outputs(names[0]), dtype)
        mixed = self._activated(at, activation, middle)
        self.drop(middle)
        copies.append(self._copies(names[1], rows))
        self.drop(*copies.pop(0))
        down = tape.empty("product", rows, self._outputs(names[1]), dtype)
        self.drop(mixed)
        flat = Tensor(rows, 1, weights.dtype, tape.hold(weights).storage)
        weighted = self._weighted(down, flat)
        out = self._summed(weighted, x)
        self.drop(given, *copies[0], flat, down, weighted)
        return out

    def _copies(self, name: str, rows: Size) -> list[Tensor]:
        """Matrices of the expert of every row, and biases."""
        _, outputs, inputs = self.weights[name].shape
        found = [self.tape.empty("matrices of the rows", rows * outputs, inputs, self.weights_dtype)]
        if self.has(f"{name}_bias"):
            found.append(self.tape.empty("biases of the rows", rows, self._outputs(name), self.weights_dtype))
        return found
