"""Sparse attention of DeepSeek V3.2: a small scorer chooses the keys of every token, and a mask hides the others."""

from __future__ import annotations

from vramcast.memory.experts import Experts
from vramcast.memory.tape import Tensor
from vramcast.models.ops import Index
from vramcast.num import Size, at_most


class Indexer(Experts):
    """`Experts` with the scorer of sparse attention."""

    def chosen_keys(self, x: Tensor, queries: Tensor, how: Index) -> Tensor:
        """Places (int32) of the keys that the scorer chooses for every token: nothing of it is differentiated. Its
        product of every token with every key is batched by tokens, so each has a copy of all keys.

        Source: transformers/models/deepseek_v32/modeling_deepseek_v32.py, DeepseekV32Indexer.forward; ATen matmul.
        """
        tape, count = self.tape, at_most(self.seat.seen_len, how.top)
        if not how.own:
            return tape.parameter(x.rows, count, "fp32", trains=False)
        records, tape.records = tape.records, False
        self.scope("self_attn.indexer")
        query, key, held = self._index_parts(x, queries, how)
        scores = self._index_scores(query, key, how)
        weights = self.linear("self_attn.indexer.weights_proj", x)
        summed = self._every_key(x, "index scores", scores.dtype)
        hidden = [self._every_key(x, "inverted mask", "bool"), self._every_key(x, "masked scores", scores.dtype)]
        self.drop(hidden[0], summed)
        values, places = (tape.empty("largest", x.rows, count, dtype) for dtype in (scores.dtype, "int64"))
        self.drop(values)
        chosen = tape.empty("chosen keys", x.rows, count, "fp32")
        self.drop(places, query, key, *held, scores, weights, hidden[1])
        tape.records = records
        if how.handed_on:
            self.hand_on(chosen)
        return chosen

    def _every_key(self, x: Tensor, name: str, dtype: str, each: Size = 1) -> Tensor:
        """A tensor of every token and every key, for `each` head."""
        return self.tape.empty(name, x.rows * each, self.seat.seen_len, dtype)

    def _index_parts(self, x: Tensor, queries: Tensor, how: Index) -> tuple[Tensor, Tensor, list[Tensor]]:
        """(queries, keys, what is held beside them), a part of each with positions."""
        at, rest = "self_attn.indexer", how.width - how.rope
        query = self.linear(f"{at}.wq_b", queries)
        narrow = self.linear(f"{at}.wk", x)
        key = self.norm("layer", f"{at}.k_norm", narrow)
        self.drop(narrow)
        self.scope(at)
        held: list[Tensor] = [query, key]
        joined: list[Tensor] = []
        for one, count in ((query, how.heads), (key, 1)):
            turning, passed = self.split(one, count * how.rope, count * rest)
            turned = self.turn(turning, how.rotation)
            self.drop(turning)
            held += [passed, turned]
        for place in (2, 4):
            joined.append(self.join(held[place + 1], held[place]))
        return joined[0], joined[1], held

    def _index_scores(self, query: Tensor, key: Tensor, how: Index) -> Tensor:
        tape, seat = self.tape, self.seat
        dtype = seat.compute_dtype if seat.autocast else "fp32"
        keys = tape.empty("fp32 keys", seat.sequences * self.seat.seen_len, key.width, "fp32")
        wide = [self.cast(query, "fp32", "fp32 queries"), keys]
        low = [self.cast(one, dtype, "autocast copy") for one in wide]
        copies = self._every_key(query, "keys of every token", dtype, how.width)
        products = self._every_key(query, "products", dtype, how.heads)
        self.drop(copies, *low, *wide)
        scaled = tape.like(products, "scaled products")
        self.drop(products)
        scores = tape.like(scaled, "scores of heads")
        self.drop(scaled)
        return scores

    def hide(self, chosen: Tensor) -> list[Tensor]:
        """Masks of what was not chosen, and of what is seen then; the kernel makes numbers of the second one."""
        tape = self.tape
        work = [self._every_key(chosen, "ones", "bool"), tape.like(chosen, "places", "int64")]
        hidden = self._every_key(chosen, "hidden keys", "bool")
        self.drop(*work)
        inverted = self._every_key(chosen, "inverted", "bool")
        seen = self._every_key(chosen, "seen keys", "bool")
        self.drop(inverted)
        return [hidden, seen]
