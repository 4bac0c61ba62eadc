"""Training loops around a model of Transformers and PEFT: the T4 measurements, and PEFT's comparison of methods."""

from __future__ import annotations

from collections.abc import Iterator

from tools.rows.run import Run
from tools.rows.words import Said, plain_lora, words


def measured_step(run: Run) -> Iterator[Said]:
    """fitcheck-llm's scripts/measure.py: PEFT's defaults, AdamW of torch, no cache, outputs kept within the step.

    Raises:
        Skip: what no path stands for.
    """
    yield "framework", _version(run.versions.get("transformers")), "row: versions.transformers"
    yield "recompute.reentrant", False, "scripts/measure.py: use_reentrant False"
    yield from words(run)


def method_comparison(run: Run) -> Iterator[Said]:
    """PEFT's method_comparison/MetaMathQA/run.py.

    Raises:
        Skip: what no path stands for.
    """
    yield "framework", _version(run.details.get("transformers")), "row: extra.transformers"
    yield from words(run)
    plain_lora(run)


def _version(said: object) -> str:
    return f"loop=={said}" if said else "loop"
