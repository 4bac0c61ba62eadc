"""Rows of a benchmark file: models in the catalogue's format, and runs with readings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from vramcast.catalog.models import model_config, model_names
from vramcast.catalog.userfile import read_bytes
from vramcast.errors import Mistakes

_LIMIT_BYTES = 64 * 10**6


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a file. A model has a config; a run has readings."""

    id: str
    where: str = ""
    params_exact: int | None = None
    config: dict[str, Any] | None = None
    readings: list[dict[str, Any]] | None = None
    stack: str = "catalogue"
    tuning: str | None = None
    gold: bool = False
    confidence: str | None = None


def catalogue_rows() -> list[Row]:
    """The package's own models, with the number of parameters that was counted on the real class."""
    found = [model_config(name) for name in model_names()]
    return [Row(id=row.id, where=row.where, params_exact=row.params, config=row.config) for row in found]


def file_rows(path: str) -> list[Row]:
    """The rows of a file, in its order.

    Raises:
        Refused: with every line that is no row.
    """
    mistakes = Mistakes()
    rows = list(_rows(read_bytes(path, _LIMIT_BYTES, "file of rows"), path, mistakes))
    mistakes.done()
    return rows


def _rows(content: bytes, path: str, mistakes: Mistakes) -> Iterator[Row]:
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = msgspec.json.decode(line, type=Row)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            mistakes.add(f"not a row: {error}", **{"from": where})
            continue
        if row.config is None and row.readings is None:
            mistakes.add(
                "not a row: neither a model's config nor readings of a run",
                **{"from": where, "allowed": "a JSON object a line with id, and config or readings"},
            )
            continue
        yield msgspec.structs.replace(row, where=where)
