"""No traceback for a user's mistake: every field of every type, one at a time, with values that make no sense."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from tests.models.classes import smallest_of_each_type

from vramcast.errors import Mistake, Refused
from vramcast.models.describe import build_layout
from vramcast.models.layout import Layout
from vramcast.models.types import family_of

ROWS = {row.config["model_type"]: row for row in smallest_of_each_type() if row.config["model_type"] in family_of()}
ODD: list[Any] = [None, True, 0, -1, 7, 1.5, "x", "", [], [1], ["x"], [None, {}], {}, {"a": 1}]


def _mutants(config: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(what was changed, the config): each field left out, and replaced by an odd value, another one for every type."""
    for key, value in config.items():
        if key == "model_type":
            continue
        yield f"without {key}", {name: kept for name, kept in config.items() if name != key}
        odd = ODD[zlib.crc32(f"{config.get('model_type')} {key}".encode()) % len(ODD)]
        yield f"{key} = {odd!r}", {**config, key: odd}
        if isinstance(value, dict):
            for what, changed in _mutants(value):
                yield f"{key}: {what}", {**config, key: changed}


COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth")


def _short(config: dict[str, Any]) -> dict[str, Any]:
    """The same with four layers, to be quick."""
    layers = next((config[name] for name in COUNTS if name in config), 0)
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            found[key] = _short(value)
        elif key in COUNTS:
            found[key] = min(4, value)
        elif isinstance(value, (list, str)) and layers > 4 and len(value) >= layers:
            found[key] = value[:4]
        else:
            found[key] = value
    return found


@pytest.mark.parametrize("model_type", ROWS)
def test_nonsense_is_refused_or_understood(model_type: str) -> None:
    for what, config in _mutants(_short(ROWS[model_type].config)):
        layout, mistakes = _built(config, f"{model_type}, {what}")
        assert all(mistake.context.get("from") == "mine/config.json" for mistake in mistakes), what
        if layout is not None:
            assert layout.params >= layout.active_params > 0, what
            assert all(size > 0 for shape in layout.tensors().values() for size in shape), what


def _built(config: dict[str, Any], what: str) -> tuple[Layout | None, list[Mistake]]:
    try:
        return build_layout("mine", config, "mine/config.json"), []
    except Refused as refused:
        return None, refused.mistakes
    except Exception as error:
        pytest.fail(f"{what}: {error!r}")
