"""The trace beside real steps on a T4, by class of run: `python bench/trace_accuracy.py`. Needs the extra `trace`.

Prints the table of README and exits with 1 above a limit. One child process traces all runs. Limits only tighten.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from vramcast.trace import trace
from vramcast.trace.process import Child
from vramcast.validation import Reading, bench

RUNS = Path(__file__).parent / "runs" / "tesla_t4.jsonl"


class Class(NamedTuple):
    """Runs that one mechanism decides: (median, ninth decile, worst) of the relative errors may be as large as this."""

    name: str
    holds: Callable[[dict[str, Any]], bool]
    allocated: tuple[float | None, float | None, float | None]
    reserved: tuple[float | None, float | None, float | None]


def _of(tuning: str, *, eager: bool) -> Callable[[dict[str, Any]], bool]:
    return lambda job: job.get("tuning") == tuning and (job.get("attention") == "eager") == eager


CLASSES = (
    Class("LoRA, efficient attention", _of("lora", eager=False), (None, None, 0.0005), (None, None, 0.005)),
    Class("LoRA, eager attention", _of("lora", eager=True), (None, None, 0.0005), (0.001, None, 0.005)),
    Class("QLoRA, efficient attention", _of("qlora", eager=False), (0.003, None, 0.012), (0.025, 0.08, None)),
    Class("QLoRA, eager attention", _of("qlora", eager=True), (0.003, None, 0.012), (0.025, 0.08, None)),
)


def rows_of(one: Class) -> list[str]:
    """Lines of the runs of a class."""
    lines = RUNS.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if one.holds(json.loads(line)["job"])]


def errors(readings: list[Reading], *quantities: str) -> list[float]:
    return [abs(row.error) for row in readings if row.quantity in quantities and row.error is not None]


def figures(found: list[float]) -> tuple[float, float, float]:
    """(median, ninth decile, worst)"""
    decile = quantiles(found, n=10, method="inclusive")[8] if len(found) > 1 else found[0]
    return median(found), decile, max(found)


def lines(child: Child) -> Iterator[tuple[str, bool]]:
    """Rows of the table, and whether each is within its limits."""
    for one in CLASSES:
        with TemporaryDirectory() as folder:
            file = Path(folder) / "rows.jsonl"
            file.write_text("\n".join(rows_of(one)) + "\n", encoding="utf-8")
            answer = bench([str(file)], lambda job: trace(job, child).judged.phases)
        skipped = sum(row.skipped_reason is not None for row in answer.rows)
        for name, limits, quantities in (
            ("allocated", one.allocated, ("allocated_peak", "allocated_after_load")),
            ("reserved", one.reserved, ("reserved_peak",)),
        ):
            found = errors(answer.rows, *quantities)
            values = figures(found)
            within = all(limit is None or value <= limit for value, limit in zip(values, limits, strict=True))
            shown = " | ".join(f"{100 * value:.3f} %" for value in values)
            allowed = ", ".join(
                f"{what} {100 * limit:g} %"
                for what, limit in zip(("median", "ninth decile", "worst"), limits, strict=True)
                if limit is not None
            )
            yield f"| {one.name} | {name} | {len(found)} | {skipped} | {shown} | {allowed} |", within


def main() -> None:
    print("| runs | counter | readings | skipped | median error | ninth decile | worst error | limit |")
    print("|---|---|---:|---:|---:|---:|---:|---|")
    start, broken = time.perf_counter(), False
    with Child() as child:
        for line, within in lines(child):
            print(line if within else f"{line} ✗", flush=True)
            broken |= not within
    print(f"{time.perf_counter() - start:.0f} s, imports counted", file=sys.stderr)
    sys.exit(int(broken))


if __name__ == "__main__":
    main()
