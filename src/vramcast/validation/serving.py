"""The model on one rank of an engine, by the paths of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramcast.catalog.dtypes import BYTES
from vramcast.catalog.models import model_config
from vramcast.errors import refuse
from vramcast.models.describe import build_layout
from vramcast.models.place import VOCAB_MULTIPLE, Cut, check_cut
from vramcast.models.quant.loadtime import load_time
from vramcast.models.quant.quantisation import Quantisation
from vramcast.models.quant.read import read_quantisation
from vramcast.models.served import Served
from vramcast.types.paths import Value
from vramcast.validation.reading import Skip


def served(job: Mapping[str, Value]) -> Served:
    """The model, its quantisation and its cut, by the paths of a run.

    Raises:
        Refused: a model or a method that is not known.
        Skip: another engine.
    """
    kind = str(job.get("engine.kind"))
    if kind not in ("vllm", "sglang", "trtllm"):
        raise Skip(f"not modelled yet: weights and cache of engine.kind = {kind}")
    row = model_config(str(job["model"]))
    layout = build_layout(row.id, row.config, row.where)
    tp, pp = _count(job, "engine.tp"), _count(job, "engine.pp")
    cut = Cut(tp=tp, etp=tp, pp=pp, vocab_multiple=VOCAB_MULTIPLE)
    check_cut(layout, cut, {})
    quantisation = _quantisation(job, row.config, row.where)
    if quantisation is not None:
        quantisation.check(layout)
    dtype = str(job.get("weights_dtype") or layout.dtype)
    if dtype not in BYTES:
        raise refuse(f"weights_dtype = {dtype} is not a dtype of plain weights")
    return Served(
        layout,
        row.config,
        cut,
        dtype=dtype,
        holder="sglang" if kind == "sglang" else "vllm",  # TensorRT-LLM's cache has the pages of vLLM
        version=str(job.get("engine.version") or ""),
        quantisation=quantisation,
        cache=str(job.get("engine.kv_dtype") or "auto"),
    )


def _count(job: Mapping[str, Value], path: str) -> int:
    value = job.get(path)
    return value if isinstance(value, int) else 1


def _quantisation(job: Mapping[str, Value], config: dict[str, Any], where: str) -> Quantisation | None:
    """The run's, or the model's own; the own one where both are of the same family and it says more."""
    own = read_quantisation(config, where)
    kind = job.get("quant.kind")
    if not isinstance(kind, str) or (own is not None and own.kind.startswith(kind)):
        return own
    bits, group = job.get("quant.bits"), job.get("quant.group")
    return load_time(
        kind,
        double=kind == "nf4",  # vLLM's loader quantises the scales too (bitsandbytes_loader.py, compress_statistics)
        bits=bits if isinstance(bits, int) else None,
        group=group if isinstance(group, int) else None,
        experts=True,
    )
