"""Linear layers: plain, under autocast, and with LoRA adapters as PEFT runs them."""

from __future__ import annotations

from vramcast.memory.packed import Packed
from vramcast.memory.promotion import promoted
from vramcast.memory.tape import Tensor
from vramcast.num import Size


def _last(name: str) -> str:
    return name.rpartition(".")[2]


class Linears(Packed):
    """`Packed` with matrix products of plain weights, and adapters beside either."""

    def linear(self, name: str, x: Tensor) -> Tensor:
        """`x @ W.T + b`, with an adapter beside it when `name` is a target.

        `name` is the layer's below its block (`self_attn.q_proj`), whose tensors have the widths.
        """
        outputs, inputs = self.weights[f"{name}.weight"].shape
        if int(inputs) != int(x.width):  # GPT-2's Conv1D stores inputs × outputs
            outputs = inputs
        bias = self.has(f"{name}.bias")
        if self.seat.adapts(_last(name)):
            return self._adapted(name, x, x.width, outputs, bias)
        return self._base(name, x, x.width, outputs, bias)

    def _base(self, name: str, x: Tensor, inputs: Size, outputs: Size, bias: bool) -> Tensor:
        """The model's own product; the head is never packed."""
        if packing := self.packing_for(name):
            return self.packed_product(_last(name), x, inputs, outputs, packing)
        own = self.seat.arch.ends.bias_apart and name != "lm_head"
        apart, dtype, trains = bias and own, self.weights_dtype, self.base_trains
        out = self._product(_last(name), x, inputs, outputs, bias and not apart, dtype, trains, seen=own)
        return self._with_bias(out) if apart else out

    def _with_bias(self, product: Tensor) -> Tensor:
        """A bias that an operator of its own adds, in its own dtype: FalconLinear."""
        tape = self.tape
        offset = tape.parameter(1, product.width, self.weights_dtype, self.base_trains)
        out = tape.like(product, "sum", promoted(product.dtype, offset.dtype))

        def backward(gradient: Tensor) -> list[Tensor | None]:
            learned = tape.like(offset, "bias gradient", kind="gradient") if offset.requires_grad else None
            return [self._gradient_as(product, gradient), learned]

        tape.node(out, [product, offset], [], backward)
        self.drop(product)
        return out

    def _product(
        self, name: str, x: Tensor, inputs: Size, outputs: Size, bias: bool, dtype: str, trains: bool, *,
        seen: bool = False,
    ) -> Tensor:  # fmt: skip
        """`seen`: the weight is a view, whose copies autocast does not cache."""
        tape = self.tape
        scope, tape.module = tape.module, f"{tape.module}.{name}" if tape.module else name
        offset = self._weight("bias", 1, outputs, dtype, trains) if bias else None
        weight = self._weight("weight", outputs, inputs, dtype, trains, cached=not seen)
        rows_in = self._computed(x)
        out = tape.empty("output", x.rows, outputs, rows_in.dtype)

        def backward(gradient: Tensor) -> list[Tensor | None]:
            grad_weight = grad_x = grad_bias = None
            if weight.requires_grad:
                grad_weight = tape.like(weight, f"{name} weight gradient", kind="gradient")
            if rows_in.requires_grad:
                grad_x = tape.like(rows_in, f"{name} input gradient")
            if offset is not None and offset.requires_grad:
                grad_bias = tape.like(offset, f"{name} bias gradient", kind="gradient")
            return [grad_x, grad_weight, grad_bias][: 3 if offset is not None else 2]

        saved = ([rows_in] if weight.requires_grad else []) + ([weight] if rows_in.requires_grad else [])
        used = [rows_in, weight] + ([offset] if offset is not None else [])
        tape.node(out, used, saved, backward)
        self.drop(*used)
        tape.module = scope
        return out

    def _weight(
        self, name: str, rows: Size, width: Size, dtype: str, trains: bool, *, cached: bool = True
    ) -> Tensor:
        """A weight as the product reads it. Autocast makes a low-precision copy; copies of fp32 weights that train are
        cached until the autocast region ends, without a graph too (aten/src/ATen/autocast_mode.cpp, cached_cast)."""
        tape = self.tape
        parameter = tape.parameter(rows, width, dtype, trains)
        if not self.seat.autocast or dtype == self.seat.compute_dtype:
            return parameter
        copy = tape.like(parameter, f"{name} copy", self.seat.compute_dtype, "cast")
        tape.node(copy, [parameter], [], lambda gradient: [self._gradient_as(parameter, gradient)])
        if cached and (trains or self.seat.unfrozen) and dtype == "fp32":
            tape.cached_casts.append(tape.hold(copy))
        return copy

    def _computed(self, x: Tensor) -> Tensor:
        """The input in the dtype of the product: a copy per layer under autocast, which caches weights only."""
        return self.cast(x, self.seat.compute_dtype, "input cast") if self.seat.autocast else self._alias(x)

    def _adapted(self, name: str, x: Tensor, inputs: Size, outputs: Size, bias: bool) -> Tensor:
        """PEFT's LoRA linear: the frozen product, then `B(A(dropout(x))) * scaling` added to it.

        Source: peft/tuners/lora/layer.py, Linear.forward (0.21). The input is cast to the adapter's dtype first, so
        bf16 activations gain an fp32 copy before every adapter with fp32 weights.
        """
        tape, seat = self.tape, self.seat
        base = self._base(name, x, inputs, outputs, bias)
        packing, name = self.packing_for(name), _last(name)
        if packing and packing.product == "unpack":
            base = self._clone(base)
        converts = not (packing and seat.autocast)  # PEFT's packed layers leave the input to autocast
        wide = self.cast(x, seat.adapter_param_dtype if converts else x.dtype, f"{name} adapter input")
        dropped = self._dropout(wide, name) if seat.adapter_dropout else self._alias(wide)
        down = self._product(f"{name}.lora_A", dropped, inputs, seat.lora_rank, False, seat.adapter_param_dtype, True)
        self.drop(dropped)
        up = self._product(f"{name}.lora_B", down, seat.lora_rank, outputs, False, seat.adapter_param_dtype, True)
        self.drop(down)
        scaled = tape.like(up, f"{name} adapter output")
        tape.node(scaled, [up], [], lambda gradient: [tape.like(up, f"{name} scaling gradient")])
        self.drop(up)
        if packing and converts:
            wide_output, scaled = scaled, self.cast(scaled, base.dtype)
            self.drop(wide_output)
        total = self.add(base, scaled)
        self.drop(scaled)
        out = self.cast(total, base.dtype)
        self.drop(base, wide, total)
        return out

    def _clone(self, x: Tensor) -> Tensor:
        """PEFT copies the result of a 4-bit layer before it adds to it: peft/tuners/lora/bnb.py, Linear4bit.forward."""
        out = self.tape.like(x, "copy of the product")
        self.tape.node(out, [x], [], lambda gradient: [self.tape.view(gradient)])
        self.drop(x)
        return out

    def dropout(self, x: Tensor) -> Tensor:
        """`nn.Dropout` of the model's own: nothing while it does not train. The caller still holds x."""
        return self._dropout(x, "residual") if self.seat.records else self.tape.hold(x)

    def _dropout(self, x: Tensor, name: str) -> Tensor:
        """CUDA dropout keeps a mask of one byte per element."""
        tape = self.tape
        out = tape.like(x, f"{name} dropout")
        mask = tape.like(x, f"{name} dropout mask", "bool")
        tape.node(out, [x], [mask], lambda gradient: [tape.like(x, "dropout gradient")])
        self.drop(mask)
        return out
