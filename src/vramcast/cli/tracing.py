"""The verb `trace`, and what `check --method trace` shares with it."""

from __future__ import annotations

import argparse
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vramcast.cli.output import coloured, print_json
from vramcast.cli.said import said
from vramcast.cli.saving import save_arch
from vramcast.cli.targets import check_targets
from vramcast.cli.verdict import exit_code, exit_of
from vramcast.errors import Mistakes, Refused, refuse
from vramcast.types.job import Understanding

if TYPE_CHECKING:
    from vramcast.trace import Judged, Traced
    from vramcast.types.result import Forecast, PhaseBytes
    from vramcast.validation.training import Phases


def trace_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-cache", action="store_true", help="trace anew")
    parser.add_argument("--trust-remote-code", action="store_true", help="let a model run its own code")


def traced_by(options: argparse.Namespace, question: Understanding) -> Traced:
    """The job's step, traced; a progress bar on a terminal."""
    from vramcast.report.progress import progress
    from vramcast.trace import resolved, trace
    from vramcast.trace.cache import Cache
    from vramcast.trace.process import Child

    cache = None if options.no_cache else Cache()
    if question.mistakes:  # with all others, and before a child is started for nothing
        resolved(question)
    with Child() as child, progress() as tell:
        return trace(question, child, tell=tell, cache=cache, trust_remote_code=options.trust_remote_code)


@contextmanager
def traced_phases(options: argparse.Namespace) -> Generator[Phases]:
    """What predicts the runs of `bench` instead of the formulas; one child process serves all rows."""
    from vramcast.report.progress import progress
    from vramcast.trace import trace
    from vramcast.trace.cache import Cache
    from vramcast.trace.process import Child

    cache = None if options.no_cache else Cache()
    with Child() as child, progress() as tell:

        def phases(job: Understanding) -> list[PhaseBytes]:
            return trace(job, child, tell=tell, cache=cache).judged.phases

        yield phases


def run_trace(options: argparse.Namespace) -> int:
    from vramcast.estimate import forecast
    from vramcast.report.trace import show_trace, trace_report

    question, wrong = said(options), Mistakes()
    check_targets(options, wrong)
    question.mistakes += wrong.found
    if options.step:
        return _trace_own(options, question)
    formula: Forecast | None = None
    unknown = ""
    try:
        formula = forecast(question, cards=False)
    except Refused as refused:  # what is wrong, and not only unknown to the formulas, is said by the trace
        unknown = "; ".join(mistake.fact for mistake in refused.mistakes)
    traced = traced_by(options, question)
    report = trace_report(traced, formula, unknown)
    print_json(report) if options.json else print(coloured(show_trace(report, traced)))
    _write_trace(options, traced.judged)
    if options.save_arch:
        save_arch(options, question, traced)
    return exit_of(traced.forecast, failed=traced.judged.failed is not None)


def _trace_own(options: argparse.Namespace, question: Understanding) -> int:
    """`trace --step module:function`."""
    from vramcast.catalog.gpus import find_gpu
    from vramcast.report.own_step import own_report, show_own
    from vramcast.report.progress import progress
    from vramcast.trace import trace_own
    from vramcast.trace.process import Child

    Mistakes(question.mistakes).done()
    facts = question.winners()
    if "gpu" not in facts:
        raise refuse("no card given: kernels and workspaces depend on it", use="--gpu NAME")
    if other := sorted(set(facts) - {"gpu", "allocator"}):
        raise refuse(f"a step of your own is run as it is: {', '.join(other)} cannot be set", allowed="gpu, allocator")
    allocator = str(facts["allocator"].value) if "allocator" in facts else ""
    with Child() as child, progress() as tell:
        traced = trace_own(options.step, find_gpu(str(facts["gpu"].value)), allocator, child, tell=tell)
    report = own_report(traced)
    print_json(report) if options.json else print(coloured(show_own(report)))
    _write_trace(options, traced.judged)
    return exit_code(
        report.verdict,
        high=max(phase.high_bytes for phase in report.phases),
        capacity=report.capacity_bytes,
        inside=traced.judged.failed is None,
    )


def _write_trace(options: argparse.Namespace, judged: Judged) -> None:
    from vramcast.report.trace import write_flame, write_snapshot_of

    if options.snapshot:
        write_snapshot_of(judged, options.snapshot)
    if options.flame:
        write_flame(judged, options.flame)
