"""The tensors of a component."""

from __future__ import annotations

import torch
from tools.operators.component import Component

from vramcast.trace.child.model import DTYPES
from vramcast.trace.child.tracker import Tracker

_SCORED_BESIDE = ("kto", "grpo", "dpo")
"""kinds with a reference: a head and hidden states of its own"""


class Inputs:
    """Made before the first iteration, known to the tracker. `head` is missing where logits are the input."""

    def __init__(self, component: Component, tracker: Tracker) -> None:
        self.component = component
        self.tracker = tracker
        self.dtype = DTYPES[component.dtype]
        self.learns: list[torch.Tensor] = []
        self._found()
        if component.kind == "moe":
            return
        size = (component.sequences, component.length)
        self.labels = self._input(
            torch.zeros(size if component.kind in _PAIRED else (size[0] * size[1],), dtype=torch.long)
        )
        if component.kind in ("cross_entropy", "vocab_parallel_cross_entropy"):
            rows = size if component.kind == "vocab_parallel_cross_entropy" else (size[0] * size[1],)
            self.logits = self._learns(torch.empty(*rows, component.vocab, dtype=self.dtype))
            return
        self.unused = [self._head() for _ in range(component.unused_heads)]
        self.head = self._head()
        self.hidden = torch.empty(*size, component.hidden, dtype=self.dtype)
        self._learns(self.hidden) if component.input_learns else self._input(self.hidden)
        if component.kind in _SCORED_BESIDE:
            self.reference_head = self._head(learns=False)
            self.reference_hidden = self._input(torch.empty(*size, component.hidden, dtype=self.dtype))

    def _found(self) -> None:
        """What is on the card before: a benchmark ran other candidates, so both threads have their handles."""
        component = self.component
        for thread in ("main", "autograd"):
            if component.cublas_bytes:
                self.tracker.workspace(component.cublas_bytes, f"cuBLAS workspace of the {thread} thread")
        if component.left_bytes:
            self.tracker.workspace(component.left_bytes, "left by what was measured before")

    @property
    def rows(self) -> torch.Tensor:
        """Hidden states, a row for each token."""
        return self.hidden.view(-1, self.hidden.size(-1))

    def _head(self, *, learns: bool = True) -> torch.Tensor:
        weight = torch.empty(self.component.vocab, self.component.hidden, dtype=self.dtype)
        self.tracker.track(weight, "head", "weight")
        return self._learns(weight) if learns else weight

    def _learns(self, tensor: torch.Tensor) -> torch.Tensor:
        self.learns.append(tensor.requires_grad_())
        return tensor

    def _input(self, tensor: torch.Tensor) -> torch.Tensor:
        self.tracker.relabel(tensor, "input")
        return tensor

    def made(self, tensor: torch.Tensor, *, learns: bool) -> torch.Tensor:
        """A tensor of a component's own."""
        return self._learns(tensor) if learns else self._input(tensor)

    def forget(self) -> None:
        """No gradients from the last iteration."""
        for tensor in self.learns:
            tensor.grad = None

    def relabel(self) -> None:
        for tensor in self.learns:
            if tensor.grad is not None:
                self.tracker.relabel(tensor.grad, "gradient")


_PAIRED = ("orpo", "cpo", "simpo", "dpo", "kto", "grpo", "vocab_parallel_cross_entropy")
"""kinds that see sequences, not rows"""
