"""A job on a traced model that was saved: what was measured must be what the job does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vramcast.errors import Mistakes
from vramcast.estimate.modelled import Also
from vramcast.memory.measured import modes_of, variant
from vramcast.memory.seat import Seat
from vramcast.models.arch import Arch
from vramcast.models.measured import Measured, Measurement

if TYPE_CHECKING:
    from vramcast.estimate.resolve import Resolved

ALGORITHMS = ("sft", "pretrain")


def known_beside(arch: Arch) -> Also:
    """Values that formulas do not know, and a measured model does."""
    measurement = arch.block.measured
    if measurement is None:
        return {}
    return {"attention": tuple(dict.fromkeys(one.modes.get("attention", "") for one in measurement.variants))}


def check_measured(job: Resolved, seat: Seat) -> None:
    """Refuse what was not measured.

    Raises:
        Refused: every mode and size that differs, with what was measured, and the command that measures it.
    """
    measurement = job.arch.block.measured
    if measurement is None:
        return
    mistakes = Mistakes()
    found = variant(measurement, modes_of(seat))
    if job.settings.algorithm not in ALGORITHMS:
        _differs(mistakes, job, "algorithm", job.settings.algorithm, " or ".join(ALGORITHMS))
    if job.facts["framework"].value != measurement.framework:
        _differs(mistakes, job, "framework", str(job.facts["framework"].value), measurement.framework)
    if found is None:
        for path, said, known in _modes(measurement, modes_of(seat)):
            _differs(mistakes, job, path, said, known)
    else:
        _check_sizes(mistakes, job, found)
    if mistakes.found:
        mistakes.found[-1].context["measure"] = _command(job)
    mistakes.done()


def _check_sizes(mistakes: Mistakes, job: Resolved, found: Measured) -> None:
    length, sequences = job.settings.seq_len, job.settings.micro_batch
    if not found.shortest <= length <= found.longest:
        _differs(mistakes, job, "seq_len", f"{length:,}", f"{found.shortest:,} to {found.longest:,}")
    if sequences < found.fewest or (found.most and sequences > found.most):
        _differs(mistakes, job, "micro_batch", str(sequences), str(found.most or f"{found.fewest} or more"))


def _differs(mistakes: Mistakes, job: Resolved, path: str, said: str, known: str) -> None:
    origin = str(job.facts[path].origin) if path in job.facts else "vramcast default"
    mistakes.add(f"{path} = {said} was not measured", **{"from": origin, "measured": known, "model": job.arch.name})


def _modes(measurement: Measurement, asked: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """(path, what is asked, what was measured) of the nearest variant's modes that differ."""

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
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
