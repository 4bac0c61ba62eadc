"""Norms, by their kind in a table row: what each keeps for backward."""

from __future__ import annotations

from vramcast.memory.operators import Eager
from vramcast.memory.tape import Tensor


class Norms(Eager):
    """`Eager` with the norms that are not Llama's."""

    def norm(self, kind: str, name: str, x: Tensor) -> Tensor:
        """A norm of a block or of the model's end, by its kind."""
        self.scope(name)
        if kind in ("rms_wide", "gemma"):
            return self._rms_wide(x, copied=kind == "gemma")
        if kind == "l2":
            return self._l2_norm(x)
        if kind == "layer":
            return self._layer_norm(x, f"{name}.bias")
        return self.rms_norm(x)

    def _rms_wide(self, x: Tensor, *, copied: bool) -> Tensor:
        """A root-mean-square norm that is cast back behind its weight: the normalised rows are kept in fp32. Gemma's
        weight is `copied`: a tensor of the forward like any other, which a checkpoint has to compute again.

        Source: transformers/models/olmo2/modeling_olmo2.py, Olmo2RMSNorm; models/gemma3, Gemma3RMSNorm.
        """
        tape = self.tape
        normal, mean = self.normalised(x)
        dtype = "fp32" if self.seat.norms_fp32 else self.weights_dtype
        weight = tape.parameter(1, x.width, dtype, self.base_trains)
        if copied:
            copy = tape.like(weight, "copy of the weight", "fp32")
            weight = tape.node(copy, [weight], [], lambda gradient, own=weight: [self._gradient_as(own, gradient)])
        weighted = self.scale(normal, weight, "weighted")
        if copied:  # the product is a new value of the same variable
            self.drop(normal)
        out = self.cast(weighted, x.dtype, "norm output")
        self.drop(weighted, mean, weight, *([] if copied else [normal]))
        return out

    def _l2_norm(self, x: Tensor) -> Tensor:
        """A root-mean-square norm without a weight.

        Source: transformers/models/llama4/modeling_llama4.py, Llama4TextL2Norm.
        """
        normal, mean = self.normalised(x)
        out = self.cast(normal, x.dtype, "norm output")
        self.drop(normal, mean)
        return out

    def _layer_norm(self, x: Tensor, bias: str) -> Tensor:
        """`nn.LayerNorm`: one kernel that keeps its input, and mean and deviation of every row. Autocast runs it in
        fp32.

        Source: aten/src/ATen/native/cuda/layer_norm_kernel.cu; aten/src/ATen/autocast_mode.h.
        """
        tape = self.tape
        given = self.cast(x, "fp32" if self.seat.autocast else x.dtype, "fp32 copy")
        learned = [tape.parameter(1, x.width, self.weights_dtype, self.base_trains)]
        learned += [tape.parameter(1, x.width, self.weights_dtype, self.base_trains)] * self.has(bias)
        out = tape.like(given, "norm output")
        statistics = [tape.empty(name, x.rows, 1, "fp32") for name in ("mean", "deviation")]

        def backward(gradient: Tensor) -> list[Tensor | None]:
            result = tape.like(given, "norm gradient") if given.requires_grad else None
            grads = [tape.like(one, "gradient", kind="gradient") if one.requires_grad else None for one in learned]
            return [result, *grads]

        tape.node(out, [given, *learned], [given, *statistics], backward)
        self.drop(given, *statistics)
        return out
