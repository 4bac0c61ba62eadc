"""Models: a row of the catalogue by its name, or a config.json that the user has.

`models.jsonl` holds one model a line and each line begins with its id, so that one model is found without parsing the
others.
"""

from __future__ import annotations

import os
import re
from functools import cache
from typing import Any, cast

import msgspec

from vramcast.catalog.hub import cached_config
from vramcast.catalog.userfile import read_bytes, read_json
from vramcast.errors import near, refuse

_START = b'{"id":"'
SAVED = "vramcast_arch"
"""the field of a traced model's file that says its format"""
_HELP = "--hub fetches a Hub id; or give the path of its config.json; `vramcast list models` shows the catalogue"


class ModelRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model: `config` in the fields of its Hugging Face config.json."""

    id: str
    params: int | None
    """Exact number of parameters, of the catalogue; None where nobody could count, and for a user's file."""
    config: dict[str, Any]
    source: str
    published: int | None = None
    """The number that the checkpoint's publisher gives."""
    reason: str = ""
    """Why published and exact differ."""
    measured: dict[str, Any] = {}
    """A file of `vramcast trace --save-arch`, whose config this is."""
    assumed: str = ""
    """why this row stands for another name; empty where it was named itself"""

    @property
    def catalogued(self) -> bool:
        """A row of the catalogue, not a user's file."""
        return self.source == f"{self.id} config.json"

    @property
    def where(self) -> str:
        """What to name in a message about the config: its file, or the row of the catalogue."""
        return self.id if self.catalogued else self.source


@cache
def _catalogue() -> bytes:
    with open(os.path.join(os.path.dirname(__file__), "models.jsonl"), "rb") as file:
        return file.read()


@cache
def _index(content: bytes) -> dict[str, bytes]:
    """id → its line, unparsed."""
    start = len(_START)
    lines = (line for line in content.split(b"\n") if line.startswith(_START))
    return {line[start : line.index(b'"', start)].decode(): line for line in lines}


def model_names() -> tuple[str, ...]:
    """The ids of the catalogue, in the order of the file."""
    return tuple(_index(_catalogue()))


def model_config(name: str) -> ModelRow:
    """The model meant by a catalogue id, by the part of it after `/` (any case), or by a path.

    A path is a config.json or a folder that holds one; it wins over a catalogue name, as it does in transformers. A Hub
    id that is not in the catalogue is looked up in this machine's Hugging Face cache. What is found nowhere else may be
    a name whose last part is in the catalogue, or a sibling (Instruct, Chat, Base) of a model there: `assumed` says so.

    Raises:
        Refused: unknown, ambiguous, or a file that is no model configuration.
    """
    if name and os.path.isfile(os.path.join(name, "config.json")):
        return _from_file(os.path.join(name, "config.json"), name)
    if os.path.isfile(name) or name.endswith(".json"):
        return _from_file(name, name)
    lines = _lines(name)
    if len(lines) > 1:
        ids = list(_index(b"\n".join(lines)))
        raise refuse(f"model {name!r} is ambiguous", **{"one of": ", ".join(ids)})
    if lines:
        return msgspec.json.decode(lines[0], type=ModelRow)
    if os.path.isdir(name):
        raise refuse(f"{name} holds no config.json")
    if path := cached_config(name):
        return _from_file(path, name)
    if row := _stands_for(name):
        return row
    raise refuse(f"unknown model {name!r}", near=_near(name), help=_HELP)


def _lines(name: str) -> list[bytes]:
    """The lines of the catalogue whose id is `name`, or ends with it after a `/`; in any case."""
    asked, index = name.strip().lower(), _index(_catalogue())
    if name in index:
        return [index[name]]
    whole = [line for known, line in index.items() if known.lower() == asked]
    return whole or [line for known, line in index.items() if known.lower().partition("/")[2] == asked and asked]


_SNAPSHOT = re.compile(r"models--[\w.-]+?--([\w.-]+)")
_TRAINING = re.compile(r"[-_](?:instruct|chat|base|it|hf|pt)(?=$|[-_])", re.IGNORECASE)
"""how a checkpoint was trained, or written: no size of a tensor hangs on it"""


def _stands_for(name: str) -> ModelRow | None:
    """The model of the catalogue that a path or a foreign id most likely is, with the reason."""
    snapshot = _SNAPSHOT.search(name)
    last = snapshot[1] if snapshot else name.strip().rstrip("/").rpartition("/")[2]
    lines = _lines(last)
    if len(lines) == 1:
        return _assumed(lines[0], f"{name!r} is not known, and its last part names this model")
    bare, owner = _untrained(last), name.partition("/")[0].lower()
    siblings = [known for known in model_names() if _untrained(known.rpartition("/")[2]) == bare and bare]
    if not siblings:
        return None
    nearest = min(siblings, key=lambda known: (known.partition("/")[0].lower() != owner, len(known), known))
    return _assumed(_index(_catalogue())[nearest], f"{name!r} is not known: its sibling with the same sizes")


def _untrained(last: str) -> str:
    return _TRAINING.sub("", last).lower()


def _assumed(line: bytes, why: str) -> ModelRow:
    return msgspec.structs.replace(msgspec.json.decode(line, type=ModelRow), assumed=why)


def _near(name: str) -> str:
    names = model_names()
    return near(name, [*names, *(known.partition("/")[2] for known in names)])


def _from_file(path: str, name: str) -> ModelRow:
    content = read_bytes(path)
    try:
        config = read_json(content)
    except ValueError as error:
        raise refuse(f"{path} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise refuse(f"{path} is not a model's config.json: its top level is not an object")
    return _row(cast("dict[str, Any]", config), name, path)


def _row(content: dict[str, Any], name: str, path: str) -> ModelRow:
    """The model of a file: a config.json, or a traced model that holds one."""
    if SAVED not in content:
        return ModelRow(id=name, params=None, config=content, source=path)
    config = content.get("config")
    if not isinstance(config, dict):
        raise refuse(f"{path} is a damaged file of a traced model: it holds no config")
    return ModelRow(id=name, params=None, config=cast("dict[str, Any]", config), source=path, measured=content)
