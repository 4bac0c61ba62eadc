"""A row of a training run -> facts in our own paths, each with its cause. One function a stack.

A stack that is not here is asked by its name, so that the library says whether it knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tools.rows.hf_trainer import hf_trainer
from tools.rows.jobs import Skip
from tools.rows.loops import measured_step, method_comparison
from tools.rows.run import Run, run_of
from tools.rows.words import Said, words

from vramcast.catalog.frameworks import parse_framework
from vramcast.errors import Mistakes
from vramcast.types.job import Fact, Origin, check_value

STACKS: dict[str, Callable[[Run], Iterator[Said]]] = {
    "hf-trainer": hf_trainer,
    "hf-peft-loop": measured_step,
    "peft": method_comparison,
}

_OTHER = {"context": "no job: a CUDA context alone"}
"""workload -> why nothing of it is predicted"""


def facts_of(fields: Mapping[str, Any]) -> list[Fact]:
    """The facts of a row, strongest first: what a stack sets itself wins over the row's words.

    Raises:
        Skip: what the source leaves open, or says in words that no path stands for.
        Refused: values that a path cannot have, a framework that is not known.
    """
    workload = str(fields.get("workload") or "not said what runs")
    if workload not in ("sft", "pretrain"):
        raise Skip(_OTHER.get(workload.partition(":")[0]) or f"not modelled yet: {workload}")
    run = run_of(fields)
    mistakes = Mistakes()
    facts: list[Fact] = []
    for path, value, cause in STACKS.get(run.stack, _named)(run):
        with mistakes.collect():
            facts.append(Fact(path, check_value(path, value, Origin(cause)), Origin(cause)))
    mistakes.done()
    return facts


def _named(run: Run) -> Iterator[Said]:
    """A stack without a function of its own."""
    name = run.repo if run.stack == "other" else run.stack
    parse_framework(name)
    yield "framework", name, "row: stack"
    yield from words(run)
