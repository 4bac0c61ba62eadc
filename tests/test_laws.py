"""Laws that hold for every job, whatever its numbers are."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.random_jobs import MODELS, Values, jobs, parameters_of, said, trainings

from vramcast.algorithms.table import POLICY
from vramcast.cli import main
from vramcast.estimate import edited, forecast
from vramcast.estimate.resolve import resolve
from vramcast.estimate.seats import Seats
from vramcast.estimate.timeline import moments
from vramcast.levers import pull
from vramcast.memory.passes import end_pass, stack
from vramcast.memory.units import linear_of
from vramcast.readers import read_config
from vramcast.readers.native import Format, write_job
from vramcast.types.result import Forecast, PhaseBytes

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
thorough = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])


def _phases(answer: Forecast) -> list[PhaseBytes]:
    return [phase for group in answer.groups for phase in group.phases]


def _allocated(phase: PhaseBytes) -> int:
    return sum(term.bytes for term in phase.terms if term.counter == "allocated")


def _term(phase: PhaseBytes, name: str) -> int:
    return sum(term.bytes for term in phase.terms if term.name == name)


# --- sums and intervals -----------------------------------------------------------------------------------------------


@given(jobs)
@thorough
def test_terms_processes_and_phases_add_up(values: Values) -> None:
    answer = forecast(said(values), cards=False)
    for phase in _phases(answer):
        processes = phase.processes
        assert sum(term.bytes for term in phase.terms) == phase.bytes
        assert sum(process.reserved_bytes + process.other_bytes for process in processes) == phase.bytes
        assert sum(process.allocated_bytes for process in processes) == _allocated(phase)
        assert sum(term.low_bytes for term in phase.terms) == phase.low_bytes
        assert sum(term.high_bytes for term in phase.terms) == phase.high_bytes
        assert all(0 <= term.low_bytes <= term.bytes <= term.high_bytes for term in phase.terms)
    peak = answer.peak
    assert peak.low_bytes <= peak.bytes <= peak.high_bytes
    assert peak.bytes == max(phase.bytes for phase in _phases(answer))
    assert peak.high_bytes == max(phase.high_bytes for phase in _phases(answer))


@given(jobs)
@thorough
def test_a_verdict_is_what_its_interval_says(values: Values) -> None:
    answer = forecast(said(values), cards=False)
    peak = answer.peak
    assert peak.capacity_bytes is not None
    assert peak.margin_bytes == peak.capacity_bytes - peak.bytes
    fits, never = peak.high_bytes <= peak.capacity_bytes, peak.low_bytes > peak.capacity_bytes
    assert answer.verdict == ("fits" if fits else "does_not_fit" if never else "tight")


@given(jobs)
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
def test_the_exit_code_is_the_verdict(values: Values) -> None:
    words = [word for path, value in values.items() for word in ("--set", f"{path}={_written(value)}")]
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        code = main(["check", *words])
    answer = forecast(said(values), cards=False)
    peak = answer.peak
    assert peak.capacity_bytes is not None
    near = peak.bytes <= peak.capacity_bytes and peak.high_bytes <= 1.1 * peak.capacity_bytes
    yes = answer.verdict == "fits" or (answer.verdict == "tight" and near)
    assert code == (0 if yes else 1)


def _written(value: Any) -> str:
    if value is None:
        return "null"
    return ",".join(value) if isinstance(value, list) else str(value)


# --- what must grow, and what must not be there -----------------------------------------------------------------------


@given(jobs, st.sampled_from(["micro_batch", "seq_len"]), st.integers(1, 64))
@thorough
def test_more_tokens_never_need_less(values: Values, path: str, more: int) -> None:
    smaller, larger = forecast(said(values), cards=False), forecast(said({**values, path: values[path] + more}))
    for before, after in zip(_phases(smaller), _phases(larger), strict=True):
        assert (before.name, before.instant, before.when) == (after.name, after.instant, after.when)
        assert _allocated(before) <= _allocated(after)


@pytest.mark.parametrize("cache", ["dynamic", "static", "offloaded", "quantised"])
def test_a_longer_run_never_kept_less(cache: str) -> None:
    """Also where steps are packed in between: the residual before that is the longer run's too."""
    job = {"model": "Qwen/Qwen2.5-0.5B", "gpu": "l4-24gb", "algorithm": "inference", "engine.cache": cache,
           "framework": "transformers", "prompt_len": 1, "micro_batch": 16, "weights_dtype": "fp16"}  # fmt: skip
    lengths = (1, 2, 127, 128, 129, 135, 255, 256, 257, 258, 300, 512, 513)
    kept = [[_term(one, "kv_cache") for one in _phases(forecast(said({**job, "seq_len": end})))] for end in lengths]
    for before, after in pairwise(kept):
        assert all(one <= other for one, other in zip(before, after, strict=True))


