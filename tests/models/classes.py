"""Our tensors beside those of transformers' classes, built on the meta device: names and shapes, one by one.

`PYTHONPATH=src python -m tests.models.classes` prints the figures (it needs the extra `trace`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from vramcast.catalog.models import ModelRow, model_config, model_names
from vramcast.errors import Refused
from vramcast.models.describe import build_layout

Tensors = dict[str, tuple[int, ...]]


class Compared(NamedTuple):
    """`differ`: names that one side lacks or has in another shape; None if transformers has no such class."""

    model: str
    model_type: str
    class_name: str
    tensors: int
    differ: list[str] | None
    why: str = ""


def smallest_of_each_type() -> list[ModelRow]:
    """The smallest model of every type of the catalogue."""
    found: dict[str, ModelRow] = {}
    for name in model_names():
        row = model_config(name)
        kept = found.get(row.config["model_type"])
        if kept is None or (row.params or 0) < (kept.params or 0):
            found[row.config["model_type"]] = row
    return list(found.values())


def theirs(config: dict[str, Any]) -> tuple[str, Tensors]:
    """The class that transformers builds for a config, and its parameters.

    Raises:
        LookupError: transformers has no class for this type.
    """
    import torch
    import transformers
    from transformers.models.auto import modeling_auto

    if config["model_type"] not in transformers.CONFIG_MAPPING:
        raise LookupError(f"no class for {config['model_type']}")
    settings = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(dict(config))
    built: Any = getattr(transformers, (config.get("architectures") or [""])[0], None)
    mappings = ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING", "MODEL_FOR_CAUSAL_LM_MAPPING")
    for mapping in (getattr(modeling_auto, name) for name in mappings):
        if built is None and type(settings) in mapping:
            built = mapping[type(settings)]
    with torch.device("meta"):
        model = built(settings)
    return built.__name__, {name: tuple(weight.shape) for name, weight in model.named_parameters()}


def compare(row: ModelRow) -> Compared:
    """One model, both ways."""
    model_type = row.config["model_type"]
    try:
        class_name, reference = theirs(row.config)
    except (LookupError, ImportError, TypeError) as error:
        return Compared(row.id, model_type, "", 0, None, str(error).strip().partition("\n")[0])
    try:
        ours = build_layout(row.id, row.config, row.where).tensors()
    except Refused as refused:
        return Compared(row.id, model_type, class_name, len(reference), None, str(refused).partition("\n")[0])
    differ = sorted(name for name in ours.keys() | reference.keys() if ours.get(name) != reference.get(name))
    return Compared(row.id, model_type, class_name, len(reference), differ)


def main() -> None:
    """Print the figures."""
    found = [compare(row) for row in smallest_of_each_type()]
    built = [one for one in found if one.differ is not None]
    for one in found:
        if one.differ is None:
            print(f"not compared: {one.model_type}: {one.why}")
        elif one.differ:
            print(f"differs: {one.model_type} ({one.model}): {len(one.differ)}, first {one.differ[0]}")
    classes = {one.class_name for one in built}
    print(f"{len(built)} types, {len(classes)} classes, {sum(one.tensors for one in built):,} tensors,"
          f" {sum(bool(one.differ) for one in built)} differ")  # fmt: skip


if __name__ == "__main__":
    main()
