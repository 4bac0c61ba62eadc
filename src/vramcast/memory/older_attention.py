"""Attention of classes that have their own: scores are tensors, scaled, biased and masked in each one's own order."""

from __future__ import annotations

from vramcast.memory.eager_attention import EagerAttention
from vramcast.memory.tape import Tensor
from vramcast.models.ops import Heads


class OlderAttention(EagerAttention):
    """`EagerAttention` with that of GPT-Neo, Bloom and MPT. What it holds until its own forward ends is dropped by
    `release`."""

    def attention_of_scores(self, query: Tensor, key: Tensor, value: Tensor, heads: Heads) -> Tensor:
        """Heads mixed by the scores of `heads.scores`; as many key heads as query heads."""
        match heads.scores:
            case "wide":
                return self._wide_scores(query, key, value, heads)
            case "baddbmm":
                return self._biased_in_product(query, key, value, heads)
            case _:
                return self._biased_in_fp32(query, key, value, heads)

    def lend(self, *tensors: Tensor) -> None:
        """Variables of the attention's own forward."""
        self.locals += tensors

    def release(self) -> None:
        """The attention's own forward is over, and with it its variables."""
        self.drop(*self.locals)
        self.locals.clear()

    def _wide_scores(self, query: Tensor, key: Tensor, value: Tensor, heads: Heads) -> Tensor:
        """Queries and keys in fp32 and no scale; a choice puts in the least number where a mask of the class says so,
        and then Transformers' mask is added as well.

        Source: transformers/models/gpt_neo/modeling_gpt_neo.py, GPTNeoSelfAttention._attn.
        """
        wide = [self.cast(x, "fp32", f"fp32 {name}") for name, x in (("query", query), ("key", key))]
        scores = self._product_of_heads(wide[0], wide[1], heads, self._dtype("fp32"))
        chosen = self._same_size(scores, "scores where seen")
        self.drop(scores)
        masked = self._masked_by_sum(chosen)
        self.drop(chosen)
        soft = self._softmax(masked)
        self.drop(masked)
        weights = self.cast(soft, value.dtype, "attention weights")
        self.drop(soft)
        mixed = self._mixed(weights, value, heads)
        self.drop(*wide)
        self.returned.append(weights)
        return self._in_rows(mixed)

    def _biased_in_product(self, query: Tensor, key: Tensor, value: Tensor, heads: Heads) -> Tensor:
        """Queries, keys and values head by head; ALiBi's biases are what the product is added to. Unmasked scores,
        masked ones and weights stay to the end.

        Source: transformers/models/bloom/modeling_bloom.py, BloomAttention.forward.
        """
        sides = [self._separate(x, f"{name} by head") for name, x in (("query", query), ("key", key), ("value", value))]
        scores = self._product_of_heads(sides[0], sides[1], heads, self._dtype(query.dtype), scaled=True)
        masked = self._masked_by_sum(scores)
        weights = self._weights_of(masked, query.dtype)
        mixed = self._mixed(weights, sides[2], heads)
        self.returned.append(weights)
        self.locals += [*sides, scores, masked]
        return self._in_rows(mixed)

    def _biased_in_fp32(self, query: Tensor, key: Tensor, value: Tensor, heads: Heads) -> Tensor:
        """ALiBi's biases are fp32, and so are scores from their sum on; masked ones stay to the end.

        Source: transformers/models/mpt/modeling_mpt.py, MptAttention.forward.
        """
        scores = self._product_of_heads(query, key, heads, self._dtype(query.dtype))
        scaled = self.times(scores)
        self.drop(scores)
        biased = self._masked_by_sum(scaled, "fp32")
        self.drop(scaled)
        masked = self._same_size(biased, "masked scores")
        self.drop(biased)
        weights = self._weights_of(masked, value.dtype)
        mixed = self._mixed(weights, value, heads)
        self.returned.append(weights)
        self.locals.append(masked)
        return self._in_rows(mixed)

    # --- steps --------------------------------------------------------------------------------------------------------

    def _dtype(self, otherwise: str) -> str:
        """Of a product of heads."""
        return self.seat.compute_dtype if self.seat.autocast else otherwise

    def _product_of_heads(
        self, query: Tensor, key: Tensor, heads: Heads, dtype: str, *, scaled: bool = False
    ) -> Tensor:
        """Scores; `scaled`: a factor is part of the product, and backward multiplies with it on its own
        (FunctionsManual, baddbmm: maybe_multiply)."""
        tape, seat = self.tape, self.seat
        low = [self.cast(x, dtype, "attention input") for x in (query, key)]
        left, right = [self._alias(x) if scaled else self._separate(x, "by head") for x in low]
        self.drop(*low)
        out = tape.empty("scores", seat.tokens * heads.count, seat.seen_len, dtype)

        def backward(gradient: Tensor) -> list[Tensor | None]:
            found: list[Tensor | None] = []
            for x in (left, right):
                made = tape.like(x, "side's gradient")
                found.append(tape.like(x, "side's gradient scaled") if scaled else made)
                if scaled:
                    tape.drop(made)
            return found

        tape.node(out, [left, right], [left, right], backward)
        self.drop(left, right)
        return out

    def _same_size(self, x: Tensor, name: str) -> Tensor:
        """`where` or `masked_fill` with a mask that is there: its gradient is masked in the same way."""
        out = self.tape.like(x, name)
        return self.tape.node(out, [x], [], lambda gradient: [self.tape.like(x, f"{name} gradient")])

    def _masked_by_sum(self, x: Tensor, dtype: str = "") -> Tensor:
        """A sum with what has no gradient."""
        return self.add(x, Tensor(x.rows, x.width, dtype or self.weights_dtype, None))

    def _weights_of(self, scores: Tensor, dtype: str) -> Tensor:
        """Their softmax in fp32, in the dtype of the product that follows."""
        wide = self._softmax(scores)
        weights = self.cast(wide, dtype, "attention weights")
        self.drop(wide)
        return weights

    def _mixed(self, weights: Tensor, value: Tensor, heads: Heads) -> Tensor:
        dtype = self._dtype(weights.dtype)
        low = self.cast(weights, dtype, "attention weights")
        right = self.cast(value, dtype, "value cast")
        apart = self._alias(right) if heads.scores == "baddbmm" else self._separate(right, "value by head")
        out = self._bmm(self.tape.empty("attention by head", value.rows, value.width, dtype), low, apart)
        self.drop(low, right, apart)
        return out

    def _in_rows(self, mixed: Tensor) -> Tensor:
        """Heads side by side in rows: a copy. Its gradient goes back head by head."""
        out = self.tape.like(mixed, "attention output")
        self.tape.node(out, [mixed], [], lambda gradient: [self._separate(gradient, "attention gradient by head")])
        self.drop(mixed)
        return out
