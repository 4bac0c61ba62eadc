"""Matrix products with packed weights, as bitsandbytes runs them."""

from __future__ import annotations

from vramcast.memory.norms import Norms
from vramcast.memory.packing import Packing, path_of
from vramcast.memory.seat import Seat
from vramcast.memory.tape import Tape, Tensor
from vramcast.num import Size, shard, tabulate

SCALED = 64
"""weights that share a scale: bitsandbytes functional.py, the block of quantize_4bit"""


_LONG = 1024
"""rows from which AutoAWQ unpacks the weight"""


def _long(rows: int) -> int:
    return 1 if rows >= _LONG else 0


class Packed(Norms):
    """`Norms` with products of packed weights, which never train."""

    def __init__(self, tape: Tape, seat: Seat) -> None:
        super().__init__(tape, seat)
        self.held_inputs: list[Tensor] = []
        """inputs that nodes hold themselves, in the order of the forward"""
        self._again = False

    def hold_again(self, inputs: list[Tensor]) -> list[Size]:
        """Before a recomputation: the first forward's nodes still hold their `inputs`. Bytes of each tensor."""
        self._again = True
        tensors = {id(one.storage): one for one in inputs}
        return [self.tape.size(self.tape.like(one, "input of a product")) for one in tensors.values()]

    def packing_for(self, name: str) -> Packing | None:
        """How a linear layer of the block that runs is packed; None for a plain one."""
        packing = self.seat.packing
        return packing if packing and path_of(self.prefix, f"{name}.weight") in packing.formats else None

    def packed_product(self, name: str, x: Tensor, inputs: Size, outputs: Size, packing: Packing) -> Tensor:
        """`x @ W.T` with a packed W; input and result are in the dtype of `x`."""
        tape = self.tape
        scope, tape.module = tape.module, f"{tape.module}.{name}" if tape.module else name
        if packing.product == "int8":
            result = self._int8_product(x, inputs, outputs)
        elif packing.product == "unpack":
            result = self._converted_product(x, inputs, outputs, packing)
        else:
            result = self._kernel_product(x, inputs, outputs, packing)
        tape.module = scope
        return result

    def _converted_product(self, x: Tensor, inputs: Size, outputs: Size, packing: Packing) -> Tensor:
        """The product in the packing's dtype.

        Source: bitsandbytes/nn/modules.py Linear4bit.forward, autograd/_functions.py MatMul4Bit and
        backends/cuda/ops.py _dequant_linear_fallback (0.50).
        """
        low = self.cast(x, packing.compute_dtype, "input cast")
        out = self._unpacked_product(low, inputs, outputs, packing)
        result = self.cast(out, x.dtype, "output cast")
        self.drop(low, out)
        return result

    def _kernel_product(self, x: Tensor, inputs: Size, outputs: Size, packing: Packing) -> Tensor:
        """The product of a kernel that reads packed weights, in inference: these layers do not train here.

        fp8: the input is quantised first, with an fp32 scale for 128 elements (transformers 4.51 finegrained_fp8.py
        act_quant). AWQ: from 1024 rows on the whole weight is unpacked (autoawq 0.2 modules/linear/gemm.py).
        """
        tape = self.tape
        beside: list[Tensor] = []
        if packing.product == "fp8":
            beside = [tape.like(x, "fp8 input", "fp8"), tape.empty("input scales", x.rows, shard(inputs, 128), "fp32")]
        elif packing.product == "long":
            beside = [tape.empty("unpacked weight", tabulate(_long, x.rows) * outputs, inputs, x.dtype)]
        out = tape.empty("output", x.rows, outputs, x.dtype)
        self.drop(*beside)
        return out

    def _int8_product(self, x: Tensor, inputs: Size, outputs: Size) -> Tensor:
        """LLM.int8(): the input is quantised row by row, the product summed in int32 and scaled to fp16.

        The node holds its input itself, not as a saved tensor: checkpoints cannot let go of it, and backward does not;
        it goes with the graph. How many columns are outliers depends on the values: none is assumed.

        Source: bitsandbytes/autograd/_functions.py MatMul8bitLt, backends/cuda/ops.py int8_vectorwise_quant (0.50).
        """
        tape = self.tape
        half = self.tape.hold(x) if x.dtype == "fp16" else tape.like(x, "fp16 copy", "fp16")
        scales = tape.empty("row scales", x.rows, 1, "fp32")
        codes = tape.like(x, "int8 input", "int8")
        magnitudes = tape.like(half, "magnitudes")
        outliers = tape.like(x, "outliers", "bool")
        self.drop(magnitudes)
        self.drop(outliers, half)
        sums = tape.empty("int32 sums", x.rows, outputs, "fp32")
        low = tape.empty("fp16 output", x.rows, outputs, "fp16")
        out = low if x.dtype == "fp16" else tape.like(low, "output", x.dtype)
        if out is not low:
            self.drop(low)
        self.drop(sums, codes, scales)
        if tape.records and x.requires_grad:
            self._hold(x)

        def backward(gradient: Tensor) -> list[Tensor | None]:
            weight = tape.empty("unpacked weight", outputs, inputs, x.dtype)
            row = self.cast(gradient, x.dtype, "gradient cast")
            result = tape.like(x, "input gradient")
            self.drop(weight, row)
            return [result]

        return tape.node(out, [x], [], backward)

    def _hold(self, x: Tensor) -> None:
        self.held_inputs.append(self.tape.hold(x))

    def forget_recomputation(self) -> None:
        """The graph of a recomputation goes when it is over, and what its nodes held."""
        if self._again:
            self.drop(*self.held_inputs)

    def _unpacked_product(self, x: Tensor, inputs: Size, outputs: Size, packing: Packing) -> Tensor:
        """The whole weight is unpacked for the product and, because nothing keeps it, again in backward.

        Autocast converts both operands once more. Backward runs outside of it, in the dtype of the result's gradient.
        """
        tape, seat = self.tape, self.seat
        dtype = seat.compute_dtype if seat.autocast else x.dtype
        scales = self._unpacked_scales(inputs, outputs, packing, copies=2)
        weight = tape.empty("unpacked weight", outputs, inputs, x.dtype)
        casts = [tape.like(one, "autocast copy", dtype) for one in (x, weight) if one.dtype != dtype]
        out = tape.empty("output", x.rows, outputs, dtype)
        self.drop(*casts, weight, *scales)

        def backward(gradient: Tensor) -> list[Tensor | None]:
            scales = self._unpacked_scales(inputs, outputs, packing, copies=1)
            whole = tape.empty("unpacked weight", outputs, inputs, packing.origin_dtype)
            self.drop(*scales)
            weight = self.cast(whole, gradient.dtype, "unpacked weight cast")
            self.drop(whole)
            product = tape.like(x, "input gradient", gradient.dtype)
            self.drop(weight)
            result = self._gradient_as(x, product)
            self.drop(product)
            return [result]

        return tape.node(out, [x], [], backward)

    def _unpacked_scales(self, inputs: Size, outputs: Size, packing: Packing, copies: int) -> list[Tensor]:
        """Nested scales in fp32. The forward adds their offset in a second copy, backward in place."""
        if not packing.nested:
            return []
        count = shard(inputs * outputs, SCALED)
        return [self.tape.empty("unpacked scales", 1, count, "fp32") for _ in range(copies)]
