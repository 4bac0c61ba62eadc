"""Attention kernels: what `scaled_dot_product_attention` allocates, by kernel."""

from __future__ import annotations

from msgspec import structs

from vramcast.memory.older_attention import OlderAttention
from vramcast.memory.tape import Tensor
from vramcast.models.ops import Heads
from vramcast.num import Size, up_to, whole

_WIDEST = 256
"""head width that flash attention has kernels for"""
_SMALL = 128
"""head widths up to which the flash kernel pads to 32, above to 64"""


class Attention(OlderAttention):
    """`Linears` with attention."""

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        heads: Heads,
        *,
        joined: bool = False,
    ) -> Tensor:
        """Causal attention of all sequences; query, key and value are `tokens * width`. The flash kernel wants keys and
        values of one width (sdp_utils.cpp, check_head_dim_size_flash), and gives what lies as its queries do: head by
        head where they were `joined`, and then it is copied into rows."""
        seat = self.seat
        if heads.scores and seat.attention == "eager":
            return self.attention_of_scores(query, key, value, heads)
        if seat.attention == "eager":
            return self._eager(query, key, value, heads)
        bound = seat.binds(heads.window)
        spread: list[Tensor] = []
        if bound and seat.autocast and heads.shared and int(heads.keys) != 1:  # with a mask, before autocast casts them
            key, value = (self._expanded(x, query, name, heads) for x, name in ((key, "key"), (value, "value")))
            spread, heads = [key, value], structs.replace(heads, keys=heads.count)
        if seat.autocast:
            query, key, value = (self.cast(x, seat.compute_dtype, "attention input") for x in (query, key, value))
        else:
            query, key, value = (self._alias(x) for x in (query, key, value))
        other = int(heads.width) != int(heads.values) or int(heads.width) > _WIDEST
        ready = bound and seat.arch.ends.masks == "biased" and not seat.autocast  # it is of numbers, and all layers'
        if seat.attention == "efficient" or bound or other:
            out = self._efficient(query, key, value, heads, bound=bound and not ready)
        else:
            out = self._flash(query, key, value, heads)
            if joined:
                by_head, out = out, self._by_row(out)
                self.drop(by_head)
        self.drop(query, key, value, *spread)
        return out

    def _flash(self, query: Tensor, key: Tensor, value: Tensor, heads: Heads) -> Tensor:
        """FlashAttention 2: output and log-sum-exp are kept. Backward: dq, dk, dv and, for its own use, an fp32 row
        sum, an fp32 dq over padded rows, and expanded dk and dv when heads share keys.

        Source: aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_bwd.
        """
        tape, seat = self.tape, self.seat
        out = tape.like(query, "attention output")
        log_sum = tape.empty("log-sum-exp", query.rows, heads.count, "fp32")
        padded_rows = seat.sequences * up_to(seat.seq_len, 128)
        padded_head = up_to(heads.width, 32 if int(heads.width) <= _SMALL else 64)

        def backward(gradient: Tensor) -> list[Tensor | None]:
            grads: list[Tensor | None] = [
                tape.like(x, f"{name} gradient") for name, x in (("query", query), ("key", key), ("value", value))
            ]
            row_sum = tape.empty("attention row sums", padded_rows, heads.count, "fp32")
            wide = tape.empty("fp32 query gradient", padded_rows, heads.count * padded_head, "fp32")
            expanded = self._expanded_gradients(query, heads)
            tape.drop(row_sum, wide, *expanded)
            return grads

        tape.node(out, [query, key, value], [query, key, value, out, log_sum], backward)
        self.drop(log_sum)
        return out

    def _by_row(self, x: Tensor) -> Tensor:
        out = self.tape.like(x, "attention by row")
        return self.tape.node(out, [x], [], lambda gradient: [self.tape.view(gradient)])

    def _expanded_gradients(self, query: Tensor, heads: Heads) -> list[Tensor]:
        if not heads.shared:
            return []
        return [self.tape.like(query, f"expanded {name} gradient") for name in ("key", "value")]

    def _efficient(
        self, query: Tensor, key: Tensor, value: Tensor, heads: Heads, *, bound: bool
    ) -> Tensor:
        """Memory-efficient attention: keys and values are first expanded to all heads (before torch 2.14 the kernel has
        no grouped heads); rows of the log-sum-exp are padded to 32. Backward adds an fp32 row sum. A window's mask of
        true and false becomes one of numbers, which each layer keeps.

        Source: aten/src/ATen/native/transformers/cuda/attention_backward.cu; attention.cpp,
        convert_boolean_attn_mask; transformers repeat_kv.
        """
        tape, seat = self.tape, self.seat
        key, value = (self._repeated(x, query, name, heads) for x, name in ((key, "key"), (value, "value")))
        rows = seat.tokens * (heads.count if seat.arch.ends.masks == "biased" else 1)
        bias = [tape.empty("mask in numbers", rows, seat.seq_len, query.dtype)] if bound else []
        out = tape.empty("attention output", query.rows, heads.count * heads.values, query.dtype)
        padded_rows = seat.sequences * up_to(seat.seq_len, 32)
        log_sum = tape.empty("log-sum-exp", padded_rows, heads.count, "fp32")

        def backward(gradient: Tensor) -> list[Tensor | None]:
            sides = (("query", query), ("key", key), ("value", value))
            grads: list[Tensor | None] = [tape.like(x, f"{name} gradient") for name, x in sides]
            row_sum = tape.empty("attention row sums", padded_rows, heads.count, "fp32")
            tape.drop(row_sum)
            return grads

        tape.node(out, [query, key, value], [query, key, value, out, log_sum, *bias], backward)
        self.drop(log_sum, key, value, *bias)
        return out

    def _repeated(self, x: Tensor, query: Tensor, name: str, heads: Heads) -> Tensor:
        """`_expanded`, but for a single key head, which all heads see where it is: `reshape` of what `expand` gives."""
        if int(heads.keys) != 1 or not heads.shared:
            return self._expanded(x, query, name, heads)
        out = Tensor(x.rows, x.width * heads.count, x.dtype, self.tape.hold(x).storage)
        return self.tape.node(out, [x], [], lambda gradient: [self.tape.like(x, f"{name} gradient summed")])

    def cache(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Hugging Face's cache takes keys and values over by copy; the copies are counted by the kv_cache term. In
        training the outputs hold the cache, and so it keeps them when a block's backward is through with them."""
        if self.seat.caches_until_loss and self.tape.records:
            self.cached += [key, value]
            return self.tape.hold(key), self.tape.hold(value)
        if self.seat.caches_in_step and self.tape.records:
            return self.tape.hold(key), self.tape.hold(value)
        if not (self.seat.caches and self.seat.state == "generate"):
            return key, value
        cached = tuple(self.tape.parameter(x.rows, x.width, x.dtype, trains=False) for x in (key, value))
        self.drop(key, value)
        return cached[0], cached[1]

    def split_heads(self, x: Tensor, width: Size) -> Tensor:
        """The same memory seen as one row of `width` per head, for norms over a head."""
        return self._reshaped(x, x.rows * whole(x.width, width), width)

    def merge_heads(self, x: Tensor, width: Size) -> Tensor:
        """Back to one row of `width` per token."""
        return self._reshaped(x, self.seat.tokens, width)

    def _reshaped(self, x: Tensor, rows: Size, width: Size) -> Tensor:
        tape = self.tape
        alias = Tensor(rows, width, x.dtype, tape.hold(x).storage)
        return tape.node(alias, [x], [], lambda gradient: [tape.view(gradient)])
