"""Heads that have whole logits and take log-probabilities from them, and what trainers measure on logits beside."""

from __future__ import annotations

from vramcast.memory.fused_head import FusedHead
from vramcast.memory.seat import Seat
from vramcast.memory.tape import Backward, Tape, Tensor
from vramcast.num import Size, at_most, whole


def mark_logits(tensor: Tensor) -> None:
    """Counts a tensor with the logits."""
    if tensor.storage is not None:
        tensor.storage.kind = "logits"


class ScoredLogits(FusedHead):
    """`FusedHead` with heads that score tokens on whole logits."""

    def __init__(self, tape: Tape, seat: Seat) -> None:
        super().__init__(tape, seat)
        self.left: tuple[int, Size] | None = None
        """the step at which the model was left before its loss was known, and the casts that were there"""

    def leave(self) -> None:
        """The end of the model's forward, and of autocast: accelerate wraps that, and nothing else."""
        self.left = len(self.tape.steps), self.tape.alive("cast")
        self.tape.end_autocast()

    def _logits(self, hidden: Tensor) -> Tensor:
        arch = self.seat.arch
        given = hidden
        if arch.ends.scales_hidden:
            given = self.times(hidden)
            self.keep(given)
        low = self.cast(given, self.weights_dtype) if arch.ends.adds_wide else self._alias(given)
        logits = self._base("lm_head", low, arch.hidden, arch.vocab, bias=False)
        self.drop(low)
        if arch.ends.logits:
            wide, plain = arch.ends.logits == "wide", logits
            logits = self.cast(plain, "fp32", "fp32 logits") if wide else self.times(plain)
            self.drop(plain)
        mark_logits(logits)
        return self._capped(logits) if arch.ends.logits == "capped" else logits

    def _capped(self, divided: Tensor) -> Tensor:
        """`tanh(logits / cap) * cap`: the tanh is kept."""
        bent = self.pointwise(divided, "tanh", saves=True)
        mark_logits(bent)
        self.drop(divided)
        out = self.times(bent)
        mark_logits(out)
        self.drop(bent)
        return out

    def kernel_loss(self, hidden: Tensor) -> Tensor:
        """Cross-entropy in one kernel: the logits stay in 16 bits and their gradient overwrites them, unless an entropy
        of them is part of the loss.

        Source: flash_attn/ops/triton/cross_entropy.py with inplace_backward, as verl calls it
        (verl/utils/torch_functional.py, logprobs_from_logits).
        """
        tape = self.tape
        self.scope("")
        logits = self._logits(hidden)
        self.drop(hidden)
        learns = tape.records and self.seat.entropy != "none"
        entropy = [self._entropy(logits)] if learns else []
        log_sum = tape.empty("log-sum-exp of logits", logits.rows, 1, "fp32")
        out = tape.empty("log-probabilities", logits.rows, 1, "fp32")

        def back(gradient: Tensor) -> list[Tensor | None]:
            return [tape.like(logits, "gradient of logits", kind="logits") if learns else tape.view(logits)]

        tape.node(out, [logits], [logits, log_sum], back)
        self.drop(logits, log_sum)
        return self._mean_of(out, *entropy)

    def _entropy(self, logits: Tensor) -> Tensor:
        """The entropy of every token, with a graph. One compiled kernel makes it from the logits, and another their
        gradient; run eagerly, the softmax is kept in fp32, and each step makes a tensor of its own.

        Source: verl/utils/torch_functional.py, entropy_from_logits.
        """
        tape, eager = self.tape, self.seat.entropy == "eager"
        kept = [logits]
        if eager:
            kept.append(tape.like(logits, "softmax", "fp32", "logits"))
            wide = [tape.like(logits, f"fp32 {name}", "fp32", "logits") for name in ("logits", "exponentials")]
            self.drop(*wide)
            self.drop(tape.like(logits, "softmax × logits", "fp32", "logits"))
        out = tape.empty("entropy", logits.rows, 1, "fp32")

        def back(gradient: Tensor) -> list[Tensor | None]:
            names = ("gradient of softmax", "softmax × gradient", "gradient of its logits") if eager else ()
            wide = [tape.like(logits, name, "fp32", "logits") for name in names]
            tape.drop(*wide)
            return [tape.like(logits, "gradient of the entropy", kind="logits")]

        tape.node(out, [logits], kept, back)
        self.drop(*kept[1:])
        return out

    def scored_loss(self, hidden: Tensor) -> Tensor:
        """Log-probabilities of the completion, for a loss of the trainer's own: logits of its tokens and of one before
        them, in fp32 under autocast, divided by the temperature.

        Source: trl/trainer/grpo_trainer.py, _get_per_token_logps (0.14 to 0.19) and
        _get_per_token_logps_and_entropies (0.20 to 1.14).
        """
        recipe = self.seat.recipe
        self.scope("")
        last = self._last_rows(hidden)
        logits = self._logits(last)
        self.drop(last, hidden)
        if recipe.outputs_fp32:
            self.leave()
            plain, logits = logits, self.cast(logits, "fp32", "fp32 output logits")
            mark_logits(logits)
            self.drop(plain)
        outputs = self._alias(logits)
        if not recipe.outputs_named:
            self.drop(outputs)
        scaled = self._scaled(logits)
        self.drop(logits)
        scores = self._token_scores(scaled)
        if self.tape.records:
            self._measure_entropy(scaled, apart=recipe.scores == "in_place")
        self.drop(scaled)
        if recipe.outputs_named:
            self.drop(outputs)
        return self._mean_of(scores)

    def _last_rows(self, hidden: Tensor) -> Tensor:
        """Hidden states of the completion and of one token before it: rows of several sequences are copied for the
        product, their gradient is put back among zeros."""
        tape, seat = self.tape, self.seat
        rows = seat.scored_tokens + seat.sequences

        def back(gradient: Tensor) -> list[Tensor | None]:
            return [tape.like(hidden, "gradient of all tokens")]

        view = Tensor(rows, hidden.width, hidden.dtype, tape.hold(hidden).storage)
        tape.node(view, [hidden], [], back)
        if seat.one_sequence:
            return view
        copy = tape.like(view, "scored hidden states")
        tape.node(copy, [view], [], lambda gradient: [tape.view(gradient)])
        self.drop(view)
        return copy

    def _scaled(self, logits: Tensor) -> Tensor:
        """The completion's logits, divided by the temperature: not at all, as a copy, or in place.

        What is divided in place is a view of the model's logits. Its backward puts the gradient into the whole (two
        times), and divides a copy of its part: torch/csrc/autograd/functions/tensor.cpp, CopySlices.
        """
        tape, seat = self.tape, self.seat

        def zeros(gradient: Tensor) -> list[Tensor | None]:
            return [tape.like(logits, "sliced gradient", kind="logits")]

        def slices(gradient: Tensor) -> list[Tensor | None]:
            inner = tape.like(view, "sliced gradient", kind="logits")
            whole = tape.like(logits, "sliced gradient", kind="logits")
            tape.drop(inner)
            return [whole]

        def in_place(gradient: Tensor) -> list[Tensor | None]:
            whole = tape.like(logits, "gradient of the whole", kind="logits")
            parts = [tape.like(view, name, kind="logits") for name in ("gradient of the part", "divided gradient")]
            tape.drop(*parts)
            return [whole]

        base = logits
        if seat.recipe.scores == "in_place":
            base = self._alias_in_graph(logits, in_place)
        view = Tensor(seat.scored_tokens, logits.width, logits.dtype, tape.hold(logits).storage)
        tape.node(view, [base], [], zeros if base is not logits else slices)
        if base is not logits:
            self.drop(base)
        if seat.recipe.scores != "divided":
            return view
        out = tape.like(view, "divided logits", kind="logits")
        tape.node(out, [view], [], lambda gradient: [tape.like(view, "divided gradient", kind="logits")])
        self.drop(view)
        return out

    def _alias_in_graph(self, x: Tensor, backward: Backward) -> Tensor:
        """The same memory behind a node of its own: `Tape.hold` would give the same tensor."""
        out = self.tape.view(x)
        return self.tape.node(out, [x], [], backward)

    def _token_scores(self, logits: Tensor) -> Tensor:
        """Log-probabilities: by a kernel that keeps the logits and makes their gradient; from fp32 logits minus their
        log-sum-exp; from 16 bits by a log-softmax of each sequence.

        Source: trl/trainer/utils.py, selective_log_softmax; trl/kernels/logprob_entropy.py (1.14).
        """
        recipe = self.seat.recipe
        if recipe.scores == "kernel":
            tape = self.tape
            beside = [tape.empty(name, logits.rows, 1, "fp32") for name in ("log z", "expected logit", "entropy")]
            out = tape.empty("log-probabilities", logits.rows, 1, "fp32")
            saved = [logits, *beside[:2]]
            tape.node(out, [logits], saved, lambda gradient: [tape.like(logits, "logits gradient", kind="logits")])
            self.drop(*beside)
            return out
        return (
            self._softmax_rows(logits) if recipe.scores == "rows" or logits.dtype != "fp32" else self._log_sums(logits)
        )

    def _log_sums(self, logits: Tensor) -> Tensor:
        """The picked logits minus a log-sum-exp, sequence by sequence. Backward makes gradients of all sequences, a
        tensor of them, and one that holds the picked logits'."""
        tape, seat = self.tape, self.seat

        def rows(gradient: Tensor) -> list[Tensor | None]:
            others = tape.empty(
                "gradients of sequences", logits.rows - seat.scored_len, logits.width, logits.dtype, "logits"
            )
            work = [self._sequence(logits, name) for name in ("difference", "exponentials", "gradient of a sequence")]
            self.drop(*work[:2])
            stacked = tape.like(logits, "stacked gradients", kind="logits")
            self.drop(others, work[2])
            return [stacked]

        picked = tape.empty("picked logits", logits.rows, 1, logits.dtype)
        tape.node(picked, [logits], [logits], lambda gradient: [tape.like(logits, "picked gradient", kind="logits")])
        self.drop(self._sequence(logits, "exponentials"))
        sums = tape.empty("log-sum-exp", logits.rows, 1, logits.dtype)
        tape.node(sums, [logits], [logits], rows)
        out = self.add(picked, sums)
        self.drop(picked, sums)
        return out

    def _softmax_rows(self, logits: Tensor) -> Tensor:
        """A log-softmax of each sequence, kept. Backward lets go of each as its gradient is there, then stacks them."""
        tape = self.tape
        kept = tape.like(logits, "log-softmax", kind="logits")
        out = tape.empty("log-probabilities", logits.rows, 1, logits.dtype)
        holds = tape.records and not tape.checkpointed

        def rows(gradient: Tensor) -> list[Tensor | None]:
            self.drop(self._sequence(logits, "picked gradient"), self._sequence(logits, "gradient of a sequence"))
            tape.drop(kept)
            each = tape.like(logits, "gradients of sequences", kind="logits")
            stacked = tape.like(logits, "stacked gradients", kind="logits")
            tape.drop(each)
            return [stacked]

        if holds:
            tape.hold(kept)
        tape.node(out, [logits], [], rows)
        self.drop(kept)
        return out

    def _sequence(self, logits: Tensor, name: str) -> Tensor:
        return self.tape.empty(name, self.seat.scored_len, logits.width, logits.dtype, "logits")

    # --- what is measured ---------------------------------------------------------------------------------------------

    def measure(self, logits: Tensor) -> None:
        """Entropy and accuracy of a batch, from the logits of the model's output.

        Source: trl/trainer/sft_trainer.py, compute_loss.
        """
        seat, recipe = self.seat, self.seat.recipe
        self._measure_entropy(logits, apart=recipe.accuracy == "view")
        if recipe.accuracy == "copy" and not seat.one_sequence:
            self.drop(self.tape.like(logits, "shifted logits", kind="logits"))

    def _measure_entropy(self, logits: Tensor, *, apart: bool) -> None:
        """Log-softmax, its exponential and their product: of one sequence, or of a few rows of the flattened logits.
        Rows that lie `apart` are copied first, unless there is one sequence.

        Source: trl/trainer/utils.py, entropy_from_logits.
        """
        tape, seat, kind = self.tape, self.seat, self.seat.recipe.entropy
        if kind not in ("sequence", "rows"):
            return
        copies = kind == "rows" and apart and not seat.one_sequence
        flat = tape.like(logits, "flattened logits", kind="logits") if copies else self._alias(logits)
        rows: Size = at_most(logits.rows, _ENTROPY_ROWS) if kind == "rows" else self._rows_of_one(logits)
        names = ("log-softmax", "exponentials", "product")
        self.drop(*[tape.empty(name, rows, logits.width, logits.dtype, "logits") for name in names], flat)

    def _rows_of_one(self, logits: Tensor) -> Size:
        return whole(logits.rows, self.seat.sequences)


_ENTROPY_ROWS = 128
"""rows whose entropy is computed at once"""
