"""The selective state space of Mamba 1, token by token, as Transformers runs it without fused kernels.

Source: transformers/models/mamba/modeling_mamba.py, mamba_selective_scan: what runs where neither mamba-ssm nor mambapy
is installed, and nothing is compiled. Kernels keep no state of every token.
"""

from __future__ import annotations

from vramcast.errors import refuse
from vramcast.memory.chunk_scan import ChunkScan
from vramcast.memory.tape import Tensor
from vramcast.num import Size


class TokenScan(ChunkScan):
    """`ChunkScan` with a state that every channel has for itself."""

    def step_lengths(self, at: str, x: Tensor, *, unpacks: bool) -> Tensor:
        """The weight of a linear layer times what is given, without its bias: copied back into channels.

        Source: aten/src/ATen/native/LinearAlgebra.cpp, matmul: folded, `output.mT().contiguous()`.
        """
        if self.packing_for(at) and not unpacks:
            raise refuse(
                f"{self.seat.arch.model_type} does not run with packed weights: its class multiplies with "
                "the weight of dt_proj itself",
                help="tuning = lora",
            )
        if self.packing_for(at):  # Falcon Mamba and Jamba: the layer itself, and its bias taken off again
            biased = self.linear(at, x)
            plain = self.times(biased)
            self.drop(biased)
            return plain
        rows, width = self.weights[f"{at}.weight"].shape
        given = self._computed(x)
        weight = self._weight("weight", rows, width, self.weights_dtype, self.base_trains)
        product = self.tape.empty("step lengths by row", x.rows, rows, given.dtype)

        def backward(gradient: Tensor) -> list[Tensor | None]:
            found = self.tape.like(weight, "gradient", kind="gradient") if weight.requires_grad else None
            return [self.tape.like(given, "step gradient"), found]

        saved = [weight, *([given] if weight.requires_grad else [])]
        self.tape.node(product, [given, weight], saved, backward)
        self.drop(given, weight)
        return self.copied(product)

    def token_scan(self, at: str, x: Tensor, step: Tensor, b: Tensor, c: Tensor, gate: Tensor, state: Size) -> Tensor:
        """Outputs (tokens × channels) times SiLU of a gate; `step` is what makes lengths, b and c are (tokens × state).
        Three tensors are of every token, channel and number of its state, in fp32; so are the states."""
        self.scope(at)
        tape = self.tape
        rate = self._rates(x.width, state)
        shifted = self.learned(f"{at}.dt_proj.bias", step, "plus")
        lengths = self.activate("softplus", shifted)
        self.drop(shifted)
        exponent = self._outer(lengths, rate, state, "exponent")
        decays = self.pointwise(exponent, "exp", saves=True)
        self.drop(exponent)
        wide = self.cast(b, "fp32", "fp32 copy")
        writes = self._outer(lengths, wide, state, "writes")
        self.drop(wide)
        wide = self.cast(x, "fp32", "fp32 copy")
        inputs = self.scale(writes, wide, "inputs of the states")
        self.drop(wide)
        read, *variables = self._loop(decays, inputs, c, x)
        skip = self.scale(x, tape.parameter(1, x.width, "fp32", self.base_trains), "skip")
        total = self.add(read, skip)
        self.drop(skip, read)
        opened = self.activate("silu", gate)
        out = self.multiply(total, opened)
        self.drop(opened, total, decays, writes, inputs, lengths, rate, *variables)
        return out

    def _rates(self, channels: Size, state: Size) -> Tensor:
        """-exp(A_log) in fp32."""
        learned = self.tape.parameter(channels, state, self.weights_dtype, self.base_trains)
        wide = self.cast(learned, "fp32", "fp32 copy")
        grown = self.pointwise(wide, "exp of A", saves=True)
        self.drop(wide)
        out = self.pointwise(grown, "rates", saves=False)
        self.drop(grown)
        return out

    def _outer(self, left: Tensor, right: Tensor, state: Size, name: str) -> Tensor:
        """Products of two sides that are both repeated; the gradient of each is whole before it is summed."""
        tape = self.tape
        out = tape.empty(name, left.rows, left.width * state, "fp32")

        def backward(gradient: Tensor) -> list[Tensor | None]:
            grads: list[Tensor | None] = []
            for side in (left, right):
                whole = tape.like(out, f"{name} gradient")
                grads.append(tape.like(side, f"{name} gradient summed") if side.requires_grad else None)
                tape.drop(whole)
            return grads

        saved = [side for side, other in ((left, right), (right, left)) if other.requires_grad]
        return tape.node(out, [left, right], saved, backward)

    def _loop(self, decays: Tensor, inputs: Tensor, c: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(outputs, those of every token, the last state). One state comes after the other: each product keeps one, and
        a copy of it in the dtype of the tokens. In backward every token gives a gradient of each whole tensor that it
        took a slice of."""
        tape = self.tape
        keeps = tape.records and not tape.checkpointed
        rows = decays.rows if keeps else self.seat.sequences
        last = tape.empty("last state", self.seat.sequences, decays.width, "fp32")
        states = tape.empty("states", rows, decays.width, "fp32")
        copies = tape.hold(states) if x.dtype == "fp32" else tape.like(states, "states as they are read", x.dtype)
        each = tape.like(x, "outputs of the tokens")
        out = tape.like(x, "outputs")

        def backward(gradient: Tensor) -> list[Tensor | None]:
            grads: list[Tensor | None] = [tape.like(one, "gradient of all tokens") for one in (decays, inputs)]
            tape.drop(tape.like(decays, "gradient of a token"))
            return [*grads, tape.like(c, "gradient of what reads")]

        tape.node(out, [decays, inputs, c], [decays, states, copies, c], backward)
        self.drop(states, copies)
        return out, each, last
