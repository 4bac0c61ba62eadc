"""A Hugging Face `config.json` → a `Layout`: exact parameters, by block and by module, of every known model type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

from msgspec import structs

from vramcast.models.fields import Fields, class_names, type_defaults
from vramcast.models.layout import Blocks, Ends, Layout
from vramcast.models.neutral import is_neutral
from vramcast.models.types import Unknown, family_of, row_of, unknown_type

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def build_layout(name: str, config: dict[str, Any], source: str, *, names: bool = False) -> Layout:
    """The blocks that `config` describes. With `names`, sizes carry the symbols that formulas show.

    Raises:
        Unknown: no table has this model type, or a field of it; `source` says which file.
        Refused: missing or contradictory fields.
    """
    model_type = str(config.get("model_type") or "")
    if model_type not in family_of():
        raise unknown_type(model_type, source)
    classes = class_names(config, source)
    fields = Fields(config, source, type_defaults(model_type), names=names)
    row = row_of(model_type)
    blocks = tuple(_without_head(row.blocks(fields)) if _headless(classes) else row.blocks(fields))
    written = all(block.forward for block in blocks if block.name.startswith("decoder"))
    ends = row.ends(fields) if written else Ends()
    _refuse_empty(fields, blocks)
    fields.mistakes.done()
    _refuse_unknown(fields, model_type)
    version = f"transformers {fields.known.version} default"
    return Layout(
        name=name,
        model_type=model_type,
        blocks=blocks,
        tied=not any(weight.name.endswith("weight") for one in blocks if one.name == "head" for weight in one.weights),
        dtype=checkpoint_dtype(config),
        ends=ends,
        assumed=tuple((path, str(value), version) for path, value in sorted(fields.assumed.items())),
    )


def _headless(classes: list[str]) -> bool:
    """The checkpoint is the model without its head (an embedding model)."""
    first = (classes or [""])[0]
    return first.endswith("Model") and not first.endswith("HeadModel")


def _without_head(blocks: Iterable[Blocks]) -> Iterator[Blocks]:
    """The base class's blocks: its tensors have no `model.` before their names."""
    for block in blocks:
        if block.name != "head":
            yield structs.replace(block, prefix=block.prefix.removeprefix("model").removeprefix("."))


def _refuse_empty(fields: Fields, blocks: Iterable[Blocks]) -> None:
    """Refuse sizes that are fields by themselves and together leave nothing."""
    for block in blocks:
        for weight in block.weights:
            if weight.elements < 1:
                shape = " × ".join(map(str, weight.shape))
                fields.wrong(f"the config leaves {block.prefix}.{weight.name} no elements: {shape}")


def _refuse_unknown(fields: Fields, model_type: str) -> None:
    """Refuse fields that nobody read and that are not known to leave the size alone."""
    read: dict[int, set[str]] = {}
    sections = list(_sections(fields))
    for section in sections:
        known = section.known.fields.get(section.place, ())
        read.setdefault(id(section.config), set()).update(section.read, known)
    before = len(fields.mistakes.found)
    for section in sections:
        for key, value in section.config.items():
            if key not in read[id(section.config)] and value is not None and not is_neutral(model_type, key, value):
                fields.wrong(
                    f"model type {model_type} is not known with the field {section.path(key)} = {_short(value)}",
                    help="it may change the model's size: see CONTRIBUTING.md, or open an issue with the config.json",
                )
    if len(fields.mistakes.found) > before:
        raise Unknown(fields.mistakes.found)


def _sections(fields: Fields) -> Iterator[Fields]:
    yield fields
    for section in fields.sections.values():
        yield from _sections(section)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def checkpoint_dtype(config: dict[str, Any]) -> str:
    """The checkpoint's dtype: of the model, else of its language model."""
    nested = config.get("text_config")
    places = [config, cast("dict[str, Any]", nested)] if isinstance(nested, dict) else [config]
    given = (DTYPES.get(str(place.get(key))) for place in places for key in ("torch_dtype", "dtype"))
    return next((found for found in given if found), "bf16")
