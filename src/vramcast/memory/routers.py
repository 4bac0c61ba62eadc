"""Routers of mixtures of experts: scores of every expert for every token, and the choice of a few."""

from __future__ import annotations

from vramcast.memory.tape import Tensor
from vramcast.memory.views import Views
from vramcast.num import Size


class Routers(Views):
    """`Views` with what a router is made of."""

    def route(self, name: str, x: Tensor, *, wide: bool = False, apart: bool = False) -> Tensor:
        """A router's product. `wide`: in fp32, with a weight that is fp32 whatever the rest of the model is, and which
        autocast casts again unless the router is `apart` from it. PEFT adapts a router's weight as a parameter.

        Source: `_keep_in_fp32_modules_strict` of the classes.
        """
        dtype, ranks = "fp32" if wide else self.weights_dtype, self.seat.ranks_of(f"{name}.weight")
        if not wide and not ranks:
            return self.linear(name, x)
        given = self.cast(x, dtype, "fp32 input") if wide else self._alias(x)
        outputs, inputs = self.weights[f"{name}.weight"].shape
        if apart or ranks:
            out = self._plain_product(given, self._router_weight(outputs, inputs, dtype, ranks), apart)
        else:
            biased = self.has(f"{name}.bias")
            out = self._product(name.rpartition(".")[2], given, inputs, outputs, biased, dtype, self.base_trains)
        self.drop(given)
        return out

    def _router_weight(self, outputs: Size, inputs: Size, dtype: str, ranks: int) -> Tensor:
        """With an adapter: the product of its matrices, scaled, added to the weight in a new tensor.

        Source: peft/tuners/lora/layer.py, ParamWrapper.get_delta_weight, _LoraParameterProxy (0.21).
        """
        tape, seat = self.tape, self.seat
        weight = tape.parameter(outputs, inputs, dtype, self.base_trains)
        if not ranks:
            return weight
        rank, own = seat.lora_rank * ranks, seat.adapter_param_dtype
        pair = [tape.parameter(rank, inputs, own, trains=True), tape.parameter(outputs, rank, own, trains=True)]

        def backward(gradient: Tensor) -> list[Tensor | None]:
            wide = [tape.like(gradient, name, own) for name in ("delta gradient", "scaled delta gradient")]
            grads: list[Tensor | None] = [tape.like(one, "adapter gradient", kind="gradient") for one in pair]
            tape.drop(*wide)
            return grads

        delta = [tape.like(weight, name, own) for name in ("delta", "scaled delta")]
        out = tape.node(tape.like(weight, "folded weight"), pair, [], backward)
        self.drop(*delta)
        return out

    def _plain_product(self, x: Tensor, weight: Tensor, apart: bool) -> Tensor:
        """`x @ W.T` with a weight that is there; it lets go of it."""
        tape = self.tape
        dtype = self.seat.compute_dtype if self.seat.autocast and not apart else x.dtype
        rows, low = self.cast(x, dtype, "input cast"), self.cast(weight, dtype, "weight cast")
        out = tape.empty("output", x.rows, weight.rows, dtype)

        def backward(gradient: Tensor) -> list[Tensor | None]:
            kind = "gradient" if low.is_parameter else "activation"
            learned = tape.like(low, "weight gradient", kind=kind) if low.requires_grad else None
            return [tape.like(rows, "input gradient") if rows.requires_grad else None, learned]

        saved = ([rows] if low.requires_grad else []) + ([low] if rows.requires_grad else [])
        tape.node(out, [rows, low], saved, backward)
        self.drop(rows, low, weight)
        return out

    def softmax(self, x: Tensor, *, own: bool = False) -> Tensor:
        """In fp32, or in the tensor's own dtype."""
        if not own or self.seat.autocast:
            return self._softmax(x)
        tape, out = self.tape, self.tape.like(x, "softmax")

        def backward(gradient: Tensor) -> list[Tensor | None]:
            result = tape.like(x, "softmax gradient")
            tape.drop(tape.like(x, "gradient times softmax"))
            return [result]

        return tape.node(out, [x], [out], backward)

    def sigmoid(self, x: Tensor) -> Tensor:
        """Keeps what it gives."""
        out = self.tape.like(x, "sigmoid")
        return self.tape.node(out, [x], [out], lambda gradient: [self.tape.like(x, "sigmoid gradient")])

    def largest(self, x: Tensor, count: Size) -> tuple[Tensor, Tensor]:
        """The `count` largest of every row, and where they are. Their gradient is put into zeros of the whole.

        Source: torch/csrc/autograd/FunctionsManual.cpp, value_selecting_reduction_backward_symint.
        """
        values = self.tape.empty("largest", x.rows, count, x.dtype)
        places = self.tape.empty("places of the largest", x.rows, count, "int64")
        self.tape.node(values, [x], [places], lambda gradient: [self.tape.like(x, "gradient of the largest")])
        return values, places

    def sparse_mixer(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """(weights, places) of two experts, one after the other: each a masked softmax, of which the place that is
        drawn has its own gradient. Masks, softmaxes and places are kept.

        Source: transformers/models/phimoe/modeling_phimoe.py, sparsemixer, PhimoeMultiplier.
        """
        tape = self.tape
        kept: list[Tensor] = []
        for _ in range(2):
            work = [tape.like(logits, name) for name in ("factor", "distance", "masked scores", "noise")]
            kept += [tape.like(logits, "mask", "bool"), tape.like(logits, "softmax")]
            kept += [tape.empty("place", logits.rows, 1, "int64"), tape.empty("share", logits.rows, 1, logits.dtype)]
            self.drop(*work)
        weights = tape.empty("weights", logits.rows, 2, logits.dtype)
        places = tape.empty("places", logits.rows, 2, "int64")

        def backward(gradient: Tensor) -> list[Tensor | None]:
            first = tape.like(logits, "scores gradient")
            tape.drop(tape.like(logits, "scores gradient"))
            return [first]

        tape.node(weights, [logits], kept, backward)
        self.drop(*kept)
        return weights, places

    def jitter(self, x: Tensor) -> Tensor:
        """Multiplied in place by noise, which is kept for backward; in training only."""
        tape = self.tape
        if self.seat.state in ("generate", "infer"):
            return tape.view(x)
        noise = tape.like(x, "noise")
        out = Tensor(x.rows, x.width, x.dtype, tape.hold(x).storage)
        tape.node(out, [x], [noise], lambda gradient: [tape.like(x, "jitter gradient")])
        self.drop(noise)
        return out

    def gather(self, x: Tensor, places: Tensor) -> Tensor:
        """The elements of every row that `places` names."""
        out = self.tape.empty("gathered", x.rows, places.width, x.dtype)
        return self.tape.node(out, [x], [places], lambda gradient: [self.tape.like(x, "gather gradient")])

    def choice(self, scores: Tensor, count: Size, groups: Size) -> Tensor:
        """Places of the experts that a learned bias chooses, of some groups of experts only if there are `groups`.
        Nothing of it is differentiated."""
        tape = self.tape
        work = [tape.like(scores, "biased scores", "fp32")]
        if groups:
            work += [tape.empty(name, scores.rows, groups, "fp32") for name in ("group scores", "group mask")]
            mask = tape.like(scores, "mask", "fp32")
            work += [tape.like(scores, "inverted mask", "bool"), tape.like(scores, "masked scores", "fp32")]
            self.drop(mask)
        work.append(tape.empty("chosen scores", scores.rows, count, "fp32"))
        places = tape.empty("places of the chosen", scores.rows, count, "int64")
        self.drop(*work)
        return places

    def shares(self, x: Tensor, *, in_place: bool) -> Tensor:
        """Every row divided by its sum. In place, autograd copies what there was."""
        tape = self.tape
        sums = tape.empty("sums", x.rows, 1, x.dtype)
        before = tape.like(x, "copy") if in_place and tape.records and x.requires_grad else tape.hold(x)
        out = Tensor(x.rows, x.width, x.dtype, tape.hold(x).storage) if in_place else tape.like(x, "shares")

        def backward(gradient: Tensor) -> list[Tensor | None]:
            ratio = [tape.like(x, "ratio gradient") for _ in range(2)]
            product = [tape.like(x, "negated gradient"), tape.like(x, "sum's gradient")]
            tape.drop(*ratio, product[0])
            result = tape.like(x, "shares gradient")
            tape.drop(product[1])
            return [result]

        tape.node(out, [x], [before, sums], backward)
        self.drop(sums, before)
        return out
