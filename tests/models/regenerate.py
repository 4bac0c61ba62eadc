"""Writes `src/vramcast/models/defaults.jsonl` from the installed transformers.

Run it by hand (`PYTHONPATH=src python tests/models/regenerate.py`, with the extra `trace`) after a table reads a new
field: for every model type of the tables, the default of each field that the tables read, and its other spelling.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from vramcast.catalog.models import model_config, model_names
from vramcast.errors import Refused
from vramcast.models import describe, fields

SOURCE = Path(fields.__file__).parent
Read = dict[str, dict[str, set[str]]]


def fields_read() -> Read:
    """type → section → the fields that its table asks for, over the catalogue."""
    found: Read = defaultdict(lambda: defaultdict(set))
    made: list[fields.Fields] = []
    plain = fields.Fields.__init__

    def noted(self: fields.Fields, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        made.append(self)

    fields.Fields.__init__ = noted  # type: ignore[method-assign]
    for name in model_names():
        row = model_config(name)
        made.clear()
        try:
            describe.build_layout(name, row.config, name)
        except Refused as refused:
            print(name, refused, file=sys.stderr)
        for section in made:
            found[section.known.type][section.place] |= section.read
    return found


def defaults_of(config_class: Any, wanted: set[str]) -> dict[str, Any]:
    """The defaults of a configuration class, before it computes anything from them."""
    names = {config_class.attribute_map.get(name, name) for name in wanted}
    found: dict[str, Any] = {}
    for field in dataclasses.fields(config_class):
        value = field.default
        if value is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        if field.name in names and isinstance(value, (bool, int, float, str, list, tuple)) and value != []:
            found[field.name] = value
    return found


def main() -> None:
    """Write the file, one type a line."""
    from transformers import CONFIG_MAPPING, __version__

    lines: list[str] = []
    for model_type, sections in sorted(fields_read().items()):
        row: dict[str, Any] = {"type": model_type, "version": __version__, "defaults": {}, "aliases": {}, "fields": {}}
        for section, wanted in sorted(sections.items()):
            row["fields"][section] = sorted(wanted)
            if model_type not in CONFIG_MAPPING:
                row["version"] = ""
                continue
            config_class: Any = CONFIG_MAPPING[model_type]
            for part in section.split(".") if section else ():
                config_class = getattr(config_class, "sub_configs", {}).get(part)
            if config_class is None or not dataclasses.is_dataclass(config_class):
                continue
            values = defaults_of(config_class, wanted)
            other = {name: real for name, real in config_class.attribute_map.items() if {name, real} & wanted}
            if values:
                row["defaults"][section] = values
            if other:
                row["aliases"][section] = other
        lines.append(json.dumps(row, separators=(",", ":")))
    (SOURCE / "defaults.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
