"""Norms, by their kind in a table row: what each keeps for backward."""

from __future__ import annotations

from vramcast.memory.activation_functions import ActivationFunctions
from vramcast.memory.tape import Tensor


class Norms(ActivationFunctions):
    """`Eager` with the norms that are not Llama's."""

    def norm(self, kind: str, name: str, x: Tensor) -> Tensor:
        """A norm of a block or of the model's end, by its kind."""
        self.scope(name)
        match kind:
            case "rms_wide":
                return self._rms_wide(x)
            case "rms_shifted":
                return self._rms_shifted(x)
            case "l2":
                return self._l2_norm(x)
            case "layer":
                return self._layer_norm(x, name)
            case "layer_wide":
                return self._layer_wide(x)
            case "centred":
                return self._centred(x, name)
            case _:
                return self.rms_norm(x)

    def _rms_shifted(self, x: Tensor) -> Tensor:
        """A root-mean-square norm by `1 + weight` in fp32: the normalised rows are kept in fp32.

        Source: transformers/models/gemma/modeling_gemma.py, GemmaRMSNorm.
        """
        tape = self.tape
        normal, mean = self.normalised(x)
        self.drop(mean)
        parameter = tape.parameter(1, x.width, self.weights_dtype, self.base_trains)
        wide = self.cast(parameter, "fp32", "fp32 weight")
        shifted = self.pointwise(wide, "shifted weight", saves=False)
        self.drop(wide)
        weighted = self.scale(normal, shifted, "weighted")
        self.drop(normal, shifted)
        out = self.cast(weighted, x.dtype, "norm output")
        self.drop(weighted)
        return out

    def _layer_wide(self, x: Tensor) -> Tensor:
        """A layer norm in fp32 without weights, cast back.

        Source: transformers/models/olmo/modeling_olmo.py, OlmoLayerNorm.
        """
        wide = self.cast(x, "fp32", "fp32 copy")
        normal = self._layer_kernel(wide, [])
        self.drop(wide)
        out = self.cast(normal, x.dtype, "norm output")
        self.drop(normal)
        return out

    def _centred(self, x: Tensor, name: str) -> Tensor:
        """A layer norm written out in fp32: mean, deviations, their squares, and a weight in fp32.

        Source: transformers/models/cohere/modeling_cohere.py, CohereLayerNorm.
        """
        tape = self.tape
        wide = self.cast(x, "fp32", "fp32 copy")
        mean = self.mean(wide)
        first = self._minus(wide, mean)
        squares = self.square(first)
        self.drop(first)
        variance = self.mean(squares)
        self.drop(squares)
        deviations = self._minus(wide, mean)
        shifted = self.pointwise(variance, "shifted", saves=False)
        root = self.pointwise(shifted, "rsqrt", saves=True)
        self.drop(shifted)
        normal = self.scale(deviations, root, "normalised fp32")
        self.drop(deviations, root, wide)
        shape = list(self.weights[f"{name}.weight"].shape)
        rows = shape[0] if len(shape) > 1 else 1  # norms of heads have a scale for each
        parameter = tape.parameter(rows, shape[-1], self.weights_dtype, self.base_trains)
        weight = self.cast(parameter, "fp32", "fp32 weight")
        weighted = self.scale(normal, weight, "weighted")
        self.drop(normal, weight)
        out = self.cast(weighted, x.dtype, "norm output")
        self.drop(weighted, mean, variance)
        return out

    def _minus(self, x: Tensor, mean: Tensor) -> Tensor:
        """`x - mean`: the mean's gradient is summed over a row."""
        tape = self.tape
        out = tape.like(x, "deviations")

        def backward(gradient: Tensor) -> list[Tensor | None]:
            negative = tape.like(x, "negative gradient")
            summed = tape.like(mean, "mean's gradient")
            tape.drop(negative)
            return [tape.view(gradient), summed]

        return tape.node(out, [x, mean], [], backward)

    def _rms_wide(self, x: Tensor) -> Tensor:
        """A root-mean-square norm that is cast back behind its weight: the normalised rows are kept in fp32.

        Source: transformers/models/olmo2/modeling_olmo2.py, Olmo2RMSNorm.
        """
        tape = self.tape
        normal, mean = self.normalised(x)
        dtype = "fp32" if self.seat.norms_fp32 else self.weights_dtype
        weighted = self.scale(normal, tape.parameter(1, x.width, dtype, self.base_trains), "weighted")
        out = self.cast(weighted, x.dtype, "norm output")
        self.drop(normal, weighted, mean)
        return out

    def _l2_norm(self, x: Tensor) -> Tensor:
        """A root-mean-square norm without a weight.

        Source: transformers/models/llama4/modeling_llama4.py, Llama4TextL2Norm.
        """
        normal, mean = self.normalised(x)
        out = self.cast(normal, x.dtype, "norm output")
        self.drop(normal, mean)
        return out

    def _layer_norm(self, x: Tensor, name: str) -> Tensor:
        """`nn.LayerNorm`: one kernel. Autocast runs it in fp32. Source: aten/src/ATen/autocast_mode.h."""
        given = self.cast(x, "fp32" if self.seat.autocast else x.dtype, "fp32 copy")
        learned = [
            self.tape.parameter(1, x.width, self.weights_dtype, self.base_trains)
            for kind in ("weight", "bias")
            if self.has(f"{name}.{kind}")
        ]
        out = self._layer_kernel(given, learned)
        self.drop(given)
        return out

    def _layer_kernel(self, given: Tensor, learned: list[Tensor]) -> Tensor:
        """It keeps its input, and mean and deviation of every row.

        Source: aten/src/ATen/native/cuda/layer_norm_kernel.cu.
        """
        tape = self.tape
        out = tape.like(given, "norm output")
        statistics = [tape.empty(name, given.rows, 1, "fp32") for name in ("mean", "deviation")]

        def backward(gradient: Tensor) -> list[Tensor | None]:
            result = tape.like(given, "norm gradient") if given.requires_grad else None
            grads = [tape.like(one, "gradient", kind="gradient") if one.requires_grad else None for one in learned]
            return [result, *grads]

        tape.node(out, [given, *learned], [given, *statistics], backward)
        self.drop(*statistics)
        return out
