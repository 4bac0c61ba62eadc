"""What one rank of an engine holds, by the paths of a run: its weights, and what a token adds to its cache."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from vramcast.bench.jobs import Skip
from vramcast.catalog.dtypes import BYTES
from vramcast.catalog.models import model_config
from vramcast.errors import refuse
from vramcast.memory.segments import place
from vramcast.models.cache.formats import formats
from vramcast.models.cache.kinds import cache_kinds
from vramcast.models.cache.sizes import bytes_per_token
from vramcast.models.describe import build_layout
from vramcast.models.layout import Layout
from vramcast.models.place import VOCAB_MULTIPLE, Cut, check_cut
from vramcast.models.quant.extras import extras
from vramcast.models.quant.loadtime import load_time
from vramcast.models.quant.quantisation import Quantisation
from vramcast.models.quant.read import read_quantisation
from vramcast.models.stored import allocations
from vramcast.types.paths import Value

Holder: TypeAlias = Literal["vllm", "sglang"]
_VIEWS = re.compile(r"~?0\.([0-9]|1[01])(\D|$)")
"""vLLM up to 0.11 reads MLA's absorbed projections from the weights; later versions copy them"""


class Served(Struct, frozen=True, kw_only=True):
    """A model on one rank of an engine."""

    holder: Holder
    version: str
    layout: Layout
    config: dict[str, Any]
    quantisation: Quantisation | None
    dtype: str
    cache: str
    cut: Cut

    def weights(self) -> int:
        """Bytes after loading, as the engine's own log counts them: what is allocated, or in SGLang reserved."""
        tensors = allocations(self.layout, self.quantisation, self.dtype, self.cut, 0, self.holder)
        copies = self.holder == "sglang" or not _VIEWS.match(self.version)
        beside = extras(
            self.config, self.layout, self.quantisation, BYTES[self.dtype], self.cut, 0, self.holder, copies=copies
        )
        placed = place(map(int, [*tensors, *beside.values()]))
        return placed.reserved if self.holder == "sglang" else placed.allocated

    def kv_bytes_per_token(self) -> int:
        """Bytes that a further token of a sequence adds on one rank, in layers that see all tokens."""
        kinds = cache_kinds(self.layout, self.config, self.layout.name, self.holder)
        form = formats(kinds, self.holder, self.dtype, self.cache, self.layout.name)
        return int(bytes_per_token(kinds, form, self.cut))


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
        holder="sglang" if kind == "sglang" else "vllm",  # TensorRT-LLM's cache has the pages of vLLM
        version=str(job.get("engine.version") or ""),
        layout=layout,
        config=row.config,
        quantisation=quantisation,
        dtype=dtype,
        cache=str(job.get("engine.kv_dtype") or "auto"),
        cut=cut,
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
