"""Questions of the guide: a job as paths and values, asked of the rules or of the forecast, and as a command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from textwrap import wrap
from typing import TypeAlias

from vramcast.errors import Refused
from vramcast.estimate import forecast
from vramcast.rules_of_thumb.answer import ArticleForecast, by_rules
from vramcast.types.job import Fact, Origin, Understanding, check_value
from vramcast.types.result import Forecast, PhaseBytes
from vramcast.units import GIB

Job: TypeAlias = Mapping[str, str]

CARD = "h100-sxm-80gb"
SFT = {
    "model": "Qwen2.5-7B", "gpu": CARD, "algorithm": "sft", "framework": "trl==1.16", "tuning": "full",
    "weights_dtype": "bf16", "micro_batch": "8", "seq_len": "2048", "recompute": "full",
}  # fmt: skip
"""Supervised fine-tuning with the newest TRL that has rows, in bf16."""
GENERATE = {
    "model": "Qwen2.5-7B", "gpu": CARD, "algorithm": "inference", "framework": "transformers==5.24",
    "weights_dtype": "bf16", "micro_batch": "16", "seq_len": "4096",
}  # fmt: skip
"""Generation with the model's own code: what rule 4 describes."""
GRPO = {
    "model": "Qwen2.5-7B", "gpu": CARD, "gpus": "1", "algorithm": "grpo", "framework": "trl==1.16",
    "weights_dtype": "bf16", "recompute": "full", "engine.kind": "vllm", "engine.sleep": "2",
}  # fmt: skip
"""GRPO with TRL and a vLLM engine in the trainer's process, which sleeps (level 2) while the trainer works."""
LORA = {"tuning": "lora", "lora.rank": "16", "lora.targets": "all-linear"}
_WIDTH, _MORE, _TIED = 116, " \\", "\0"
TRAINING = ("forward", "loss", "backward", "step")
ROLLOUT = ("engine.start", "generate", "sync")


def said(job: Job) -> Understanding:
    """The facts of a job of the guide."""
    origin = Origin("guide")
    return Understanding([Fact(path, check_value(path, raw, origin), origin) for path, raw in job.items()])


def exact(job: Job) -> Forecast:
    """The forecast; asked once however often it is quoted."""
    return _forecast(tuple(job.items()))


@cache
def _forecast(items: tuple[tuple[str, str], ...]) -> Forecast:
    return forecast(said(dict(items)), cards=False)


def rules(model: str, **values: str) -> ArticleForecast:
    """The articles' rules on a job; `__` stands for the dot of a path."""
    return by_rules(said({"model": model, **{path.replace("__", "."): raw for path, raw in values.items()}}))


def refusal(job: Job) -> str:
    """Why the forecast refuses a job, in its first words; empty when it answers."""
    try:
        exact(job)
    except Refused as refused:
        return "; ".join(mistake.fact for mistake in refused.mistakes)
    return ""


def command(job: Job) -> str:
    """The command line that asks for the same job."""
    words = ["vramcast check"]
    for path, raw in job.items():
        words.append(f"--{path} {raw}" if path in ("model", "gpu", "gpus") else f"--set {path}={raw}")
    return " ".join(words)


def worst(answer: Forecast, names: Iterable[str]) -> PhaseBytes:
    """The fullest instant of some phases."""
    wanted = frozenset(names)
    return max((phase for phase in answer.groups[0].phases if phase.name in wanted), key=lambda phase: phase.bytes)


def most(answer: Forecast, *terms: str) -> int:
    """The most bytes that some terms together ever hold."""
    return max(sum(term.bytes for term in phase.terms if term.name in terms) for phase in answer.groups[0].phases)


def at_step(answer: Forecast, *terms: str) -> int:
    """Bytes of some terms while the optimizer steps, from the second step on."""
    (phase,) = (phase for phase in answer.groups[0].phases if phase.name == "step" and phase.when == "steady")
    return sum(term.bytes for term in phase.terms if term.name in terms)


def gib(size: int) -> str:
    """Bytes in GiB, one decimal."""
    return f"{size / GIB:,.1f} GiB"


def gb(size: int) -> str:
    """Bytes in GB of 10^9, one decimal."""
    return f"{size / 10**9:,.1f} GB"


def moment(phase: PhaseBytes) -> str:
    """Where a peak stands."""
    return f"{phase.name} · {phase.instant}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """A table of markdown; the columns in `right` are figures."""
    marks = ["---:" if index in set(right) else "---" for index in range(len(head))]
    lines = [f"| {' | '.join(head)} |", f"|{'|'.join(marks)}|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def prose(text: str) -> list[str]:
    """A paragraph in lines. A sign stays with what is before it: a line that begins with + would be a list."""
    tied = (
        text.replace(" = ", f"{_TIED}={_TIED}")
        .replace(" + ", f"{_TIED}+ ")
        .replace(" · ", f"{_TIED}· ")
        .replace(" × ", f"{_TIED}×{_TIED}")
    )
    lines = wrap(tied, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return [*(line.replace(_TIED, " ") for line in lines), ""]


def block(*commands: str) -> list[str]:
    """Commands to rerun, long ones over several lines."""
    lines = ["```"]
    for text in commands:
        first, *rest = text.split(" --")
        parts = [first, *(f"--{part.replace(' ', _TIED)}" for part in rest)]
        folded = wrap(" ".join(parts), _WIDTH - 4, break_long_words=False, break_on_hyphens=False)
        lines += [f"{'    ' * bool(index)}{line}{_MORE * (index < len(folded) - 1)}".replace(_TIED, " ")
                  for index, line in enumerate(folded)]  # fmt: skip
    return [*lines, "```", ""]
