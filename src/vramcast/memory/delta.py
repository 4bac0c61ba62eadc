"""The gated delta rule in chunks of a sequence, as Transformers' own PyTorch runs it.

This is the path that a class takes without the packages flash-linear-attention (`fla`) and causal-conv1d. With `fla`,
kernels keep queries, keys, values in their own dtype and a state for every chunk, and make the rest again in backward.

Source: transformers/models/qwen3_5/modeling_qwen3_5.py, torch_chunk_gated_delta_rule.
"""

from __future__ import annotations

from vramcast.memory.indexer import Indexer
from vramcast.memory.tape import Tensor
from vramcast.models.ops import Delta
from vramcast.num import Size, up_to, whole

_CHUNK = 64


class DeltaRule(Indexer):
    """`Indexer` with the gated delta rule."""

    def decay(self, at: str, x: Tensor) -> Tensor:
        """`-exp(A_log) * softplus(a + dt_bias)` in fp32."""
        tape = self.tape
        wide = self.cast(x, "fp32", "fp32 copy")
        bias = tape.parameter(1, x.width, self.weights_dtype, self.base_trains)
        total = self.tape.like(wide, "sum")

        def backward(gradient: Tensor) -> list[Tensor | None]:
            summed = tape.like(bias, "bias gradient", kind="gradient") if bias.requires_grad else None
            return [tape.view(gradient), summed]

        tape.node(total, [wide, bias], [], backward)
        self.drop(wide)
        soft = self.activate("softplus", total)
        self.drop(total)
        out = self.scale(soft, tape.parameter(1, x.width, "fp32", self.base_trains), "decay")
        self.drop(soft)
        return out

    def delta_rule(
        self, query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, how: Delta
    ) -> Tensor:
        """What the heads read of their states; all in fp32, and in the dtype of the queries at the end."""
        tape, dtype = self.tape, query.dtype
        sides = [self._every_head(x, how) for x in (query, key)]
        wide = [self.cast(x, "fp32", "fp32 copy") for x in (*sides, value, beta, decay)]
        self.drop(*sides)
        first, second = self._unit(wide[0], how), self._unit(wide[1], how)
        self.drop(wide[0], wide[1])
        scaled = self.times(first)
        self.drop(first)
        q, k, v, b, g = (self._padded(x) for x in (scaled, second, *wide[2:]))
        self.drop(scaled, second, *wide[2:])
        v_beta, k_beta = self.scale(v, b, "values times beta"), self.scale(k, b, "keys times beta")
        mask = tape.empty("upper triangle", _CHUNK, _CHUNK, "bool")
        total = self.pointwise(g, "summed decay", saves=False)
        pairs = self._pairs(total, how, mask)
        system, within = (self._decayed_scores(one, k, pairs, turned=dtype == "fp32") for one in (k_beta, q))
        grown = self.pointwise(total, "exp", saves=True)
        decayed = self.scale(k_beta, grown, "decayed keys")
        new, known = self._solved(system, v_beta), self._solved(system, decayed)
        core = tape.like(new, "read of the states")
        query = self._decayed(q, total)
        self.drop(q, grown)
        key = self._decayed(k, total)
        self.drop(k)
        out = self._scan([new, known, query, within, key], core, how)
        low = self.cast(Tensor(beta.rows, out.width, "fp32", out.storage, out.requires_grad), dtype, "low")
        if low.requires_grad:
            tape.nodes[-1].inputs = [out]
        self.drop(v, b, g, v_beta, k_beta, mask, total, pairs, system, within, decayed, new, known, query, key, out)
        return low

    def _every_head(self, x: Tensor, how: Delta) -> Tensor:
        """`repeat_interleave` of the key heads."""
        return self.spread(x, how.heads * how.keys) if how.shared else self.tape.hold(x)

    def _unit(self, x: Tensor, how: Delta) -> Tensor:
        """l2norm."""
        tape = self.tape
        squares = self.multiply(x, x)
        sums = tape.empty("sums", x.rows, how.heads, x.dtype)
        tape.node(sums, [squares], [], lambda gradient: [tape.view(gradient)])
        self.drop(squares)
        shifted = self.pointwise(sums, "shifted", saves=False)
        self.drop(sums)
        root = self.pointwise(shifted, "rsqrt", saves=True)
        self.drop(shifted)
        out = self.scale(x, root, "unit")
        self.drop(root)
        return out

    def _padded(self, x: Tensor) -> Tensor:
        """Whole chunks: `pad` copies even where nothing is missing."""
        rows = self.seat.sequences * up_to(self.seat.seq_len, _CHUNK)
        out = self.tape.empty("padded", rows, x.width, x.dtype)
        return self.tape.node(out, [x], [], lambda gradient: [self.tape.like(x, "unpadded gradient")])

    def _pairs(self, total: Tensor, how: Delta, mask: Tensor) -> Tensor:
        """The decay between any two positions of a chunk."""
        tape = self.tape
        pairs = tape.empty("pairs", total.rows, how.heads * _CHUNK, "fp32")
        tape.node(pairs, [total], [], lambda gradient: [tape.like(total, "gradient summed")])
        filled = tape.like(pairs, "masked pairs")
        tape.node(filled, [pairs], [mask], lambda gradient: [tape.like(pairs, "masked gradient")])
        self.drop(pairs)
        out = self.pointwise(filled, "exp of pairs", saves=True)
        self.drop(filled)
        return out

    def _decayed_scores(self, left: Tensor, right: Tensor, pairs: Tensor, *, turned: bool) -> Tensor:
        """Products of two rows of a chunk, times the decay between them. What was fp32 from the beginning lies as it
        was projected (`turned`), unless the last chunk was filled up: the product has copies of it.

        Source: aten/src/ATen/native/TensorConversions.cpp, to_will_alias; PadNd.cpp, constant_pad_nd: `clone`.
        """
        tape = self.tape
        sides = [self._computed(x) for x in (left, right)]
        copies = [tape.empty("copy", x.rows * self._whole_chunks_only(), x.width, "fp32") for x in sides if turned]
        plain = tape.like(pairs, "product", sides[0].dtype)
        tape.node(plain, sides, [*sides, *copies], lambda _: [tape.like(x, "gradient") for x in sides])
        self.drop(*sides, *copies)
        out = self.multiply(plain, pairs)
        self.drop(plain)
        return out

    def _whole_chunks_only(self) -> Size:
        """1 where a sequence is whole chunks, else 0."""
        missing = up_to(self.seat.seq_len, _CHUNK) - self.seat.seq_len
        return 1 - whole(missing + _CHUNK - 1, _CHUNK)

    def _solved(self, system: Tensor, x: Tensor) -> Tensor:
        """`solve_triangular` keeps the matrix and what it gives: linalg_solve_triangular_backward."""
        tape, out = self.tape, self.tape.like(x, "solution")

        def backward(gradient: Tensor) -> list[Tensor | None]:
            result = tape.like(x, "solution gradient")
            product = tape.like(system, "system gradient product")
            matrix = tape.like(system, "system gradient")
            tape.drop(product)
            return [matrix, result]

        return tape.node(out, [system, x], [system, out], backward)

    def _decayed(self, x: Tensor, total: Tensor) -> Tensor:
        grown = self.pointwise(total, "exp", saves=True)
        out = self.scale(x, grown, "decayed")
        self.drop(grown)
        return out

    def _scan(self, given: list[Tensor], core: Tensor, how: Delta) -> Tensor:
        """The loop over chunks: each keeps its new values and the state that it begins with. In backward every chunk
        gives a gradient of each whole tensor that it took a slice of, which are added up."""
        tape, seat = self.tape, self.seat
        one = seat.sequences * _CHUNK
        chunks: Size = whole(up_to(seat.seq_len, _CHUNK), _CHUNK)
        state = seat.sequences * how.heads * how.keys
        keeps = tape.records and not tape.checkpointed
        values = tape.empty("new values of chunks", core.rows if keeps else one, core.width, "fp32")
        states = tape.empty("states of chunks", state * chunks if keeps else state, how.values, "fp32")
        parts = [tape.empty("part of a chunk", one, core.width, "fp32") for _ in range(2 if keeps else 1)]
        last = [tape.empty("state", state, how.values, "fp32") for _ in range(3)]
        self.drop(*last[1:])
        out = Tensor(core.rows, core.width, "fp32", core.storage)

        def backward(gradient: Tensor) -> list[Tensor | None]:
            before = tape.like(core, "gradient before the copy")
            grads: list[Tensor | None] = [tape.like(x, "gradient of all chunks") for x in given]
            tape.drop(before)
            return grads

        if seat.autocast and keeps:
            kept = self._copies_of_chunks([*given[1:], values], states, state)
            tape.node(out, given, kept, backward)
            self.drop(*kept)
        else:
            tape.node(out, given, [*given[1:], values, states], backward)
        self.drop(states, last[0])  # nobody asked for the last one
        by_row = self.copied(out)  # it lies by column, as solutions do
        self.drop(values, *parts)
        return by_row

    def _copies_of_chunks(self, given: list[Tensor], states: Tensor, state: Size) -> list[Tensor]:
        """What the products of all chunks keep under autocast: each has copies of its own, of states and new values
        two. The last state is never asked for, so nothing is kept for what makes it."""
        tape, low, one = self.tape, self.seat.compute_dtype, self.seat.sequences * _CHUNK
        before = tape.empty("states before the last", states.rows - state, states.width, "fp32")
        known, query, within, key, values = given
        every = (known, query, within, values, states, states)
        kept = [tape.like(x, "copies of chunks", low) for x in every]
        kept += [tape.empty("copies for states", x.rows - one, x.width, low) for x in (key, values)]
        return [before, *kept]

    def gated_norm(self, name: str, x: Tensor, gate: Tensor, how: Delta) -> Tensor:
        """A root-mean-square norm of every head, times SiLU of a gate in fp32: Qwen3_5RMSNormGated."""
        self.scope(name)
        rows, gates = self.split_heads(x, how.values), self.split_heads(gate, how.values)
        normed = self.rms_norm(rows)
        wide = self.cast(gates, "fp32", "fp32 gate")
        opened = self.activate("silu", wide)
        self.drop(wide)
        product = self.multiply(normed, opened)
        self.drop(normed, opened)
        low = self.cast(product, x.dtype, "norm output")
        self.drop(product)
        out = self.merge_heads(low, x.width)
        self.drop(low, rows, gates)
        return out

    def spread(self, x: Tensor, width: Size) -> Tensor:
        """Key heads copied for every query head; gradients are summed and copied into rows."""
        tape = self.tape
        out = tape.empty("spread keys", x.rows, width, x.dtype)

        def backward(gradient: Tensor) -> list[Tensor | None]:
            summed = tape.like(x, "summed gradient")
            rows = tape.like(x, "gradient by row")
            tape.drop(summed)
            return [rows]

        return tape.node(out, [x], [], backward)
