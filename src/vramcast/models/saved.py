"""A traced model as a file. `vramcast trace --save-arch` writes it, `--model` reads it."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct, structs

from vramcast import __version__
from vramcast.catalog.models import SAVED
from vramcast.errors import Refused, refuse
from vramcast.models.arch import Arch, arch_of
from vramcast.models.extents import extent
from vramcast.models.layout import Layout
from vramcast.models.measured import NEVER, Measurement, Part, parts_of

FORMAT = 2
"""the one that is written and read here"""


class SavedArch(Struct, frozen=True, kw_only=True):
    """The file."""

    vramcast_arch: int
    vramcast: str
    """the version that wrote it"""
    name: str
    config: dict[str, Any]
    """the model's config.json"""
    layout: Layout
    """its tensors"""
    measurement: Measurement


def saved(name: str, config: dict[str, Any], arch: Arch, measurement: Measurement) -> SavedArch:
    """The file of a model."""
    layout = structs.replace(
        arch.layout, blocks=tuple(structs.replace(block, forward=None) for block in arch.layout.blocks)
    )
    return SavedArch(
        vramcast_arch=FORMAT, vramcast=__version__, name=name, config=config, layout=layout, measurement=measurement
    )


def content_of(file: SavedArch) -> dict[str, Any]:
    """The file as plain data."""
    return msgspec.to_builtins(file)


def saved_arch(content: dict[str, Any], name: str, path: str) -> Arch:
    """The architecture that a file holds: it has measured rows and no forward.

    Raises:
        Refused: the file is damaged or of another format.
    """
    file = _read(content, path)
    return arch_of(structs.replace(file.layout, name=name), file.config, path, file.measurement)


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
