"""Optimizers by their names in the catalogue, as their own classes, with the groups that their caller makes."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from vramcast.errors import refuse
from vramcast.trace.child.model import Parts
from vramcast.trace.child.patches.patch import Moved
from vramcast.trace.child.tracker import Tracker
from vramcast.trace.question import Question

_PAGED_FROM = 100_000
"""elements from which bitsandbytes keeps a state in managed memory (optim/optimizer.py: get_state_buffer)"""
_BITS = {"adamw_8bit": 8, "paged_adamw_8bit": 8, "paged_adamw": 32, "lion": 32}


def optimizer_of(question: Question, parts: Parts, tracker: Tracker) -> Any:
    """The optimizer of a question.

    Raises:
        Refused: one that is not traced yet.
        Moved: bitsandbytes is not there, or not as it was.
    """
    groups = _groups(question, parts)
    how = {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False}}[question.optimizer_impl]
    match question.optimizer:
        case "adamw":
            return torch.optim.AdamW(groups, **how)
        case "sgd":
            return torch.optim.SGD(groups, lr=1e-3, **how)
        case "sgd_momentum":
            return torch.optim.SGD(groups, lr=1e-3, momentum=0.9, **how)
        case "adafactor_torch":
            return torch.optim.Adafactor(groups)  # a loop unless asked for more memory
        case "adafactor":
            from transformers.optimization import Adafactor

            return Adafactor(groups, scale_parameter=False, relative_step=False, lr=1e-3)
        case "muon":
            return Several(*_muon(parts, how))
        case name if name in _BITS:
            return _bitsandbytes(question, groups, parts, tracker)
        case _:
            raise refuse(f"optimizer = {question.optimizer} is not traced yet")


def _groups(question: Question, parts: Parts) -> list[dict[str, Any]]:
    """One in a plain loop; a Trainer keeps norms and biases out of weight decay (get_decay_parameter_names)."""
    if question.trainer == "loop":
        return [{"params": parts.trainable}]
    groups = [[p for p in parts.trainable if (p.ndim > 1) == decays] for decays in (True, False)]
    return [{"params": group, "weight_decay": 0.0} for group in groups if group]


def _muon(parts: Parts, how: dict[str, bool]) -> Iterator[Any]:
    """Muon for the matrices of the blocks, AdamW for the rest: embedding, head, norms (torch/optim/_muon.py)."""
    inside = {id(p) for block in parts.blocks for p in block.parameters() if p.ndim == 2}
    hidden = [p for p in parts.trainable if id(p) in inside]
    rest = [p for p in parts.trainable if id(p) not in inside]
    if hidden:
        yield torch.optim.Muon(hidden)
    if rest:
        yield torch.optim.AdamW(rest, **how)


class Several:
    """Optimizers that step one after the other."""

    def __init__(self, *optimizers: Any) -> None:
        self.optimizers = optimizers

    @property
    def state(self) -> dict[Any, Any]:
        return {key: value for one in self.optimizers for key, value in one.state.items()}

    def step(self) -> None:
        for one in self.optimizers:
            one.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for one in self.optimizers:
            one.zero_grad(set_to_none=set_to_none)


def _bitsandbytes(question: Question, groups: list[dict[str, Any]], parts: Parts, tracker: Tracker) -> Any:
    """8-bit, paged and Lion: bitsandbytes' own classes. Its maps are real tensors, its paged states are not counted."""
    with _installed():
        import bitsandbytes

        bits, paged = _BITS[question.optimizer], question.optimizer.startswith("paged")
        kind = bitsandbytes.optim.Lion if question.optimizer == "lion" else bitsandbytes.optim.AdamW
        with unset_fake_temporarily():
            optimizer = kind(groups, lr=1e-3, optim_bits=bits, is_paged=paged)
        manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
        manager.initialize()
        if bits == 8 and question.trainer != "loop":
            _fp32_embeddings(manager, parts)
        buffer = optimizer.get_state_buffer

        def get_state_buffer(p: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            if paged and p.numel() >= _PAGED_FROM:
                with tracker.paused():
                    return buffer(p, dtype=dtype)
            return buffer(p, dtype=dtype)

        optimizer.get_state_buffer = get_state_buffer
        return optimizer


def _fp32_embeddings(manager: Any, parts: Parts) -> None:
    """A Trainer's 8-bit optimizers keep fp32 states for embeddings (transformers/trainer.py: create_optimizer)."""
    for module in parts.model.modules():
        if isinstance(module, torch.nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})


@contextmanager
def _installed() -> Generator[None]:
    try:
        yield
    except (AttributeError, ImportError) as error:
        raise Moved(f"bitsandbytes' optimizers: {error}") from error
