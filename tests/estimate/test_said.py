"""Nothing that is said is silent: every path, with and without a role, with every kind of value, in every kind of job.

Beside a base job a said value changes the answer, or is listed as without effect, or is refused by its name, or is what
the job has anyway. The default run takes one value of a path in every second job, others in the next;
`VRAMCAST_ALL_VALUES=1` takes all of them in all jobs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from tests.random_jobs import Values, said

from vramcast.errors import Refused
from vramcast.estimate import forecast, ineffective, resolve
from vramcast.types.paths import PATHS, Path, Value, find
from vramcast.types.result import Forecast

EVERYTHING = os.environ.get("VRAMCAST_ALL_VALUES") == "1"
_CARD: Values = {"model": "Qwen/Qwen2.5-0.5B", "gpu": "a100-sxm-80gb"}
_SFT: Values = {**_CARD, "algorithm": "sft", "framework": "trl==1.16.0"}
_GRPO: Values = {
    **_CARD, "algorithm": "grpo", "framework": "trl==1.16.0", "prompt_len": 256, "response_len": 256, "group": 8,
    "micro_batch": 8, "engine.fraction": 0.4,
}  # fmt: skip
BASES: dict[str, Values] = {
    "full": _SFT,
    "lora": {**_SFT, "tuning": "lora", "lora.targets": "q_proj"},
    "qlora": {**_SFT, "tuning": "qlora"},
    "fsdp2": {**_SFT, "gpus": 4, "shard": "fsdp2", "autocast": True},
    "fsdp1 lora": {**_SFT, "gpus": 4, "shard": "fsdp1", "tuning": "lora"},
    "pretrain": {**_CARD, "algorithm": "pretrain"},
    "vllm": {**_GRPO, "engine.kind": "vllm"},
    "vllm lora": {**_GRPO, "engine.kind": "vllm", "tuning": "lora", "reference.kind": "adapter_off"},
    "own engine": {
        **_GRPO, "framework": "verl", "gpus": 4, "shard": "fsdp2", "prompts_per_step": 64, "mini_batch": 64,
        "reference.kind": "copy", "micro_batch": 2,
    },
    "generates itself": {**_GRPO, "engine.kind": "hf"},
    "elsewhere": {**_GRPO, "engine.kind": "none"},
    "inference": {**_CARD, "algorithm": "inference"},
    "packed": {**_CARD, "algorithm": "inference", "quant.kind": "int8", "engine.cache": "quantised"},
    "served": {**_CARD, "algorithm": "inference", "engine.kind": "vllm"},
}  # fmt: skip
WITH_ROLES = ("full", "own engine", "served")
"""Jobs without another role, with a reference and an engine, and with an engine only."""
PREFIXES = ("reference", "reward", "critic", "teacher", "rollout")
_VALUES: dict[str, list[Any]] = {
    "count": [3, 1, 64, 1 << 20],
    "bytes": ["30GiB", "1GiB", "200GiB"],
    "fraction": [0.5, 0.05, 0.95],
    "number": [1.5, 1.0, 4.0],
    "flag": [True, False],
    "text": ["x", "trl==1.15.0", "expandable_segments:True", "0.9.1"],
    "list": ["q_proj", "lm_head,v_proj"],
    "table": ["q_proj=4"],
}


def _values(path: Path) -> list[Any]:
    """A kind's values, null where it is allowed, and the default said out loud."""
    found = list(path.choices) if path.kind == "choice" else list(_VALUES[path.kind])
    found += [None] if path.optional else []
    return found if path.default is None or path.default in found or path.kind == "bytes" else [*found, path.default]


def _sampled(path: Path, turn: int) -> list[Any]:
    """One of them, another in every job; all of them on request."""
    values = _values(path)
    return values if EVERYTHING else [values[turn % len(values)]]


def _bytes(answer: Forecast) -> tuple[object, ...]:
    """All that an answer says of memory."""
    return answer.verdict, answer.peak, answer.groups, answer.nodes


def _silent(base: Values, names: Iterator[tuple[str, Any]]) -> list[str]:
    """Values beside the job that are not answered for; `names`: paths and values."""
    whole = resolve(said(base)), _bytes(forecast(said(base), cards=False))
    found: list[str] = []
    for name, value in names:
        role, path = find(name)
        try:
            question = said({**base, name: value})
            after = _bytes(forecast(question, cards=False))
        except Refused as refused:
            if path.name not in str(refused):
                found.append(f"{name}={value} is refused without its name: {refused.mistakes[0].fact}")
            continue
        job, before = _without(base, name) or whole
        if after != before:
            continue
        other = resolve(question)
        has = _has(other, role, path)
        changed = not has == _has(job, role, path) == question.winners()[name].value
        if changed and not _listed(name, ineffective(question, other, [name])):
            found.append(f"{name}={value}")
    return found


def _without(base: Values, name: str) -> tuple[Any, tuple[object, ...]] | None:
    """The base job without a path that it says itself, where it can do without."""
    if name not in base:
        return None
    question = said({path: value for path, value in base.items() if path != name})
    try:
        return resolve(question), _bytes(forecast(question, cards=False))
    except Refused:
        return None


def _has(job: Any, role: str, path: Path) -> Value:
    return getattr(job.role(role or "policy"), path.attribute)


def _listed(name: str, without: list[Any]) -> bool:
    return any(item.path == name and item.why for item in without)


@pytest.mark.parametrize("base", BASES if EVERYTHING else [*BASES][::2])
def test_no_value_of_a_path_is_silent(base: str) -> None:
    turn = list(BASES).index(base)
    names = ((name, value) for name, path in PATHS.items() for value in _sampled(path, turn))
    assert _silent(BASES[base], names) == []


@pytest.mark.parametrize("base", BASES if EVERYTHING else WITH_ROLES[::2])
def test_no_value_of_another_role_is_silent(base: str) -> None:
    turn = list(BASES).index(base)
    names = (
        (f"{role}.{name}", value)
        for at, role in enumerate(PREFIXES)
        for name, path in PATHS.items()
        if not path.job_wide and (EVERYTHING or (len(name) + at) % 3 == 0)
        for value in _sampled(path, turn)
    )
    assert _silent(BASES[base], names) == []
