"""The two ends of a model: embedding and rope tables before the blocks, the head and the loss behind them."""

from __future__ import annotations

from vramcast.memory.scored_logits import ScoredLogits, mark_logits
from vramcast.memory.tape import Tensor
from vramcast.num import tabulate


class Model(ScoredLogits):
    """All operators a causal language model needs, from token ids to the loss."""

    def inputs(self) -> list[Tensor]:
        """Token ids and the attention mask, 8 bytes a token each; `generate` has positions too, and keeps all three for
        the tokens that are in the cache as well."""
        self.scope("inputs")
        seat = self.seat
        if seat.state == "generate":
            names, length = ("ids", "attention mask", "positions"), seat.cached_len
        else:
            names, length = ("ids", "attention mask"), seat.seq_len
        return [self.tape.empty(name, seat.sequences, length, "int64") for name in names]

    def hidden(self, name: str, *, embedded: bool = False) -> Tensor:
        """Hidden states of all tokens, as a block gets them, part of the graph; from the embedding in the dtype of the
        weights."""
        self.scope("")
        dtype = self.weights_dtype if embedded and not self.seat.arch.ends.wide else self.seat.hidden_dtype
        out = self.tape.empty(name, self.seat.tokens, self.seat.arch.hidden, dtype)
        out.requires_grad = self.tape.records
        return out

    def embed(self) -> Tensor:
        """Rows of the embedding. Backward makes a gradient of the whole table and, for long inputs, sorts the ids.

        Source: aten/src/ATen/native/cuda/Embedding.cu (sorts above 3072 ids).
        """
        tape, arch = self.tape, self.seat.arch
        self.scope("embed_tokens")
        weight = tape.parameter(arch.vocab, arch.hidden, self.weights_dtype, self.base_trains)
        out = tape.empty("embedded tokens", self.seat.tokens, arch.hidden, self.weights_dtype)
        out.requires_grad = self.seat.inputs_require_grad and tape.records

        def backward(gradient: Tensor) -> list[Tensor | None]:
            table = tape.like(weight, "embedding gradient", kind="gradient")
            sort = [
                tape.empty(f"id sort {part}", tabulate(_sorted_ids, self.seat.tokens), 1, "int64") for part in range(4)
            ]
            tape.drop(*sort)
            return [table]

        tape.node(out, [weight], [], backward)
        if arch.ends.embed_norm:
            plain, out = out, self.norm(arch.ends.norm, arch.ends.embed_norm, out)
            self.drop(plain)
        if not arch.ends.scales:
            return out
        scaled = self.times(out)
        self.drop(out)
        return scaled

    def rope_tables(self) -> None:
        """Cosines and sines of every position, in the dtype of the hidden states; computed in fp32. Training shares
        them; `generate` counts the positions of each sequence from its mask and makes tables for each.

        Source: transformers/generation/utils.py, _prepare_position_ids_for_generation.
        """
        tape, seat = self.tape, self.seat
        if not int(seat.arch.ends.rotary):
            return
        self.scope("rotary_emb")
        ends, width = seat.arch.ends, seat.arch.ends.rotary
        own = seat.state == "generate" or seat.arch.ends.own_positions
        positions = seat.tokens if own else seat.seq_len
        if ends.complex_tables:
            table = tape.empty("complex table", positions, width, "fp32")
            self.tables = table, Tensor(positions, 0, "fp32", None)
            return
        dtype = "fp32" if ends.wide_tables else self.weights_dtype
        for _ in ends.spans[1:] if ends.tables_each else ():
            self.variables += [tape.empty("other rope table", positions, width, dtype) for _ in range(2)]
        angles = tape.empty("fp32 angles", positions, width, "fp32")
        cosines, sines = (tape.like(angles, f"fp32 {part}") for part in ("cosines", "sines"))
        tape.drop(angles)
        low = tuple(self.cast(table, dtype, "rope table") for table in (cosines, sines))
        tape.drop(cosines, sines)
        self.tables = low[0], low[1]

    # --- heads --------------------------------------------------------------------------------------------------------

    def last_logits(self, hidden: Tensor) -> Tensor:
        """Logits of the last position of every sequence, with the fp32 copy that sampling works on; older versions made
        those of the whole prompt, and fp32 of them."""
        tape, seat, recipe = self.tape, self.seat, self.seat.recipe
        self.scope("")
        scaled = recipe.prefill_logits == "scaled" and bool(seat.arch.ends.logits)
        every = recipe.prefill_logits == "all" or scaled
        scored = hidden if every else Tensor(seat.sequences, hidden.width, hidden.dtype, hidden.storage)
        logits = self._logits(scored)
        if every and recipe.prefill_fp32:
            plain, logits = logits, self.cast(logits, "fp32", "fp32 logits")
            mark_logits(logits)
            self.drop(plain)
        self.drop(hidden)  # the model's forward returns the logits only
        copy = [tape.like(logits, "logits of the loop", kind="logits")] if scaled else []
        wide = tape.empty("fp32 last logits", seat.sequences, seat.arch.vocab, "fp32", "logits")
        self.drop(logits, *copy)
        return wide

    def full_loss(self, hidden: Tensor) -> Tensor:
        """Hugging Face's causal loss: logits of every token, an fp32 copy, their log-softmax (kept), and in backward
        two more fp32 tensors of that size. Older versions copy the fp32 logits without the last token.

        Source: transformers/loss/loss_utils.py, ForCausalLMLoss; torch log_softmax and nll_loss.
        """
        tape, arch, shift = self.tape, self.seat.arch, self.seat.recipe.shift
        self.scope("")
        logits = self._logits(hidden)
        wide = self.cast(logits, "fp32", "fp32 logits")
        mark_logits(wide)
        if shift == "model":
            self.drop(logits)
            logits = Tensor(wide.rows, wide.width, wide.dtype, tape.hold(wide).storage)
        scored = self._alias(wide) if shift == "labels" else self._shifted(wide)
        probabilities = tape.empty("log-softmax", wide.rows, arch.vocab, "fp32", "logits")

        def backward(gradient: Tensor) -> list[Tensor | None]:
            nll = tape.like(wide, "nll gradient", kind="logits")
            result = tape.like(wide, "log-softmax gradient", kind="logits")
            tape.drop(nll)
            return [result]

        tape.node(probabilities, [scored], [probabilities], backward)
        self.drop(scored, wide)
        loss = tape.empty("loss", 1, 1, "fp32")
        tape.node(loss, [probabilities], [], lambda gradient: [tape.view(gradient)])
        self.drop(probabilities, hidden)
        self._return(logits)
        return loss

    def _shifted(self, wide: Tensor) -> Tensor:
        """`logits[..., :-1, :].contiguous()`, counted with all tokens."""
        tape = self.tape
        out = tape.like(wide, "shifted logits", kind="logits")
        return tape.node(out, [wide], [], lambda gradient: [tape.like(wide, "shifted gradient", kind="logits")])

    def _return(self, logits: Tensor) -> None:
        """The logits in the model's output: converted to fp32 by accelerate, which ends autocast before, held or not
        by the caller, who may measure them first."""
        recipe = self.seat.recipe
        if recipe.outputs_fp32:
            self.leave()
        if recipe.outputs_fp32 and logits.dtype != "fp32":
            wide = self.tape.like(logits, "fp32 output logits", "fp32", "logits")
            self.drop(logits)
            logits = wide
        self.measure(logits)
        if not recipe.outputs_kept:
            self.drop(logits)


def _sorted_ids(tokens: int) -> int:
    """Ids that the embedding's backward sorts: none up to 3072."""
    return tokens if tokens > 3072 else 0
