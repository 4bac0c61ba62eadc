"""The state space of Mamba 2, chunk by chunk along a sequence, as Transformers runs it without fused kernels.

Source: transformers/models/mamba2/modeling_mamba2.py, mamba2_chunk_scan, causal_conv1d_fn, MambaRMSNormGated and
mamba2_selective_state_update: what runs where mamba-ssm and causal-conv1d are not installed.
"""

from __future__ import annotations

from vramcast.memory.compressed import Compressed
from vramcast.memory.tape import Tensor
from vramcast.models.ops import Scan
from vramcast.num import Size, shard, up_to, whole


class ChunkScan(Compressed):
    """`Compressed` with what a state-space layer is made of."""

    def norm_of_gated(self, name: str, x: Tensor, gate: Tensor, width: Size) -> Tensor:
        """A root-mean-square norm of x times silu(gate) in fp32, over groups of `width`. What is given is fp32, and so
        is what it gives."""
        self.scope(name)
        wide = self.cast(gate, "fp32")
        opened = self.activate("silu", wide)
        self.drop(wide)
        product = self.multiply(x, opened)
        self.drop(opened)
        groups = self.split_heads(product, width)
        squares = self.square(groups)
        mean = self.mean(squares)
        self.drop(squares)
        shifted = self.pointwise(mean, "shifted", saves=False)
        root = self.pointwise(shifted, "rsqrt", saves=True)
        self.drop(shifted)
        normal = self.scale(groups, root, "normalised fp32")
        self.drop(root, groups, product)
        rows = self.merge_heads(normal, x.width)
        self.drop(normal)
        out = self.scale(rows, self.tape.parameter(1, x.width, self.weights_dtype, self.base_trains), "norm output")
        self.drop(rows, mean)
        return out

    def by_buffer(self, x: Tensor) -> Tensor:
        """`x` times a buffer of its width, in the dtype of the weights."""
        return self.scale(x, self.tape.parameter(1, x.width, self.weights_dtype, trains=False), "multiple")

    def chunk_scan(self, at: str, x: Tensor, step: Tensor, b: Tensor, c: Tensor, how: Scan) -> Tensor:
        """Outputs (tokens × heads * width, fp32) of a state space: within a chunk as attention without softmax, whose
        scores are of every two of its positions and each head; between chunks by states."""
        self.scope(at)
        steps = self._steps(at, step)
        if self.seat.decodes:
            out = self._update(x, b, how)
            self.drop(steps)
            return out
        wide = self.cast(x, "fp32")
        b, c = (self._for_heads(one, how) for one in (b, c))
        skipped = self._skipped(wide, how)
        low = self.cast(steps, "fp32")
        plain = [self.scale(wide, low, "discretised")]
        self.drop(low, wide)
        low = self.cast(steps, "fp32")
        rate = self.tape.parameter(1, how.heads, self.weights_dtype, self.base_trains)
        plain += [self.scale(low, rate, "decays"), b, c]
        self.drop(low)
        values, decays, b, c = (self._whole_chunks(one, how) for one in plain)
        self.drop(*plain)
        mixed = self._through_chunks(values, decays, b, c, how)
        out = self.add(mixed, skipped)
        self.drop(mixed, skipped, steps, values, decays, b, c)
        return self._cut(out, how)

    def _steps(self, at: str, step: Tensor) -> Tensor:
        """Lengths of steps: their bias added, softplus, and bounds on both sides."""
        shifted = self.learned(f"{at}.dt_bias", step, "plus")
        soft = self.activate("softplus", shifted)
        self.drop(shifted)
        out = self.clamp(soft, 2)
        self.drop(soft)
        return out

    def _for_heads(self, x: Tensor, how: Scan) -> Tensor:
        """What heads of a group share, in fp32 and for each of them."""
        wide = self.cast(x, "fp32")
        out = self.tape.empty("of every head", x.rows, how.heads * how.state, "fp32")
        self.tape.node(out, [wide], [], lambda gradient: [self.tape.like(wide, "gradient of a group")])
        self.drop(wide)
        return out

    def _skipped(self, x: Tensor, how: Scan) -> Tensor:
        padded = self._whole_chunks(x, how)
        learned = self.tape.parameter(1, how.heads, self.weights_dtype, self.base_trains)
        out = self.scale(padded, learned, "skip")
        self.drop(padded)
        return out

    def _whole_chunks(self, x: Tensor, how: Scan) -> Tensor:
        """Whole chunks: `pad` copies also where nothing is missing."""
        return self.pad(x, up_to(self.seat.seq_len, how.chunk) - self.seat.seq_len)

    def _cut(self, x: Tensor, how: Scan) -> Tensor:
        """Without the padding; the gradient of a cut is a tensor of the whole."""
        tape, seat = self.tape, self.seat
        missing = up_to(seat.seq_len, how.chunk) - seat.seq_len
        cuts = whole(missing + how.chunk - 1, how.chunk)  # 1, or 0 where a sequence is whole chunks
        out = Tensor(seat.tokens, x.width, x.dtype, x.storage)

        def backward(gradient: Tensor) -> list[Tensor | None]:
            tape.drop(tape.empty("gradient of the cut", x.rows * cuts, x.width, x.dtype))
            return [tape.view(gradient)]

        return tape.node(out, [x], [], backward)

    def _through_chunks(self, values: Tensor, decays: Tensor, b: Tensor, c: Tensor, how: Scan) -> Tensor:
        """Chunks mixed within and between, in one sum that is copied into rows."""
        tape, seat = self.tape, self.seat
        chunks = shard(seat.seq_len, how.chunk)
        heads, wide = seat.sequences * how.heads, how.width * how.state
        summed = self._running_sums(decays)
        mask = self._decay(decays, how.chunk)
        scores = self._contract(c, b, decays.rows, how.heads * how.chunk, "scores")
        hidden = self.multiply(scores, mask)
        within = self._contract(hidden, values, values.rows, values.width, "within chunks", copies=(False, True))
        remaining = self._remaining(summed)
        weighted = self.scale(b, remaining, "weighted by decay")
        states = self._contract(values, weighted, heads * chunks, wide, "states")
        before = tape.empty("first state", heads, wide, "fp32")
        joined = tape.empty("states and the first", heads * (chunks + 1), wide, "fp32")
        tape.node(joined, [states], [], lambda gradient: [tape.view(gradient)])
        self.drop(states)
        last = Tensor(heads * (chunks + 1), 1, "fp32", None, requires_grad=decays.requires_grad)
        between = self._decay(last, chunks + 1)
        passed = self._contract(between, joined, joined.rows, wide, "states of chunks", copies=(False, True))
        self.drop(joined)
        starts = Tensor(heads * chunks, wide, "fp32", tape.hold(passed).storage)
        tape.node(starts, [passed], [], lambda gradient: [tape.like(passed, "slice gradient")])
        self.drop(passed)
        left = self.pointwise(summed, "exp", saves=True)
        read = self._contract(c, starts, values.rows, values.width, "states read")
        across = self.scale(read, left, "across chunks")
        total = self.add(within, across)
        out = tape.like(total, "by row")
        tape.node(out, [total], [], lambda gradient: [tape.view(gradient)])
        self.drop(total, across, read, left, starts, between, before, weighted, remaining)
        self.drop(within, hidden, scores, mask, summed)
        return out

    def _running_sums(self, x: Tensor) -> Tensor:
        """`cumsum`: its gradient is turned around, summed up and turned again.

        Source: torch/csrc/autograd/FunctionsManual.cpp, cumsum_backward.
        """
        tape = self.tape
        out = tape.like(x, "running sums")

        def backward(gradient: Tensor) -> list[Tensor | None]:
            steps = [tape.like(x, name) for name in ("turned gradient", "its sums")]
            result = tape.like(x, "gradient of sums")
            tape.drop(*steps)
            return [result]

        return tape.node(out, [x], [], backward)

    def _remaining(self, sums: Tensor) -> Tensor:
        """What is left of a position at the end of its chunk."""
        difference = self.tape.like(sums, "difference")

        def backward(gradient: Tensor) -> list[Tensor | None]:
            return [self.tape.like(sums, "negative gradient")]

        self.tape.node(difference, [sums], [], backward)
        out = self.pointwise(difference, "exp", saves=True)
        self.drop(difference)
        return out

    def _decay(self, x: Tensor, length: Size) -> Tensor:
        """exp of the sums between every two positions of a chunk: `segment_sum`, which fills twice by a mask."""
        tape = self.tape

        def fill(given: Tensor, before: Tensor) -> Tensor:
            ones = [tape.empty(name, length, length, "bool") for name in ("ones", "triangle", "hidden")]
            tape.drop(*ones[:2])
            out = tape.empty("filled", x.rows, x.width * length, "fp32")

            def backward(gradient: Tensor) -> list[Tensor | None]:
                filled = tape.like(out, "filled gradient")
                if before is not x:
                    return [filled]
                summed = tape.like(x, "gradient of a position")
                tape.drop(filled)
                return [summed]

            tape.node(out, [given], [ones[2]], backward)
            tape.drop(ones[2])
            return out

        filled = fill(x, x)
        sums = self._running_sums(filled)
        hidden = fill(sums, sums)
        self.drop(sums, filled)
        out = self.pointwise(hidden, "exp", saves=True)
        self.drop(hidden)
        return out

    def _contract(
        self,
        left: Tensor,
        right: Tensor,
        rows: Size,
        width: Size,
        name: str,
        *,
        copies: tuple[bool, bool] = (True, True),
    ) -> Tensor:
        """`einsum` as one product of batches. A side that does not lie as the product reads it is copied first, and the
        product has those copies.

        Source: aten/src/ATen/native/Linear.cpp, sumproduct_pair.
        """
        tape, sides = self.tape, list[Tensor]()
        for side, copied in zip((left, right), copies, strict=True):
            one = self.copied(tape.hold(side)) if copied else self._alias(side)
            sides.append(self._computed(one))
            self.drop(one)
        out = tape.empty(name, rows, width, sides[0].dtype)

        def backward(gradient: Tensor) -> list[Tensor | None]:
            return [tape.like(side, f"{name} gradient") if side.requires_grad else None for side in sides]

        saved = [side for side, other in zip(sides, sides[::-1], strict=True) if other.requires_grad]
        tape.node(out, sides, saved, backward)
        self.drop(*sides)
        return out

    def _update(self, x: Tensor, b: Tensor, how: Scan) -> Tensor:
        """One more token of every sequence: the state, its decay, what comes and their sum, each in fp32."""
        tape = self.tape
        one = tape.empty("decays", x.rows, how.heads * how.width * how.state, "fp32")
        shared = tape.empty("b of every head", b.rows, how.heads * how.state, b.dtype)
        work = [tape.like(one, name, dtype) for name, dtype in (("step * b", b.dtype), ("step * b * x", b.dtype))]
        tape.drop(tape.like(one, "decayed state"))
        states = [tape.like(one, "state")]
        out = tape.empty("output of the states", x.rows, x.width, "fp32")
        tape.drop(one, shared, *work, *states)
        return out
