"""A user's own step: `module:function`, run on fake tensors as it is.

The function is called once and builds what it needs. If it returns something that can be called, that is one step; if
not, the function itself is, and has run its first. Phases come from hooks: a module that is called outside of backward
begins or goes on with a forward, `backward()` is called, and behind it is the optimizer's step.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakSet

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.nn.modules import module as hooks
from torch.optim import optimizer as optimizers

from vramcast.errors import near, refuse
from vramcast.trace.cache import installed as installed_versions
from vramcast.trace.child.cuda import on_the_cpu
from vramcast.trace.child.fakes import fake_mode
from vramcast.trace.child.model import Parts
from vramcast.trace.child.patches import imported_patches, installed, own_patches
from vramcast.trace.child.patches.values import place_of_error
from vramcast.trace.child.tracker import Tracker
from vramcast.trace.child.watch import Watch
from vramcast.trace.question import OwnStep
from vramcast.trace.recording import Recording


def run_own(question: OwnStep, tell: Callable[[str, int, int], None]) -> Recording:
    """Run a user's step and record it. Its module is imported under the trace: a model may be made there.

    Raises:
        Refused: there is no such function, it needs arguments, or the step branches on data.
        Moved: a patch did not apply.
    """
    mode = fake_mode()
    tracker = Tracker(mode)
    with installed(own_patches(question), question, tracker) as applied, ExitStack() as late:

        def follow_imports() -> None:
            applied.extend(late.enter_context(installed(imported_patches(), question, tracker)))

        tracker.mark("load", "built", "first")
        tell("building", 0, 0)
        with mode, on_the_cpu(question, tracker), _observed(tracker, follow_imports) as scene, tracker:
            try:
                _run(question, scene, tell)
            except (DataDependentOutputException, DynamicOutputShapeException) as error:
                raise refuse(
                    f"the step needs values that a trace does not have: {error.func}", at=place_of_error(error)
                ) from error
        return tracker.recording(installed_versions(), applied)


def _run(question: OwnStep, scene: Scene, tell: Callable[[str, int, int], None]) -> None:
    function = _find(question)
    step = function()
    done = 0
    if not callable(step):
        step, done = function, 1
    elif isinstance(step, torch.nn.Module):
        raise refuse(f"--step {question.target} returns a model", do="return a function that runs one step with it")
    else:
        _check_arguments(step, f"--step {question.target}: what it returns")
    for count in range(done, question.steps):
        tell("running the step", count, question.steps)
        scene.begin(count)
        step()


def _find(question: OwnStep) -> Callable[[], Any]:
    """The function, from the user's folder first."""
    name, _, attribute = question.target.partition(":")
    sys.path.insert(0, question.folder)
    try:
        found = importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if not f"{name}.".startswith(f"{missing}."):
            raise refuse(f"--step {question.target}: {name} needs {missing!r}", at=place_of_error(error)) from None
        known = [each.name for each in pkgutil.iter_modules([question.folder])]
        raise refuse(
            f"--step {question.target}: no module {missing!r}", near=near(missing, known), looked=question.folder
        ) from None
    function = getattr(found, attribute, None)
    if not callable(function):
        names = [known for known, value in vars(found).items() if callable(value)]
        raise refuse(f"--step {question.target}: {name} has no function {attribute!r}", near=near(attribute, names))
    _check_arguments(function, f"--step {question.target}: it")
    return function


def _check_arguments(function: Callable[..., Any], who: str) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function of C that does not say
        return
    try:
        signature.bind()
    except TypeError as error:
        raise refuse(f"{who} is called without arguments: {error}", do="a function without, which calls it") from None


