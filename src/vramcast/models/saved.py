"""A traced model as a file. `vramcast trace --save-arch` writes it, `--model` reads it."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from vramcast import __version__
from vramcast.catalog.models import SAVED
from vramcast.errors import Refused, refuse
from vramcast.models.arch import Arch, Block, Row
from vramcast.models.extents import extent
from vramcast.models.measured import NEVER, Measurement, Part, parts_of
from vramcast.models.program import Dims, no_program

FORMAT = 1
"""the one that is written and read here"""


class Shape(Struct, frozen=True, kw_only=True):
    """Sizes and parameters, as `Arch` has them."""

    model_type: str
    dims: Dims
    rows: tuple[Row, ...]
    """of a block"""
    outer: tuple[Row, ...]
    tied: bool
    dtype: str
    max_len: int
    biased: bool
    """linear layers have biases"""
    default_targets: tuple[str, ...]


class SavedArch(Struct, frozen=True, kw_only=True):
    """The file."""

    vramcast_arch: int
    vramcast: str
    """the version that wrote it"""
    name: str
    config: dict[str, Any]
    """the model's config.json"""
    shape: Shape
    measurement: Measurement


def saved(name: str, config: dict[str, Any], arch: Arch, measurement: Measurement) -> SavedArch:
    """The file of a model."""
    shape = Shape(
        model_type=arch.model_type,
        dims=arch.dims,
        rows=arch.block.rows,
        outer=arch.outer,
        tied=arch.tied,
        dtype=arch.dtype,
        max_len=arch.max_len,
        biased=arch.qkv_bias,
        default_targets=arch.default_targets,
    )
    return SavedArch(
        vramcast_arch=FORMAT, vramcast=__version__, name=name, config=config, shape=shape, measurement=measurement
    )


def content_of(file: SavedArch) -> dict[str, Any]:
    """The file as plain data."""
    return msgspec.to_builtins(file)


def saved_arch(content: dict[str, Any], name: str, path: str) -> Arch:
    """The architecture that a file holds: its block has measured rows and no program.

    Raises:
        Refused: the file is damaged or of another format.
    """
    file = _read(content, path)
    shape = file.shape
    return Arch(
        name=name,
        model_type=shape.model_type,
        dims=shape.dims,
        block=Block("measured", shape.rows, no_program, file.measurement),
        outer=shape.outer,
        tied=shape.tied,
        dtype=shape.dtype,
        max_len=shape.max_len,
        qkv_bias=shape.biased,
        output_bias=shape.biased,
        qk_norm=False,
        mlp_bias=False,
        shares_keys=shape.dims.kv_heads != shape.dims.heads,
        small_heads=shape.dims.head_dim <= 128,
        default_targets=shape.default_targets,
    )


def _read(content: dict[str, Any], path: str) -> SavedArch:
    if content.get(SAVED) != FORMAT:
        raise _other_format(content, path)
    try:
        file = msgspec.convert(content, SavedArch)
    except msgspec.ValidationError as error:
        raise _damaged(path, str(error)) from None
    places = [(place, part) for one in file.measurement.variants for place, part in parts_of(one)]
    wrong = next((f"{place}: {why}" for place, part in places if (why := _wrong(part))), "")
    if not places or wrong:
        raise _damaged(path, wrong or "nothing is measured")
    return file


def _wrong(part: Part) -> str:
    """What cannot be in a part."""
    last = len(part.tensors) * 2
    for tensor in part.tensors:
        if tensor.born < 0 or tensor.born >= last or (tensor.dies != NEVER and not tensor.born < tensor.dies < last):
            return f"{tensor.operator} is born at step {tensor.born} and dies at {tensor.dies}"
        if unknown := [name for _, name in tensor.bytes if extent(name) is None]:
            return f"{tensor.operator} grows with {unknown[0]!r}, which nobody knows"
    steps = [step for tensor in part.tensors for step in (tensor.born, tensor.dies) if step != NEVER]
    return "two events at one step" if len(set(steps)) < len(steps) else ""


def _damaged(path: str, why: str) -> Refused:
    return refuse(f"{path} is a damaged file of a traced model: {why}", use="vramcast trace --save-arch, once more")


def _other_format(content: dict[str, Any], path: str) -> Refused:
    found, writer = content.get(SAVED), content.get("vramcast")
    newer = isinstance(found, int) and found > FORMAT
    return refuse(
        f"{path} is a traced model of format {found!r}; this vramcast reads format {FORMAT}",
        **{
            "written by": f"vramcast {writer}" if isinstance(writer, str) else "",
            "this is": f"vramcast {__version__}",
            "help": "update vramcast" if newer else "write it anew: vramcast trace --save-arch",
        },
    )
