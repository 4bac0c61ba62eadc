"""A job on a traced model that was saved: what was measured must be what the job does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias, cast

from vramcast.errors import refuse
from vramcast.estimate.resolve import Resolved
from vramcast.memory.measured import modes_of, under
from vramcast.memory.seat import Seat
from vramcast.models.measured import Measured, Measurement

ALGORITHMS = ("sft", "pretrain")
Apart: TypeAlias = tuple[str, str, str]
"""(path, what the job says, what was measured)"""


def check_measured(job: Resolved, seat: Seat) -> None:
    """Refuse what was not measured.

    Raises:
        Refused: every mode and size that differs, with what was measured, and the command that measures this job.
    """
    measurement = job.arch.measured
    if measurement is None:
        return
    modes = modes_of(seat)
    found = under(measurement, modes)
    apart = [*_job(job, measurement), *(_sizes(job, found) if found else _modes(measurement, modes))]
    if apart:
        lines = {path: f"{said} ({_origin(job, path)}), measured: {known}" for path, said, known in apart}
        raise refuse(f"{job.arch.name} was not measured for this job", **lines, measure=_command(job))


def _origin(job: Resolved, path: str) -> str:
    return str(job.facts[path].origin) if path in job.facts else "vramcast default"


def _job(job: Resolved, measurement: Measurement) -> Iterator[Apart]:
    framework = str(job.facts["framework"].value)
    if job.settings.algorithm not in ALGORITHMS:
        yield "algorithm", job.settings.algorithm, " or ".join(ALGORITHMS)
    if framework != measurement.framework:
        yield "framework", framework, measurement.framework


def _sizes(job: Resolved, found: list[Measured]) -> Iterator[Apart]:
    length, sequences = job.settings.seq_len, job.settings.micro_batch
    one = next((one for one in found if one.has(sequences)), found[0])
    if not one.shortest <= length <= one.longest:
        yield "seq_len", f"{length:,}", f"{one.shortest:,} to {one.longest:,}"
    if not one.has(sequences):
        yield "micro_batch", str(sequences), str(one.most or f"{one.fewest} or more")


def _modes(measurement: Measurement, asked: dict[str, str]) -> Iterator[Apart]:
    """What differs from the nearest of those that were measured."""

    def apart(one: Measured) -> list[str]:
        return [path for path in {**asked, **one.modes} if asked.get(path) != one.modes.get(path)]

    nearest = min(measurement.variants, key=lambda one: len(apart(one)))
    for path in apart(nearest):
        yield path, asked.get(path, "none"), nearest.modes.get(path, "none")


def _command(job: Resolved) -> str:
    """What traces this job and saves it again."""
    values = job.job.to_file()
    said = [f"--set {path}={_text(value)}" for path, value in values.items() if path not in ("model", "gpu", "gpus")]
    gpu = f"--gpu {values['gpu']} " if "gpu" in values else ""
    return f"vramcast trace --model {job.arch.name} {gpu}{' '.join(said)} --save-arch {job.arch.name}"


def _text(value: object) -> str:
    if isinstance(value, list):
        return ",".join(str(part) for part in cast("list[object]", value))
    return str(value).lower() if isinstance(value, bool) else str(value)
