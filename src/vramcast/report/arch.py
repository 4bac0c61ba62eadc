"""What a model is made of, and what one rank of a layout holds: `explain --arch`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from msgspec import Struct

from vramcast.catalog.dtypes import DTYPES
from vramcast.catalog.models import ModelRow, model_config
from vramcast.errors import refuse
from vramcast.models.describe import build_layout
from vramcast.models.layout import Blocks, Layout
from vramcast.models.place import VOCAB_MULTIPLE, Cut, check_cut, held_by, stages, zero_share
from vramcast.types.job import Fact, Understanding
from vramcast.types.result import SCHEMA, Assumption
from vramcast.units import gib

_MTP = ("num_nextn_predict_layers", "num_mtp_modules", "num_mtp_layers", "mtp_num_hidden_layers")
_CUTS = ("tp", "pp", "ep", "etp")


class ArchBlock(Struct, frozen=True, kw_only=True):
    """Equal blocks of a model."""

    name: str
    prefix: str
    count: int
    params: int
    """of one of them"""
    active_params: int
    bytes: int
    """of all of them, in the dtype of the checkpoint"""
    modules: dict[str, int]


class Architecture(Struct, frozen=True, kw_only=True):
    """A model as blocks × counts."""

    params: int
    active_params: int
    modules: dict[str, int]
    blocks: list[ArchBlock]


class RankShare(Struct, frozen=True, kw_only=True):
    """What a rank of a pipeline stage holds."""

    stage: int
    first_layer: int
    layers: int
    params: int
    bytes: int


class ArchReport(Struct, frozen=True, kw_only=True):
    """The answer of `explain --arch --json`."""

    schema: int
    model: str
    model_type: str
    dtype: str
    bytes: int
    arch: Architecture
    published_params: int | None
    published_reason: str
    layout: dict[str, int | str]
    ranks: list[RankShare]
    assumptions: list[Assumption]


def arch_report(said: Understanding) -> ArchReport:
    """The architecture of the model that was named, under the layout that was set.

    Raises:
        Refused: no model, an unknown one, a config that is not understood, a layout that does not divide it.
    """
    asked = said.winners()
    name = asked["model"].value if "model" in asked else None
    if not isinstance(name, str) or not name.strip():
        raise refuse("no model given", help="--model NAME, or a config that names one; `vramcast list models`")
    row = model_config(name)
    layout = build_layout(row.id, row.config, row.where)
    cut, told = _cut(asked)
    check_cut(layout, cut, {path: str(asked[path].origin) for path in _CUTS if path in asked})
    return ArchReport(
        schema=SCHEMA,
        model=row.id,
        model_type=layout.model_type,
        dtype=layout.dtype,
        bytes=_bytes(layout, layout.params),
        arch=_architecture(layout),
        published_params=row.published,
        published_reason=row.reason,
        layout=told,
        ranks=_ranks(layout, cut, asked) if told else [],
        assumptions=_assumptions(layout, row),
    )


def _architecture(layout: Layout) -> Architecture:
    return Architecture(
        params=layout.params,
        active_params=layout.active_params,
        modules=layout.modules(),
        blocks=[_block(layout, block) for block in layout.blocks],
    )


def _block(layout: Layout, block: Blocks) -> ArchBlock:
    modules: dict[str, int] = {}
    for weight in block.weights:
        module = block.module(weight)
        modules[module] = modules.get(module, 0) + weight.elements
    return ArchBlock(
        name=block.name,
        prefix=block.prefix,
        count=block.count,
        params=block.params,
        active_params=block.active,
        bytes=_bytes(layout, block.count * block.params),
        modules=modules,
    )


def _bytes(layout: Layout, params: int) -> int:
    return DTYPES[layout.dtype].size(params)


def _cut(asked: Mapping[str, Fact]) -> tuple[Cut, dict[str, int | str]]:
    """The layout that was set, and its values as they are shown. Experts are cut by tp unless ep or etp says else."""
    told: dict[str, int | str] = {path: _whole(asked[path]) for path in _CUTS if path in asked}
    if "shard" in asked and asked["shard"].value != "none":
        told["shard"] = str(asked["shard"].value)
    sizes = {path: _whole(asked[path]) if path in asked else 1 for path in _CUTS}
    if "ep" not in asked and "etp" not in asked:
        sizes["etp"] = sizes["tp"]
    vocab_multiple = VOCAB_MULTIPLE if sizes["tp"] > 1 else 1
    tp, pp, ep, etp = (sizes[path] for path in _CUTS)
    return Cut(tp=tp, pp=pp, ep=ep, etp=etp, vocab_multiple=vocab_multiple), told


def _whole(fact: Fact) -> int:
    return fact.value if isinstance(fact.value, int) else 1


def _ranks(layout: Layout, cut: Cut, asked: Mapping[str, Fact]) -> list[RankShare]:
    kind = str(asked["shard"].value) if "shard" in asked else "none"
    if kind in ("zero3", "fsdp1", "fsdp2"):
        return [_sharded(layout, cut, kind, asked)]
    found: list[RankShare] = []
    for stage, layers in enumerate(stages(len(layout.layers()), cut.pp, cut.rule)):
        params = held_by(layout, cut, stage)
        found.append(RankShare(stage=stage, first_layer=layers.start, layers=len(layers), params=params,
                               bytes=_bytes(layout, params)))  # fmt: skip
    return found


def _sharded(layout: Layout, cut: Cut, kind: str, asked: Mapping[str, Fact]) -> RankShare:
    if cut != Cut():
        raise refuse(f"shard = {kind} together with tp, pp or ep is not modelled yet")
    ranks = next((_whole(asked[path]) for path in ("shard_size", "gpus") if path in asked), 0)
    if not ranks:
        raise refuse(f"shard = {kind} needs the number of ranks", help="--gpus N, or --set shard_size=N")
    params = zero_share(layout, ranks, "zero3" if kind == "zero3" else "fsdp1" if kind == "fsdp1" else "fsdp2")
    return RankShare(stage=0, first_layer=0, layers=len(layout.layers()), params=params, bytes=_bytes(layout, params))


def _assumptions(layout: Layout, row: ModelRow) -> list[Assumption]:
    found = [Assumption(path, value, origin) for path, value, origin in layout.assumed]
    if not any(key in section for section in _sections(row) for key in ("torch_dtype", "dtype")):
        found.append(Assumption("torch_dtype", layout.dtype, "vramcast default"))
    for section in _sections(row):
        if section.get("quantization_config"):
            found.append(Assumption("quantization_config", "not applied", f"bytes are those of {layout.dtype}"))
        found += [Assumption(key, section[key], "not counted: transformers builds no MTP layer") for key in _MTP
                  if section.get(key)]  # fmt: skip
    return found


def _sections(row: ModelRow) -> list[dict[str, Any]]:
    """The config and its language model's."""
    nested = row.config.get("text_config")
    return [row.config, cast("dict[str, Any]", nested)] if isinstance(nested, dict) else [row.config]


