"""A user's own step: `module:function`, run on fake tensors as it is.

The function is called once and builds what it needs. If it returns something that can be called, that is one step; if
not, the function itself is. Phases come from hooks: a module without a parent begins its forward, `backward()` is
called, an optimizer steps.
"""

from __future__ import annotations

import importlib
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.nn.modules import module as hooks
from torch.optim import optimizer as optimizers

from vramcast.errors import near, refuse
from vramcast.trace.cache import installed as installed_versions
from vramcast.trace.child.cuda import on_the_cpu
from vramcast.trace.child.fakes import fake_mode
from vramcast.trace.child.model import longest_list
from vramcast.trace.child.patches import installed, own_patches
from vramcast.trace.child.patches.values import place_of_error
from vramcast.trace.child.tracker import Tracker
from vramcast.trace.child.watch import Watch
from vramcast.trace.question import OwnStep
from vramcast.trace.recording import Recording


def run_own(question: OwnStep, tell: Callable[[str, int, int], None]) -> Recording:
    """Run a user's step and record it.

    Raises:
        Refused: there is no such function, or the step branches on data.
        Moved: a patch did not apply.
    """
    function = _find(question)
    mode = fake_mode()
    tracker = Tracker(mode)
    with installed(own_patches(question), question, tracker) as applied:
        tracker.mark("load", "built", "first")
        tell("building", 0, 0)
        with mode, on_the_cpu(), _observed(tracker) as scene, tracker:
            try:
                made = function()
                step = made if callable(made) else function
                scene.watch_roots()
                for count in range(question.steps):
                    tell("running the step", count, question.steps)
                    scene.begin(count)
                    step()
            except (DataDependentOutputException, DynamicOutputShapeException) as error:
                raise refuse(
                    f"the step needs values that a trace does not have: {error.func}", at=place_of_error(error)
                ) from error
        return tracker.recording(installed_versions(), applied)


def _find(question: OwnStep) -> Callable[[], Any]:
    """The function, from the user's folder first."""
    name, _, attribute = question.target.partition(":")
    sys.path.insert(0, question.folder)
    try:
        found = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise refuse(f"--step {question.target}: no module {error.name!r}", looked=question.folder) from None
    function = getattr(found, attribute, None)
    if not callable(function):
        names = [known for known in vars(found) if callable(getattr(found, known))]
        raise refuse(f"--step {question.target}: {name} has no function {attribute!r}", near=near(attribute, names))
    return function


class Root:
    """A model that no other module holds, and its blocks."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.backbone = model
        self.blocks = longest_list(model)
        self.trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]


class Scene:
    """What the user's code has made so far."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self.modules: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self.held: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self.parameters: weakref.WeakSet[Any] = weakref.WeakSet()
        self.watches: list[Watch] = []
        self.when = "first"

    def watch_roots(self) -> None:
        """Follow every model that is no part of another."""
        for model in [module for module in self.modules if module not in self.held]:
            self.watches.append(Watch(Root(model), self.tracker))
            model.register_forward_pre_hook(self._begins_forward, prepend=True)
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
                self.tracker.relabel(tensor, "weight", name.rpartition(".")[0])

    def begin(self, count: int) -> None:
        """A run of the step begins."""
        self.when = "first" if count == 0 else "steady"
        for watch in self.watches:
            watch.when = self.when
        self.tracker.mark("forward", "last block", self.when)

    def _begins_forward(self, model: Any, args: Any) -> None:
        if self.tracker.phase in ("backward", "step"):
            self.tracker.mark("forward", "last block", self.when)

    def backward(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """torch.autograd.backward, with its border."""

        def backward(*args: Any, **kwargs: Any) -> Any:
            self.tracker.mark("backward", "loss", self.when)
            out = run(*args, **kwargs)
            for module in self.modules:
                for parameter in module.parameters(recurse=False):
                    if parameter.grad is not None:
                        self.tracker.relabel(parameter.grad, "gradient")
            return out

        return backward

    def steps(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer begins its step."""
        self.tracker.mark("step", "update", self.when)

    def stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer has stepped: its states are known."""
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    self.tracker.relabel(value, "state")

    def holds(self, parent: torch.nn.Module, name: str, child: torch.nn.Module | None) -> None:
        """A module gets a part."""
        self.modules.add(parent)
        if child is not None:
            self.modules.add(child)
            self.held.add(child)

    def has_parameter(self, module: torch.nn.Module, name: str, parameter: Any) -> None:
        """A module gets a parameter."""
        self.modules.add(module)


@contextmanager
def _observed(tracker: Tracker) -> Iterator[Scene]:
    """Hooks on everything that the user's code makes and calls."""
    scene = Scene(tracker)
    with ExitStack() as undo:
        for handle in (
            hooks.register_module_module_registration_hook(scene.holds),
            hooks.register_module_parameter_registration_hook(scene.has_parameter),
            optimizers.register_optimizer_step_pre_hook(scene.steps),
            optimizers.register_optimizer_step_post_hook(scene.stepped),
        ):
            undo.callback(handle.remove)
        old = torch.autograd.backward
        torch.autograd.backward = scene.backward(old)
        undo.callback(setattr, torch.autograd, "backward", old)
        yield scene
