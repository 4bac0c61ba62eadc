"""Where the step is: marks at the borders of phases, instants and blocks, from hooks on modules and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vramcast.trace.child.model import Parts
from vramcast.trace.child.tracker import Tracker
from vramcast.trace.recording import NO_BLOCK


class Watch:
    """Hooks of one model; `when` is the run of the loop."""

    def __init__(self, parts: Parts, tracker: Tracker) -> None:
        self.tracker = tracker
        self.when = "first"
        self.started = 0
        """the first storage of this forward"""
        self.count = len(parts.blocks)
        language = getattr(parts.backbone, "language_model", parts.backbone)
        self.head_follows = any(list(lists) == parts.blocks for lists in _lists(language))
        """whether the last block is behind everything but the head"""
        for name, module in parts.model.named_modules():
            module.register_forward_pre_hook(self._enter(name))
            module.register_forward_hook(self._leave, always_call=True)
        for index, block in enumerate(parts.blocks):
            block.register_forward_pre_hook(self._enter_block(index), with_kwargs=True)
            block.register_forward_hook(self._leave_block(index), with_kwargs=True)
        parts.backbone.register_forward_hook(self._leave_backbone)

    def mark(self, phase: str, instant: str, block: int = NO_BLOCK) -> None:
        if phase == "forward":
            self.started = len(self.tracker.storages)
        self.tracker.mark(phase, instant, self.when, block)

    # --- the modules that run -------------------------------------------------------------------------------------

    def _enter(self, name: str) -> Callable[..., None]:
        def enter(module: Any, args: Any) -> None:
            self.tracker.modules.append(name)

        return enter

    def _leave(self, module: Any, args: Any, output: Any) -> None:
        if self.tracker.modules:
            self.tracker.modules.pop()

    # --- blocks ---------------------------------------------------------------------------------------------------

    def _enter_block(self, index: int) -> Callable[..., None]:
        def enter(module: Any, args: Any, kwargs: Any) -> None:
            if self.tracker.phase == "forward":
                if index == 0:
                    self._enter_blocks(_hidden(kwargs.get("hidden_states"), args, kwargs))
                self.tracker.enter_block(index)

        return enter

    def _enter_blocks(self, hidden: torch.Tensor | None) -> None:
        self.tracker.inputs_since(self.started)
        if hidden is not None:
            self.tracker.hidden_states(hidden, 0)
            self._on_gradient(hidden, "embedding", NO_BLOCK)

    def _leave_block(self, index: int) -> Callable[..., None]:
        instant = "last block" if index == 0 else "first block" if index == self.count - 1 else "blocks"

        def leave(module: Any, args: Any, kwargs: Any, output: Any) -> None:
            if self.tracker.phase != "forward":
                return
            hidden = _hidden(output)
            if hidden is not None:
                self.tracker.hidden_states(hidden, index + 1 if index + 1 < self.count else NO_BLOCK)
            self.tracker.enter_block(NO_BLOCK)
            if hidden is not None:
                self._on_gradient(hidden, instant, index)
            if index + 1 == self.count and self.head_follows:
                self.mark("loss", "head")

        return leave

    def _on_gradient(self, hidden: torch.Tensor, instant: str, block: int) -> None:
        """A mark where backward has the gradient of these hidden states."""
        if hidden.requires_grad and hidden.grad_fn is not None:
            hidden.register_hook(lambda gradient: self.mark("backward", instant, block))

    def _leave_backbone(self, module: Any, args: Any, output: Any) -> None:
        if self.tracker.phase == "forward":
            self.mark("loss", "head")


def _lists(backbone: torch.nn.Module) -> list[torch.nn.ModuleList]:
    return [child for child in backbone.children() if isinstance(child, torch.nn.ModuleList) and len(child)]


def _hidden(*values: Any) -> torch.Tensor | None:
    """The first tensor: a user's own blocks may take and give anything."""
    for value in values:
        if isinstance(value, torch.Tensor):
            return value
        inside = tuple(value.values()) if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
        if (found := _hidden(*inside)) is not None:
            return found
    return None
