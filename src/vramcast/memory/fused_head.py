"""Heads that make the loss without the whole matrix of logits: TRL's in tiles, verl's in chunks of tokens."""

from __future__ import annotations

from vramcast.memory.tape import Tensor
from vramcast.memory.token_scan import TokenScan
from vramcast.memory.tower_operators import TowerOperators
from vramcast.num import Size, at_most, up_to


class FusedHead(TokenScan, TowerOperators):
    """`TokenScan` and `TowerOperators` with fused heads."""

    def fused_loss(self, hidden: Tensor) -> Tensor:
        """A head that never has the whole matrix of logits, as the framework's is made."""
        return self._chunked_head(hidden) if self.seat.recipe.fused_head == "chunks" else self._tiled_head(hidden)

    def _tiled_head(self, hidden: Tensor) -> Tensor:
        """Log-probabilities of the labelled tokens from tiles of logits. Backward recomputes the tiles and sums the
        gradients of hidden states and head in fp32.

        Source: trl/kernels/chunked_logprob.py (since TRL 1.15).
        """
        tape, seat, arch = self.tape, self.seat, self.seat.arch
        self.scope("fused head")
        scored, vocab = seat.scored_tokens, arch.vocab
        picked = self._pick(hidden, scored)
        weight = tape.parameter(vocab, arch.hidden, self.weights_dtype, self.base_trains)
        labels = tape.empty("labels", scored, 1, "int64")
        statistics = [tape.empty(f"statistic {number}", scored, 1, "fp32") for number in range(_STATISTICS)]
        self.drop(*self._tiles(picked, keeps_slice=False))
        kept = [tape.empty(name, scored, 1, "fp32") for name in ("log z", "entropy")]
        out = tape.empty("log-probabilities", scored, 1, "fp32")
        self.drop(*statistics)

        def backward(gradient: Tensor) -> list[Tensor | None]:
            sums = [tape.like(picked, "fp32 hidden gradient", "fp32", "logits")]
            if weight.requires_grad:
                sums.append(tape.like(weight, "fp32 head gradient", "fp32", "gradient"))
            tiles = self._tiles(picked, keeps_slice=True)
            grads: list[Tensor | None] = [self._rounded(sums[0], picked.dtype, "activation")]
            grads.append(self._rounded(sums[1], weight.dtype, "gradient") if weight.requires_grad else None)
            tape.drop(*sums, *tiles)
            return grads

        tape.node(out, [picked, weight], [picked, labels, *kept], backward)
        self.drop(picked, labels, *kept, hidden)
        return self._mean_of(out)

    def _rounded(self, wide: Tensor, dtype: str, kind: str) -> Tensor:
        if wide.dtype == dtype:
            return self.tape.view(wide)
        return self.tape.like(wide, f"rounded {kind}", dtype, "gradient" if kind == "gradient" else "activation")

    def _tiles(self, picked: Tensor, *, keeps_slice: bool) -> list[Tensor]:
        """One buffer for a tile of logits; where dtypes differ, the rows and the slice of the head that are cast for
        it. Each is cast before the last one is let go of; forward lets go of slices at once. What happens in two chunks
        of rows happens in more. Gives what is there at the end."""
        tape, seat, recipe = self.tape, self.seat, self.seat.recipe
        dtype, width, vocab = seat.compute_dtype, picked.width, seat.arch.vocab

        def rows(count: Size) -> list[Tensor]:
            return [tape.empty("hidden tile", count, width, dtype, "logits")] if picked.dtype != dtype else []

        def head(count: Size) -> list[Tensor]:
            return [tape.empty("head tile", count, width, dtype, "logits")] if self.weights_dtype != dtype else []

        chunk, slices = at_most(picked.rows, recipe.tile_tokens), at_most(vocab, recipe.tile_vocab)
        second = at_most(picked.rows, 2 * recipe.tile_tokens) - chunk
        buffer = tape.empty("logits tile", chunk, recipe.tile_vocab, dtype, "logits")
        hidden, held = rows(chunk), head(slices)
        if keeps_slice:
            following = head(at_most(vocab, 2 * recipe.tile_vocab) - slices)
            self.drop(*held, *following)
            held = head(vocab + recipe.tile_vocab - up_to(vocab, recipe.tile_vocab))
        else:
            self.drop(*held)
            held = []
        next_hidden = rows(second)
        self.drop(*hidden)
        next_slice = head(at_most(1, second) * slices)
        self.drop(*held)
        return [buffer, *next_hidden, *next_slice]

    def _pick(self, hidden: Tensor, scored: Size) -> Tensor:
        """Rows with a label, copied out; their gradient is scattered back over all rows in two steps."""
        tape = self.tape
        picked = tape.empty("labelled rows", scored, hidden.width, hidden.dtype)

        def backward(gradient: Tensor) -> list[Tensor | None]:
            zeros = tape.like(hidden, "scatter zeros")
            scattered = tape.like(hidden, "scattered gradient")
            tape.drop(zeros)
            return [scattered]

        return tape.node(picked, [hidden], [], backward)

    def _chunked_head(self, hidden: Tensor) -> Tensor:
        """Log-probabilities and entropies of all tokens, a chunk at a time; backward makes each chunk's logits again.

        Whether the head learns or not, each chunk makes a gradient of it, and the last chunk's is still a variable
        while the next one is made. What happens in two chunks happens in more.

        Source: verl/utils/experimental/torch_functional.py, FusedLinearForPPO (since verl 0.4).
        """
        tape, seat, arch = self.tape, self.seat, self.seat.arch
        self.scope("fused head")
        weight = tape.parameter(arch.vocab, arch.hidden, self.weights_dtype, self.base_trains)
        labels = tape.empty("labels", hidden.rows, 1, "int64")
        computed = seat.compute_dtype if seat.autocast else hidden.dtype
        out, entropies = (
            tape.like(Tensor(hidden.rows, 1, hidden.dtype, None), x) for x in ("log-probabilities", "entropies")
        )
        for rows in self._chunks(hidden.rows):
            self._scored_chunk(rows, hidden, computed)

        def backward(gradient: Tensor) -> list[Tensor | None]:
            sums = [tape.like(hidden, "hidden gradient")]
            if weight.requires_grad:
                sums.append(tape.like(weight, "head gradient", kind="gradient"))
            last: list[Tensor] = []
            for rows in self._chunks(hidden.rows):
                made = self._learnt_chunk(rows, hidden, weight)
                self.drop(*last)
                last = made
            self.drop(*last)
            return [*sums, None][:2]

        tape.node(out, [hidden, weight], [hidden, labels], backward)
        self.drop(hidden, labels, entropies)
        return self._mean_of(out)

    def _chunks(self, rows: Size) -> tuple[Size, Size]:
        """Tokens of the first chunk and of the second, which may be none."""
        first = at_most(rows, self.seat.recipe.tile_tokens)
        return first, at_most(rows, 2 * self.seat.recipe.tile_tokens) - first

    def _chunk_logits(self, rows: Size, hidden: Tensor, dtype: str) -> Tensor:
        """fp32 logits of a chunk: the product, divided by the temperature, widened. Under autocast the product casts
        both sides, and a transposed weight is not cached."""
        tape, vocab = self.tape, self.seat.arch.vocab
        some = at_most(1, rows) * vocab
        casts = [
            tape.empty(f"{name} cast", count, hidden.width, dtype, "logits")
            for name, count, own in (("hidden", rows, hidden.dtype), ("head", some, self.weights_dtype))
            if own != dtype
        ]
        product = tape.empty("logits", rows, vocab, dtype, "logits")
        self.drop(*casts)
        scaled = tape.like(product, "scaled logits", kind="logits")
        self.drop(product)
        wide = self._alias(scaled) if dtype == "fp32" else tape.like(scaled, "fp32 logits", "fp32", "logits")
        self.drop(scaled)
        return wide

    def _scored_chunk(self, rows: Size, hidden: Tensor, dtype: str) -> None:
        """Softmax, log-softmax, and the product of softmax and logits."""
        wide = self._chunk_logits(rows, hidden, dtype)
        made = [self.tape.like(wide, name, kind="logits") for name in ("softmax", "log-softmax", "softmax * logits")]
        self.drop(*made, wide)

    def _learnt_chunk(self, rows: Size, hidden: Tensor, weight: Tensor) -> list[Tensor]:
        """The gradient of the logits, then those of hidden states and head. Autocast is over."""
        tape = self.tape
        wide = self._chunk_logits(rows, hidden, hidden.dtype)
        softmax, picked = (tape.like(wide, name, kind="logits") for name in ("softmax", "picked tokens"))
        difference = tape.like(wide, "difference", kind="logits")
        product = tape.like(wide, "logits gradient", kind="logits")
        self.drop(difference)
        gradient = tape.like(wide, "sum of gradients", kind="logits")
        self.drop(product)
        low = self._alias(gradient) if hidden.dtype == "fp32" else tape.like(gradient, "low", hidden.dtype, "logits")
        scaled = tape.like(low, "scaled gradient", kind="logits")
        self.drop(gradient, low)
        some = at_most(1, rows) * weight.rows
        made = [
            tape.empty("chunk's hidden gradient", rows, hidden.width, hidden.dtype, "logits"),
            tape.empty("chunk's head gradient", some, hidden.width, hidden.dtype, "logits"),
        ]
        self.drop(scaled, picked, softmax, wide)
        return made

    def _mean_of(self, *scores: Tensor) -> Tensor:
        """The loss: a number made of log-probabilities, and of what else there is of each token."""
        tape = self.tape
        loss = tape.empty("loss", 1, 1, "fp32")
        tape.node(loss, scores, [], lambda gradient: [tape.like(each, "log-probability gradient") for each in scores])
        self.drop(*scores)
        return loss


_STATISTICS = 7
"""fp32 vectors of the forward kernel of tiles: maxima, sums and the target's logit."""
