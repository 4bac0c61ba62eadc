"""Passes that only score: where they are marked."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any

from vramcast.trace.child.watch import Watch


class Scoring:
    """Marks `score.…` phases: `last block` while the backbone runs, `head` behind it."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    @contextmanager
    def over(self, model: Any, phase: str, *, adapter_off: bool = False) -> Generator[None]:
        """Passes of a model, all in this phase; without its adapters."""
        from trl.trainer.utils import use_adapter

        with ExitStack() as undo:
            if adapter_off and hasattr(model, "disable_adapter"):
                undo.enter_context(use_adapter(model, None))
            backbone = _plain(model).base_model
            for hook in (
                backbone.register_forward_pre_hook(lambda *_: self.watch.mark(phase, "last block")),
                backbone.register_forward_hook(lambda *_: self.watch.mark(phase, "head")),
            ):
                undo.callback(hook.remove)
            yield

    def inside_the_loss(self, model: Any, phase: str) -> None:
        """A pass that the loss makes of itself, after the policy's: marked from its start to its end, then the loss
        goes on."""

        def enter(*_: Any) -> None:
            if self.watch.tracker.phase == "loss":
                self.watch.mark(phase, "last block")

        def behind(*_: Any) -> None:
            if self.watch.tracker.phase == phase:
                self.watch.mark(phase, "head")

        def leave(*_: Any) -> None:
            if self.watch.tracker.phase == phase:
                self.watch.mark("loss", "head")

        model.register_forward_pre_hook(enter)
        model.register_forward_hook(leave)
        _plain(model).base_model.register_forward_hook(behind)


def _plain(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model