@given(trainings)
@thorough
def test_states_exist_from_the_first_step_on(values: Values) -> None:
    phases = _phases(forecast(said(values), cards=False))
    for phase in phases:
        absent = phase.when == "first" and phase.name != "step"
        assert (_term(phase, "optimizer.state") == 0) == absent


@given(trainings)
@thorough
def test_gradients_are_complete_at_the_step(values: Values) -> None:
    """Every trainable parameter has one, and the passes over blocks and ends make exactly these."""
    job = resolve(said(values))
    seats = Seats(job, POLICY)
    step = next(moment for moment in moments(job) if moment.phase.name == "backward")
    seat = seats.seat(*step)
    if values["tuning"] == "full":
        expected = parameters_of(values["model"]) * BYTES[values["weights_dtype"]]
    else:
        targets = job.arch.linears if "all-linear" in values["lora.targets"] else values["lora.targets"]
        shapes = [weight.shape for weight in job.arch.kinds[0].weights if linear_of(weight) in targets]
        widths = sum(sum(shape) for shape in shapes)
        expected = job.arch.layers * values["lora.rank"] * widths * BYTES[values["lora.dtype"]]
    for phase in _phases(forecast(said(values), cards=False)):
        if phase.name == "step" or (phase.name, phase.instant) == ("backward", "embedding"):
            assert _term(phase, "gradients") == expected
    if not seat.accumulates:
        ends = end_pass(seat)
        blocks = stack(seat).all(lambda block: block.gradients)
        assert ends.gradients + blocks + ends.embedding_gradient == expected


# --- models -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_the_published_ones(name: str) -> None:
    values = {"model": name, "gpu": "h200-sxm-141gb", "weights_dtype": "bf16", "algorithm": "inference"}
    phases = _phases(forecast(said(values), cards=False))
    assert {_term(phase, "weights") for phase in phases} == {2 * parameters_of(name)}


# --- jobs and levers --------------------------------------------------------------------------------------------------


@given(jobs, st.sampled_from(["toml", "yaml", "json"]))
@thorough
def test_a_job_comes_back_from_its_file(
    tmp_path_factory: pytest.TempPathFactory, values: Values, format: Format
) -> None:
    file = _file(tmp_path_factory, format)
    job = said(values).job()
    file.write_text(write_job(job, format), encoding="utf-8")
    again = read_config(str(file), None)
    assert again.job() == job
    assert forecast(again).peak == forecast(said(values), cards=False).peak


def _file(factory: pytest.TempPathFactory, format: str) -> Path:
    return factory.getbasetemp() / f"job.{format}"


@given(jobs)
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
def test_a_lever_changes_what_it_declares_and_saves_what_it_says(values: Values) -> None:
    question = said(values)
    answer = forecast(question, cards=False)
    for lever in pull(question, answer):
        after = forecast(edited(question, dict(lever.set), "test"), cards=False)
        changed = {path for path in {*answer.job, *after.job} if answer.job.get(path) != after.job.get(path)}
        assert changed <= set(lever.set)
        assert (after.peak.bytes, after.verdict) == (lever.peak_bytes, lever.verdict)
        assert answer.peak.bytes - after.peak.bytes == lever.saves_bytes
