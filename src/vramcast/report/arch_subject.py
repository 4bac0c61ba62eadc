"""The model that `explain --arch` is about: its layout, its quantisation, who holds it, and the cut of one rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

from msgspec import Struct

from vramcast.catalog.dtypes import BYTES
from vramcast.catalog.models import ModelRow, model_config
from vramcast.errors import Mistakes, Refused, refuse
from vramcast.models.describe import build_layout
from vramcast.models.layout import Layout
from vramcast.models.place import VOCAB_MULTIPLE, Cut, check_cut
from vramcast.models.quant.format import ENGINES
from vramcast.models.quant.loadtime import load_time
from vramcast.models.quant.quantisation import Quantisation
from vramcast.models.quant.read import read_quantisation
from vramcast.models.served import Served
from vramcast.models.types import Unknown
from vramcast.types.job import Fact

CUTS = ("tp", "pp", "ep", "etp")
_QUANT = ("quant.kind", "quant.double", "quant.storage", "quant.bits", "quant.group")


class Subject(Struct, frozen=True, kw_only=True):
    """A model as somebody holds it."""

    row: ModelRow
    layout: Layout
    quantisation: Quantisation | None
    dtype: str
    """of what is not packed"""
    holder: Literal["checkpoint", "vllm", "sglang"]
    cut: Cut
    asked: Mapping[str, Fact]

    def value(self, path: str) -> Any:
        """What was said of a path; None if nothing."""
        return self.asked[path].value if path in self.asked else None

    def served(self) -> Served | None:
        """The model on a rank of the engine that holds it, if one does."""
        if self.holder == "checkpoint":
            return None
        return Served(
            self.layout,
            self.row.config,
            self.cut,
            dtype=self.dtype,
            holder=self.holder,
            version=str(self.value("engine.version") or ""),
            quantisation=self.quantisation,
            cache=str(self.value("engine.kv_dtype") or "auto"),
        )

    def origin(self, path: str) -> str:
        return str(self.asked[path].origin) if path in self.asked else ""


def subject_of(asked: Mapping[str, Fact]) -> Subject:
    """The model that was named, as the facts say it is held.

    Raises:
        Refused: no model, an unknown one, a config that is not understood, a quantisation or a layout that does not
            go with it: all that can be found at once.
    """
    name = asked["model"].value if "model" in asked else None
    if not isinstance(name, str) or not name.strip():
        raise refuse("no model given", help="--model NAME, or a config that names one; `vramcast list models`")
    row = model_config(name)
    try:
        layout = build_layout(row.id, row.config, row.where)
    except Unknown as unknown:
        layout = _by_class(row, unknown)
    mistakes = Mistakes()
    quantisation: Quantisation | None = None
    with mistakes.collect():
        quantisation = _quantisation(asked, row)
        if quantisation is not None:
            quantisation.check(layout, _said(asked) or row.where)
    cut = _cut(asked)
    with mistakes.collect():
        check_cut(layout, cut, {path: str(asked[path].origin) for path in CUTS if path in asked})
    if layout.counted:
        _check_counted(layout, asked, mistakes)
    mistakes.done()
    dtype = str(asked["weights_dtype"].value) if "weights_dtype" in asked else layout.dtype
    if dtype not in BYTES:
        raise refuse(f"weights_dtype = {dtype} is not a dtype of plain weights", allowed="fp32, bf16, fp16")
    kind = _said_kind(asked)
    holder = cast(Any, kind) if kind in ENGINES else "checkpoint"
    return Subject(row=row, layout=layout, quantisation=quantisation, dtype=dtype, holder=holder, cut=cut, asked=asked)


def _by_class(row: ModelRow, unknown: Unknown) -> Layout:
    """The layout of a model that no table knows, from the class that Transformers has for it.

    Raises:
        Refused: what is unknown, and why its class is not counted.
    """
    from vramcast.models.counted import counted_layout, reading
    from vramcast.trace.cache import Cache
    from vramcast.trace.classes import count_class

    if not reading(str(row.config.get("model_type"))):
        raise unknown
    try:
        count = count_class(row.config, Cache())
    except Refused as refused:
        raise Refused([*unknown.mistakes, *refused.mistakes]) from None
    return counted_layout(row.id, row.config, count, unknown.mistakes[0].fact)


def _check_counted(layout: Layout, asked: Mapping[str, Fact], mistakes: Mistakes) -> None:
    """What a class does not say: how ranks cut its tensors, how an engine holds them."""
    told = [path for path in ("tp", "ep", "etp") if path in asked and asked[path].value not in (None, 1)]
    told += ["engine.kind"] if _said_kind(asked) in ENGINES else []
    for path in told:
        mistakes.add(
            f"{path} = {asked[path].value}: how model type {layout.model_type} is divided or held is not known",
            **{"from": str(asked[path].origin), "help": "its parameters were counted from its class; leave it out"},
        )


def _said_kind(asked: Mapping[str, Fact]) -> object:
    return asked["engine.kind"].value if "engine.kind" in asked else ""


def _said(asked: Mapping[str, Fact]) -> str:
    return next((str(asked[path].origin) for path in _QUANT if path in asked), "")


def _quantisation(asked: Mapping[str, Fact], row: ModelRow) -> Quantisation | None:
    """The checkpoint's own, or what the paths ask for; QLoRA asks for nf4."""
    own = read_quantisation(row.config, row.where)
    values = {path: asked[path].value if path in asked else None for path in _QUANT}
    kind = values["quant.kind"]
    if kind is None and "tuning" in asked and asked["tuning"].value == "qlora":
        kind = own.kind if own is not None else "nf4"
    if own is not None and kind not in (None, own.kind):
        raise refuse(
            f"quant.kind = {kind}, and the checkpoint is quantised already: {own.label}",
            **{"from": str(asked["quant.kind"].origin), "allowed": own.kind},
        )
    if own is not None or kind is None:
        return own
    bits, group, storage = values["quant.bits"], values["quant.group"], values["quant.storage"]
    return load_time(
        str(kind),
        double=bool(values["quant.double"]),
        storage=storage if isinstance(storage, str) else None,
        bits=bits if isinstance(bits, int) else None,
        group=group if isinstance(group, int) else None,
        model_type=str(row.config.get("model_type") or ""),
    )


def _cut(asked: Mapping[str, Fact]) -> Cut:
    """The layout that was set. Experts are cut by tp unless ep or etp says else."""
    sizes = {path: whole(asked, path) or 1 for path in CUTS}
    if "ep" not in asked and "etp" not in asked:
        sizes["etp"] = sizes["tp"]
    padded = sizes["tp"] > 1 or _said_kind(asked) in ENGINES
    vocab_multiple = VOCAB_MULTIPLE if padded else 1
    tp, pp, ep, etp = (sizes[path] for path in CUTS)
    return Cut(tp=tp, pp=pp, ep=ep, etp=etp, vocab_multiple=vocab_multiple)


def whole(asked: Mapping[str, Fact], path: str) -> int:
    """A number that was set; 0 if none."""
    value = asked[path].value if path in asked else None
    return value if isinstance(value, int) else 0
