"""The trace: a real training step on fake tensors, every allocation recorded and replayed. Needs the extra `trace`."""

from __future__ import annotations

import os
from typing import NamedTuple

from vramcast.catalog.gpus import Gpu
from vramcast.catalog.models import model_config
from vramcast.errors import Refused, refuse
from vramcast.estimate import Resolved, answer, capacity_of, resolve
from vramcast.estimate.effects import untouched
from vramcast.memory.alloc_conf import parse
from vramcast.trace.cache import Cache
from vramcast.trace.judged import Judged, judge
from vramcast.trace.process import Child, Tell
from vramcast.trace.question import ALSO, OwnStep, Question, own_code, question_of, untraced, workspaces
from vramcast.trace.recording import Recording
from vramcast.types.job import Understanding
from vramcast.types.result import Forecast


class Traced(NamedTuple):
    """A traced job, and the answer in the formulas' words."""

    job: Resolved
    question: Question
    judged: Judged
    forecast: Forecast


class OwnTrace(NamedTuple):
    """A user's own step on a card."""

    question: OwnStep
    gpu: Gpu
    judged: Judged


def trace(
    said: Understanding,
    child: Child,
    *,
    tell: Tell = lambda progress: None,
    cache: Cache | None = None,
    trust_remote_code: bool = False,
) -> Traced:
    """Run the training step of a job on fake tensors and answer from what it allocates.

    Raises:
        Refused: with every mistake of the job, or the reason why it cannot be traced.
    """
    job = resolved(said)
    model = model_config(str(job.settings.model))
    question = question_of(job, model.config, code=own_code(model, trusted=trust_remote_code))
    settings = parse(job.settings.allocator, "allocator")
    recording = record(question, child, tell=tell, cache=cache)
    judged = judge(recording, settings, job.gpu, capacity_of(job))
    without = untouched(said, job, ALSO)
    told = answer(
        job, judged.phases, None, [], without, formulas=False, verdict=judged.verdict, warnings=judged.warnings
    )
    return Traced(job, question, judged, told)


def resolved(said: Understanding) -> Resolved:
    """The job to be traced.

    Raises:
        Refused: what is wrong with it, together with what cannot be traced.
    """
    try:
        return resolve(said, ALSO, programs=False)
    except Refused as refused:
        told = " ".join(" ".join([mistake.fact, *mistake.context]) for mistake in refused.mistakes)
        values = {path: fact.value for path, fact in said.winners().items() if path not in told}
        raise Refused([*refused.mistakes, *untraced(values)]) from None


def trace_own(target: str, gpu: Gpu, allocator: str, child: Child, *, tell: Tell = lambda progress: None) -> OwnTrace:
    """Run a user's own step, `module:function`, on fake tensors. It is never taken from the cache: code changes.

    Raises:
        Refused: there is no such function, or the step needs values.
    """
    _check_target(target)
    settings = parse(allocator, "allocator")
    question = OwnStep(
        target=target,
        folder=os.getcwd(),
        attention="flash" if gpu.has_bf16 else "efficient",
        total_bytes=gpu.total_bytes.value,
        **workspaces(gpu),
    )
    recording = child.record(question, tell)
    return OwnTrace(question, gpu, judge(recording, settings, gpu, gpu.total_bytes.value))


def _check_target(target: str) -> None:
    """`module:function`, and no file."""
    module, _, function = target.partition(":")
    if not module or not function:
        raise refuse(
            f"--step {target}: a module and a function are needed", use=f"--step {module or 'MODULE'}:FUNCTION"
        )
    if module.endswith(".py") or "/" in module:
        dotted = module.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise refuse(f"--step {target}: a module is named as it is imported", use=f"--step {dotted}:{function}")


def record(
    question: Question, child: Child, *, tell: Tell = lambda progress: None, cache: Cache | None = None
) -> Recording:
    """The recording of a question, from the cache if it is there. A model's own code is run each time: it changes."""
    cache = None if question.code else cache
    found = cache.load(question) if cache is not None else None
    if found is None:
        found = child.record(question, tell)
        if cache is not None:
            cache.save(question, found)
    return found
