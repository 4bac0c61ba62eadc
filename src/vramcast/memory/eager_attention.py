"""Attention without a kernel of its own: scores of every pair of tokens are tensors like any other."""

from __future__ import annotations

from vramcast.memory.linear import Linears
from vramcast.memory.promotion import promoted
from vramcast.memory.tape import Tensor
from vramcast.models.ops import Heads


class EagerAttention(Linears):
    """`Linears` with Transformers' `eager_attention_forward` (integrations and each modeling file): two products of
    every head, and between them scale, mask and softmax, each a tensor of sequences × heads × length × length."""

    def by_head(self, x: Tensor, *, joined: bool = False) -> Tensor:
        """Rows seen as heads. Eager attention gives gradients head by head, and so do heads that were `joined` of
        parts: they are copied back into rows."""
        if self.seat.attention != "eager" and not joined:
            return x
        tape = self.tape
        alias = Tensor(x.rows, x.width, x.dtype, tape.hold(x).storage)
        tape.node(alias, [x], [], lambda gradient: [tape.like(x, "gradient by row")])
        self.drop(x)
        return alias

    def masks(self, *, first: bool = False) -> list[Tensor]:
        """What says which tokens see which, of every pair of a sequence's tokens: numbers that are added to eager
        scores, true or false for windows that a kernel masks. `first`: those of the first layer only."""
        seat = self.seat
        eager, spans = seat.attention == "eager", seat.arch.ends.spans
        needed = [span for span in spans[: 1 if first else None] if eager or span in seat.masked]
        ends = seat.arch.ends
        if ends.masks == "biased" and not eager:  # ALiBi's biases of every head are part of it
            rows = seat.tokens * seat.arch.heads[0]
            return [self.tape.empty("mask of all heads", rows, seat.seen_len, self.weights_dtype)]
        dtype = self.weights_dtype if eager and not ends.fills else "bool"
        return [self.tape.empty("mask", seat.tokens, seat.seen_len, dtype) for _ in needed]

    def _eager(self, query: Tensor, key: Tensor, value: Tensor, heads: Heads) -> Tensor:
        """Keys and values are expanded to all heads; under autocast each product casts its inputs. The softmax is in
        fp32 (of bf16 by a copy, of fp16 in one kernel) and kept, beside it in 16 bits for the product with the values.
        The block holds the weights until it is through.
        """
        tape, dtype = self.tape, self.seat.compute_dtype
        keys, values = self._expanded(key, query, "key", heads), self._expanded(value, query, "value", heads)
        weights, beside = self._weights(query, keys, heads)
        low = self.cast(weights, dtype, "attention weights")
        right = self._right(values, "value", heads)
        outputs = heads.count * heads.values
        mixed = self._bmm(tape.empty("attention by head", query.rows, outputs, dtype), low, right)
        out = tape.like(mixed, "attention output")
        tape.node(out, [mixed], [], lambda gradient: [self._separate(gradient, "attention gradient by head")])
        self.drop(mixed, low, right, keys, values, *beside)
        self.keep(weights)
        return out

    def _weights(self, query: Tensor, keys: Tensor, heads: Heads) -> tuple[Tensor, list[Tensor]]:
        """(softmax of the scaled, masked scores, in the dtype of the query; what is held beside it)."""
        scores = self._scores(query, keys, heads)
        scaled = self.times(scores)
        self.drop(scores)
        if heads.capped:
            shrunk = self.times(scaled)
            self.drop(scaled)
            bent = self.pointwise(shrunk, "tanh", saves=True)
            self.drop(shrunk)
            scaled = self.times(bent)
            self.drop(bent)
        mask = Tensor(scaled.rows, scaled.width, self.weights_dtype, None)
        masked = self.add(scaled, mask)
        self.drop(scaled)
        if heads.shifts:
            return self._shifted_weights(masked, heads)
        wide = self._softmax(masked)
        weights = self.cast(wide, query.dtype, "attention weights")
        self.drop(masked, wide)
        return weights, []

    def _shifted_weights(self, scores: Tensor, heads: Heads) -> tuple[Tensor, list[Tensor]]:
        """Softmax in the dtype of the scores, and of a learned one beside them if there are sinks, after the largest is
        taken off.

        Source: eager_attention_forward of transformers/models/gpt_oss/modeling_gpt_oss.py and of mimo_v2_flash.
        """
        tape, holds = self.tape, heads.shifts == "held"
        given = self._with_sinks(scores, heads) if heads.sinks else tape.hold(scores)

        def moved(gradient: Tensor) -> list[Tensor | None]:
            tape.drop(tape.like(given, "negated gradient"))
            tape.drop(tape.like(given, "gradient of the largest"))
            return [tape.view(gradient)]

        def of_softmax(gradient: Tensor) -> list[Tensor | None]:
            result = tape.like(given, "softmax gradient")
            tape.drop(tape.like(given, "gradient times softmax"))
            return [result]

        if not holds:
            self.drop(scores)
        kinds = (("largest", given.dtype), ("place of the largest", "int64"))
        largest = [tape.empty(name, given.rows, 1, dtype) for name, dtype in kinds]
        shifted = tape.node(tape.like(given, "shifted scores"), [given], largest[1:], moved)
        self.drop(*largest, given)
        every = tape.like(given, "softmax")
        tape.node(every, [shifted], [every], of_softmax)
        if not holds:
            self.drop(shifted)
        weights = every
        if heads.sinks:
            weights = Tensor(given.rows, scores.width, given.dtype, every.storage)
            tape.node(weights, [every], [], lambda gradient: [tape.like(given, "gradient of the scores")])
        if holds:
            self.drop(scores)
        return weights, [shifted] if holds else []

    def _with_sinks(self, scores: Tensor, heads: Heads) -> Tensor:
        tape = self.tape
        sinks = tape.parameter(1, heads.count, self.weights_dtype, self.base_trains)
        out = tape.empty("scores and sink", scores.rows, scores.width + 1, promoted(scores.dtype, sinks.dtype))

        def apart(gradient: Tensor) -> list[Tensor | None]:
            learned = tape.like(sinks, "sinks gradient", kind="gradient") if sinks.requires_grad else None
            return [tape.view(gradient), learned]

        return tape.node(out, [scores, sinks], [], apart)

    def _scores(self, query: Tensor, keys: Tensor, heads: Heads) -> Tensor:
        tape, seat = self.tape, self.seat
        right = self.cast(keys, seat.compute_dtype, "key cast")
        low = self.cast(query, seat.compute_dtype, "query cast")
        left = self._separate(low, "query by head")
        self.drop(low)
        whole, right = right, self._right(right, "key", heads)
        self.drop(whole)
        out = tape.empty("scores", seat.tokens * heads.count, seat.seen_len, seat.compute_dtype)
        self._bmm(out, left, right)
        self.drop(left, right)
        return out

    def _bmm(self, out: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """A product of all heads: each side is saved for the other's gradient; backward makes the right one's first."""
        tape = self.tape

        def backward(gradient: Tensor) -> list[Tensor | None]:
            to_right = tape.like(right, "right gradient") if right.requires_grad else None
            return [tape.like(left, "left gradient") if left.requires_grad else None, to_right]

        saved = [x for x, other in ((left, right), (right, left)) if other.requires_grad]
        return tape.node(out, [left, right], saved, backward)

    def _softmax(self, x: Tensor) -> Tensor:
        """In fp32. Backward multiplies gradient and output first, in fp32 as well.

        Source: aten/src/ATen/native/cuda/SoftMax.cu: half_to_float for fp16 only; softmax_backward_cuda_out.
        """
        tape = self.tape
        wide = self.cast(x, "fp32" if x.dtype == "bf16" else x.dtype, "fp32 scores")
        out = tape.like(wide, "softmax", "fp32")

        def backward(gradient: Tensor) -> list[Tensor | None]:
            result = tape.like(wide, "softmax gradient")
            tape.drop(tape.like(gradient, "gradient times softmax"))
            return [result]

        tape.node(out, [wide], [out], backward)
        self.drop(wide)
        return out

    def _right(self, x: Tensor, name: str, heads: Heads) -> Tensor:
        """Keys or values as a product of all heads wants them: so they are where they were expanded or cached."""
        ready = heads.shared or self.seat.caches_in_step
        return self._alias(x) if ready else self._separate(x, f"{name} by head")

    def _separate(self, x: Tensor, name: str) -> Tensor:
        """A product of all heads wants their rows apart: a copy, which one sequence does not need."""
        tape = self.tape
        if self.seat.one_sequence:
            return self._alias(x)
        out = tape.like(x, name)
        return tape.node(out, [x], [], lambda gradient: [tape.view(gradient)])

    def expanded(self, x: Tensor, query: Tensor, heads: Heads) -> Tensor:
        """Keys or values for all heads, which the class itself makes. What it was given is gone."""
        out = self._expanded(x, query, "for all heads", heads)
        self.drop(x)
        return out

    def _expanded(self, x: Tensor, query: Tensor, name: str, heads: Heads) -> Tensor:
        """repeat_kv: a copy for all heads; the gradient is summed back over the group."""
        if not heads.shared:
            return self._alias(x)
        tape = self.tape
        eager = self.seat.attention == "eager"
        rows = self.seat.sequences * self.seat.seen_len if eager else query.rows
        width = heads.count * (heads.values if name == "value" else heads.width)
        out = tape.empty(f"expanded {name}", rows, width, x.dtype)
        return tape.node(out, [x], [], lambda gradient: [tape.like(x, f"{name} gradient summed")])