class Scene:
    """What the user's code has made so far, and where it is."""

    def __init__(self, tracker: Tracker, begins: Callable[[], None]) -> None:
        self.tracker = tracker
        self.begins = begins
        """what is done when the first model is called"""
        self.modules: WeakSet[torch.nn.Module] = WeakSet()
        self.held: WeakSet[torch.nn.Module] = WeakSet()
        self.watched: WeakSet[torch.nn.Module] = WeakSet()
        self.watches: list[Watch] = []
        self.places: dict[int, str] = {}
        """parameters, by their ids → the modules that have them"""
        self.new = False
        """whether there are modules that nobody has looked at"""
        self.when = "first"

    def begin(self, count: int) -> None:
        """A run of the step begins."""
        self.when = "first" if count == 0 else "steady"
        for model in self.watched:
            self._label(model)
        self._forward()

    def _forward(self) -> None:
        for watch in self.watches:
            watch.when, watch.started = self.when, len(self.tracker.storages)
        self.tracker.mark("forward", "last block", self.when)

    def calls(self, module: torch.nn.Module, args: Any) -> None:
        """A module is called. One that backward calls is computed again."""
        if torch._C._current_graph_task_id() != -1:
            return
        phase = self.tracker.phase
        if phase != "forward" and (phase != "loss" or module in self.watched):
            self._forward()
        if module not in self.modules and next(module.parameters(), None) is not None:  # a deep copy
            for part in module.modules():
                self.modules.add(part)
                self.held.update(part.children())
            self.new = True
        if self.new:
            self._watch_models(module)

    def _watch_models(self, called: torch.nn.Module) -> None:
        """Follow every model that is no part of another."""
        self.new = False
        if not self.watches:
            self.begins()
        for model in [each for each in self.modules if each not in self.held and each not in self.watched]:
            self.watched.add(model)
            watch = Watch(Parts(model), self.tracker)
            watch.when, watch.started = self.when, len(self.tracker.storages)
            self.watches.append(watch)
            if model is called:  # its hooks come too late for this call
                self.tracker.modules.append("")
            self._label(model)

    def _label(self, model: torch.nn.Module) -> None:
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            place = self.places[id(tensor)] = name.rpartition(".")[0]
            self.tracker.relabel(tensor, "adapter" if "lora_" in name else "weight", place)

    def backward(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """torch.autograd.backward, with its borders."""

        def backward(*args: Any, **kwargs: Any) -> Any:
            self.tracker.mark("backward", "loss", self.when)
            out = run(*args, **kwargs)
            for module in self.modules:
                for parameter in module.parameters(recurse=False):
                    if parameter.grad is not None:
                        self.tracker.relabel(parameter.grad, "gradient", self.places.get(id(parameter)))
            self.tracker.mark("step", "update", self.when)
            return out

        return backward

    def steps(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer begins its step."""
        if self.tracker.phase != "step":
            self.tracker.mark("step", "update", self.when)

    def stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer has stepped: its states are known."""
        for parameter, state in optimizer.state.items():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    self.tracker.relabel(value, "state", self.places.get(id(parameter)))

    def holds(self, parent: torch.nn.Module, name: str, child: torch.nn.Module | None) -> None:
        """A module gets a part."""
        self.new = True
        self.modules.add(parent)
        if child is not None:
            self.modules.add(child)
            self.held.add(child)

    def has_parameter(self, module: torch.nn.Module, name: str, parameter: Any) -> None:
        """A module gets a parameter."""
        self.new = True
        self.modules.add(module)


@contextmanager
def _observed(tracker: Tracker, begins: Callable[[], None]) -> Generator[Scene]:
    """Hooks on everything that the user's code makes and calls."""
    scene = Scene(tracker, begins)
    with ExitStack() as undo:
        for handle in (
            hooks.register_module_module_registration_hook(scene.holds),
            hooks.register_module_parameter_registration_hook(scene.has_parameter),
            hooks.register_module_forward_pre_hook(scene.calls),
            optimizers.register_optimizer_step_pre_hook(scene.steps),
            optimizers.register_optimizer_step_post_hook(scene.stepped),
        ):
            undo.callback(handle.remove)
        old = torch.autograd.backward
        torch.autograd.backward = scene.backward(old)
        undo.callback(setattr, torch.autograd, "backward", old)
        yield scene
