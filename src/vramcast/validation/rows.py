"""Rows of a benchmark file: models in the catalogue's format, and runs with readings."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, TypeAlias, cast

import msgspec

from vramcast.catalog.models import model_config, model_names
from vramcast.catalog.userfile import read_bytes, read_json
from vramcast.errors import Mistake, Mistakes, Refused, refuse
from vramcast.types.job import Origin, check_value
from vramcast.types.paths import Value
from vramcast.validation.generate import Counter
from vramcast.validation.reading import Limit

_LIMIT_BYTES = 64 * 10**6


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a file. A model has a config; a run has readings."""

    id: str
    where: str = ""
    params_exact: int | None = None
    config: dict[str, Any] | None = None
    readings: list[dict[str, Any]] | None = None
    job: dict[str, Any] | None = None
    """the run in our own paths"""
    component: dict[str, Any] | None = None
    """a single operator instead of a run, as the tools beside the package read it"""
    counter: Counter = "peak"
    """which of PyTorch's counters an allocated peak was read from"""
    between: list[dict[str, Any]] = []
    """what the source leaves open: the paths at both ends of what they can have been"""
    skip: str | None = None
    """why no reading of the run can be predicted"""
    fields: dict[str, Any] = {}
    """the whole line"""
    stack: str = "catalogue"
    tuning: str | None = None
    gold: bool = False
    confidence: str | None = None

    @property
    def is_none(self) -> bool:
        """A line that is no row."""
        return self.config is None and self.readings is None

    @property
    def unknown(self) -> list[str]:
        """What the source leaves open, in its words."""
        return [str(note) for note in self.fields.get("unknown") or ()]

    @property
    def open_question(self) -> str:
        """The reason to skip a reading that depends on it."""
        return "the source leaves out what the value depends on: " + (", ".join(self.unknown) or "not said what")


def catalogue_rows() -> list[Row]:
    """The package's own models, with the number of parameters that was counted on the real class."""
    found = [model_config(name) for name in model_names()]
    return [Row(id=row.id, where=row.where, params_exact=row.params, config=row.config) for row in found]


_LIMITS = "limits.json"


def files_of(paths: Iterable[str]) -> list[str]:
    """The files, and of folders the `*.jsonl` files by name."""
    found: list[str] = []
    for path in paths:
        inside = sorted(glob.glob(os.path.join(glob.escape(path), "*.jsonl"))) if os.path.isdir(path) else [path]
        if not inside:
            raise refuse(f"{path} holds no *.jsonl file")
        found += inside
    return found


Limits: TypeAlias = dict[str, dict[str, Limit]]
"""workload -> quantity -> limit"""


def limits_of(paths: Iterable[str]) -> Limits:
    """The limits of the folders' `limits.json`.

    Raises:
        Refused: a file that is no table of limits.
    """
    found: Limits = {}
    for path in paths:
        file = os.path.join(path, _LIMITS)
        if os.path.isfile(file):
            try:
                found |= msgspec.json.decode(read_bytes(file), type=Limits)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise refuse(f"{file} is no table of limits: {error}") from None
    return found


def file_rows(path: str) -> list[Row]:
    """The rows of a file, in its order; a line that is no row is one that is skipped, and says why.

    Raises:
        Refused: with every line that is no row, if the file has no other.
    """
    rows: list[Row] = []
    wrong: list[Mistake] = []
    for number, line in enumerate(read_bytes(path, _LIMIT_BYTES, "file of rows").splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            rows.append(_row(line, where))
        except Refused as refused:
            wrong += refused.mistakes
            reason = "; ".join(mistake.fact for mistake in refused.mistakes)
            rows.append(Row(id=f"line {number}", where=where, skip=reason))
    if wrong and all(row.is_none for row in rows):
        raise Refused(wrong)
    return rows


def _row(line: bytes, where: str) -> Row:
    """One row, typed.

    Raises:
        Refused: with everything that is wrong with it.
    """
    try:
        fields = read_json(line)
        if not isinstance(fields, dict):
            raise ValueError("a row is an object")
        fields = cast("dict[str, Any]", fields)
        row = msgspec.convert({**fields, "fields": fields}, Row)
    except (ValueError, RecursionError) as error:
        raise refuse(f"not a row: {error}", **{"from": where}) from None
    mistakes = Mistakes()
    if row.is_none:
        mistakes.add(
            "not a row: neither a model's config nor readings of a run",
            **{"from": where, "allowed": "a JSON object a line with id, and config or readings"},
        )
    job = _job(row.job, where, mistakes) if row.job is not None else None
    for reading in row.readings or ():
        value = reading.get("value")
        if not isinstance(value, (int, float, type(None))) or (isinstance(value, float) and not isfinite(value)):
            mistakes.add(f"a reading's value must be a number, not {value!r}", **{"from": where})
    mistakes.done()
    return msgspec.structs.replace(row, where=where, job=job)


def _job(job: Mapping[str, object], where: str, mistakes: Mistakes) -> dict[str, Value]:
    """The run's paths, their values typed."""
    found: dict[str, Value] = {}
    for path, raw in job.items():
        with mistakes.collect():
            found[path] = check_value(path, raw, Origin(where))
    if job.get("model") is None:
        mistakes.add("the job of a run names no model", **{"from": where})
    return found