def show_arch(report: ArchReport) -> str:
    """The report as text of at most 80 columns."""
    return "\n".join([*_head(report), "", *_blocks(report), "", *_modules(report), *_layout(report), *_rest(report)])


def _head(report: ArchReport) -> Iterator[str]:
    arch = report.arch
    yield f"{report.model}  {report.model_type}"
    yield f"  parameters  {arch.params:,}"
    if arch.active_params != arch.params:
        yield f"  active      {arch.active_params:,} for a token"
    yield f"  weights     {gib(report.bytes)} in {report.dtype}"
    if report.published_params is not None:
        same = report.published_params == arch.params
        yield f"  published   {report.published_params:,}{' (the same)' if same else ''}"
        yield from _folded(report.published_reason, 16)


def _folded(text: str, indent: int) -> Iterator[str]:
    from textwrap import wrap

    for line in wrap(text, 80 - indent):
        yield " " * indent + line


def _blocks(report: ArchReport) -> Iterator[str]:
    yield "blocks"
    for block in report.arch.blocks:
        times = f"{block.count} ×" if block.count > 1 else ""
        yield f"  {times:>6} {block.name[:38]:<38} {block.params:>18,} {gib(block.bytes):>13}"


def _modules(report: ArchReport) -> Iterator[str]:
    yield "modules"
    for name, params in sorted(report.arch.modules.items(), key=lambda item: -item[1]):
        share = f"{100 * params / report.arch.params:.1f} %"
        yield f"         {name:<38} {params:>18,} {share:>13}"


def _layout(report: ArchReport) -> Iterator[str]:
    if not report.ranks:
        return
    yield ""
    yield "one rank of " + ", ".join(f"{path} = {value}" for path, value in report.layout.items())
    for rank in report.ranks:
        where = f"stage {rank.stage}: " if len(report.ranks) > 1 else ""
        layers = f"layers {rank.first_layer} to {rank.first_layer + rank.layers - 1}"
        yield f"         {where + layers:<38} {rank.params:>18,} {gib(rank.bytes):>13}"


def _rest(report: ArchReport) -> Iterator[str]:
    if report.assumptions:
        yield ""
        yield "assumed"
        for item in report.assumptions:
            yield f"  {item.path} = {item.value}  ({item.origin})"[:80]
