"""A training run as its source describes it: the fields of the public rows that say something about memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct
from tools.rows.jobs import Skip


class Run(Struct, frozen=True, kw_only=True):
    """One run. A field that the source does not state is None or empty."""

    id: str
    stack: str = ""
    source: dict[str, Any] = {}
    workload: str = ""
    model: dict[str, Any] | None = None
    tuning: str | None = None
    lora: dict[str, Any] | None = None
    weights_dtype: str | None = None
    double_quant: bool | None = None
    compute_dtype: str | None = None
    optimizer: str | None = None
    micro_batch: int | None = None
    seq_len: int | None = None
    packed: bool | None = None
    checkpointing: str | None = None
    attention: str | None = None
    sdpa_backend: str | None = None
    loss: str | None = None
    compile: bool | None = None
    optimizer_in_backward: bool | None = None
    parallel: dict[str, Any] | None = None
    offload: dict[str, str] | None = None
    gpu: str | None = None
    versions: dict[str, str | None] = {}
    params: dict[str, int | None] = {}
    unknown: list[str] | None = None
    notes: str | None = None
    extra: dict[str, Any] | None = None

    @property
    def repo(self) -> str:
        """Where the run was published, without its owner."""
        return str(self.source.get("repo") or "").rpartition("/")[2]

    @property
    def details(self) -> Mapping[str, Any]:
        return self.extra or {}


def run_of(fields: Mapping[str, Any]) -> Run:
    """The run that a row describes.

    Raises:
        Skip: fields that are not what the public format has there.
    """
    try:
        return msgspec.convert(dict(fields), Run)
    except msgspec.ValidationError as error:
        raise Skip(f"not in the format of the public rows: {error}") from None
