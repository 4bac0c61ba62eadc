"""A model: what it is made of, how weights and cache are held, what one rank of a layout has (`explain --arch`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, cast

from msgspec import Struct

from vramcast.catalog.checkpoint import read_checkpoint
from vramcast.catalog.dtypes import DTYPES
from vramcast.errors import refuse
from vramcast.memory.loaded import loaded_bytes
from vramcast.models.cache.kinds import Holder
from vramcast.models.layout import Blocks, Layout
from vramcast.models.place import Cut, held_by, stages, zero_share
from vramcast.models.quant.compare import compare
from vramcast.models.stored import Stored, stored
from vramcast.report.arch_adapter import AdapterShare, adapter
from vramcast.report.arch_kept import Kept, kept
from vramcast.report.arch_subject import CUTS, Subject, subject_of, whole
from vramcast.types.job import Understanding
from vramcast.types.result import SCHEMA, Assumption

_MTP = ("num_nextn_predict_layers", "num_mtp_modules", "num_mtp_layers", "mtp_num_hidden_layers")


class ArchBlock(Struct, frozen=True, kw_only=True):
    """Equal blocks of a model."""

    name: str
    prefix: str
    count: int
    params: int
    """of one of them"""
    active_params: int
    bytes: int
    """of all of them, as they are stored"""
    modules: dict[str, int]


class Architecture(Struct, frozen=True, kw_only=True):
    """A model as blocks × counts."""

    params: int
    active_params: int
    modules: dict[str, int]
    blocks: list[ArchBlock]


class ModuleWeights(Struct, frozen=True, kw_only=True):
    """How a class of modules is stored."""

    bytes: int
    bits_per_weight: float
    """scales, zero points and padding included"""
    formats: list[str]
    """of its tensors: a dtype, or how they are packed"""


class RankShare(Struct, frozen=True, kw_only=True):
    """What a rank of a pipeline stage holds; in an engine what its counter shows after loading, tables included."""

    stage: int
    first_layer: int
    layers: int
    params: int
    bytes: int


class Folder(Struct, frozen=True, kw_only=True):
    """The safetensors files of a local model beside what its config.json makes us expect, in bytes."""

    folder: str
    bytes: int
    expected_bytes: int
    differences: dict[str, int]
    """group of tensors -> what the folder has more, the largest first; empty if it is as expected"""


class Tensor(Struct, frozen=True, kw_only=True):
    """Equal tensors of a model."""

    name: str
    """with `*` for the layer"""
    count: int
    shape: list[int]
    module: str


class ArchReport(Struct, frozen=True, kw_only=True):
    """The answer of `explain --arch --json`."""

    schema: int
    model: str
    model_type: str
    dtype: str
    """of what is not packed"""
    quantisation: str | None
    bytes: int
    arch: Architecture
    weights: dict[str, ModuleWeights]
    """class of module -> how it is stored"""
    kept: Kept | None
    """what one sequence keeps between decoding steps; null where that is nothing, or not known (`counted`)"""
    adapter: AdapterShare | None
    checkpoint: Folder | None
    published_params: int | None
    published_reason: str
    layout: dict[str, int | str]
    ranks: list[RankShare]
    assumptions: list[Assumption]
    counted: str
    """the class whose parameters were counted, where no table has the model type; else empty"""
    tensors: list[Tensor] | None
    """every parameter tensor, if that was asked for"""


def arch_report(said: Understanding, adapter_file: str | None = None, *, tensors: bool = False) -> ArchReport:
    """The architecture of the model that was named, under the layout that was set; with `tensors`, each of them.

    Raises:
        Refused: no model, an unknown one, a config that is not understood, a layout that does not divide it, a
            quantisation, an adapter or a cache dtype that it cannot have.
    """
    subject = subject_of(said.winners())
    layout = subject.layout
    whole_model = stored(layout, subject.quantisation, subject.dtype, holder=subject.holder)
    return ArchReport(
        schema=SCHEMA,
        model=subject.row.id,
        model_type=layout.model_type,
        dtype=subject.dtype,
        quantisation=subject.quantisation.label if subject.quantisation else None,
        bytes=int(whole_model.bytes),
        arch=_architecture(layout, whole_model),
        weights=_weights(whole_model),
        kept=None if layout.counted else kept(subject, _holder(subject)),
        adapter=adapter(subject, adapter_file),
        checkpoint=_folder(subject),
        published_params=subject.row.published,
        published_reason=subject.row.reason,
        layout=_told(subject),
        ranks=list(_ranks(subject)) if _told(subject) else [],
        assumptions=_assumptions(subject),
        counted=layout.counted,
        tensors=list(_tensors(layout)) if tensors else None,
    )


def _tensors(layout: Layout) -> Iterator[Tensor]:
    for block in layout.blocks:
        lead = ".".join(part for part in (block.prefix, "*" if block.layers else "") if part)
        for weight in block.weights:
            name = f"{lead}.{weight.name}" if lead else weight.name
            shape = [int(size) for size in weight.shape]
            yield Tensor(name=name, count=block.count, shape=shape, module=block.module(weight))


def _holder(subject: Subject) -> Holder:
    return "transformers" if subject.holder == "checkpoint" else subject.holder


def _architecture(layout: Layout, whole_model: Stored) -> Architecture:
    sizes = [int(block.bytes) for block in whole_model.blocks]
    return Architecture(
        params=layout.params,
        active_params=layout.active_params,
        modules=layout.modules(),
        blocks=[_block(block, size) for block, size in zip(layout.blocks, sizes, strict=True)],
    )


def _block(block: Blocks, size: int) -> ArchBlock:
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
        bytes=size,
        modules=modules,
    )


def _weights(whole_model: Stored) -> dict[str, ModuleWeights]:
    return {
        module: ModuleWeights(
            bytes=int(size),
            bits_per_weight=round(float(whole_model.bits(module)), 4),
            formats=list(whole_model.formats[module]),
        )
        for module, size in whole_model.modules.items()
    }


def _told(subject: Subject) -> dict[str, int | str]:
    """The layout that was set, as it is shown."""
    told: dict[str, int | str] = {path: whole(subject.asked, path) for path in CUTS if path in subject.asked}
    shard = subject.value("shard")
    return told if shard in (None, "none") else {**told, "shard": str(shard)}


def _ranks(subject: Subject) -> Iterator[RankShare]:
    kind = str(subject.value("shard") or "none")
    if kind in ("zero3", "fsdp1", "fsdp2"):
        yield _sharded(subject, kind)
        return
    layout, cut, served = subject.layout, subject.cut, subject.served()
    for stage, layers in enumerate(stages(len(layout.layers()), cut.pp, cut.rule)):
        if served is None:
            held = int(stored(layout, subject.quantisation, subject.dtype, cut, stage).bytes)
        else:
            held = loaded_bytes(served, stage)
        yield RankShare(
            stage=stage,
            first_layer=layers.start,
            layers=len(layers),
            params=held_by(layout, cut, stage),
            bytes=held,
        )


def _sharded(subject: Subject, kind: str) -> RankShare:
    layout = subject.layout
    if subject.cut != Cut():
        raise refuse(f"shard = {kind} together with tp, pp or ep is not modelled yet")
    if subject.quantisation is not None:
        raise refuse(f"shard = {kind} of packed weights is not modelled yet")
    ranks = next((whole(subject.asked, path) for path in ("shard_size", "gpus") if path in subject.asked), 0)
    if not ranks:
        raise refuse(f"shard = {kind} needs the number of ranks", help="--gpus N, or --set shard_size=N")
    params = zero_share(layout, ranks, "zero3" if kind == "zero3" else "fsdp1" if kind == "fsdp1" else "fsdp2")
    size = DTYPES[subject.dtype].size(params)
    return RankShare(stage=0, first_layer=0, layers=len(layout.layers()), params=params, bytes=size)


def _folder(subject: Subject) -> Folder | None:
    """The weights beside a local config.json, if there are any."""
    folder = os.path.dirname(subject.row.source) or "."
    if subject.row.catalogued or not _has_weights(folder):
        return None
    files = read_checkpoint(folder)
    expected = stored(subject.layout, subject.quantisation, subject.dtype)
    groups = compare(subject.layout, subject.quantisation, subject.dtype, files)
    return Folder(
        folder=folder,
        bytes=files.bytes,
        expected_bytes=int(expected.bytes),
        differences={group.name: group.difference for group in groups},
    )


def _has_weights(folder: str) -> bool:
    return os.path.isdir(folder) and any(name.endswith(".safetensors") for name in os.listdir(folder))


def _assumptions(subject: Subject) -> list[Assumption]:
    layout = subject.layout
    found = [Assumption(path, value, origin) for path, value, origin in layout.assumed]
    sections = _sections(subject)
    if "weights_dtype" not in subject.asked and not any(
        key in section for section in sections for key in ("torch_dtype", "dtype")
    ):
        found.append(Assumption("torch_dtype", layout.dtype, "vramcast default"))
    for section in sections:
        found += [
            Assumption(key, section[key], "not counted: transformers builds no MTP layer")
            for key in _MTP
            if section.get(key)
        ]
    return found


def _sections(subject: Subject) -> list[dict[str, Any]]:
    """The config and its language model's."""
    config = subject.row.config
    nested = config.get("text_config")
    return [config, cast("dict[str, Any]", nested)] if isinstance(nested, dict) else [config]
