"""The fields of a config.json: read once, checked, and those it leaves out filled from transformers' own defaults.

`defaults.jsonl` holds, one model type a line, the defaults and the other spellings of the fields that our tables read,
taken from transformers' configuration classes. Sizes that make the model what it is are never filled in.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, TypeVar, cast

import msgspec

from vramcast.errors import Mistakes, near, refuse
from vramcast.num import Named, Size

SYMBOLS = {
    "hidden_size": "hidden",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "intermediate_size": "ffn",
    "vocab_size": "vocab",
}
"""field → the symbol that a formula shows; any other field is its own"""
REQUIRED = frozenset("hidden_size num_hidden_layers num_attention_heads intermediate_size vocab_size".split())
_LARGEST = 1 << 40
_REPEATED = re.compile(r"(layers|n_layer|heads|n_head|depth|depths|blocks)$")
_MOST = 1 << 10
"""of what a model repeats: the deepest has a few hundred layers, and each is looked at by itself"""
_T = TypeVar("_T")


def class_names(config: Mapping[str, Any], source: str) -> list[str]:
    """The classes that a config names.

    Raises:
        Refused: `architectures` is no list of names.
    """
    named = config.get("architectures")
    if named is None:
        return []
    found = cast("list[Any]", named) if isinstance(named, list) else []
    if found is not named or not all(isinstance(one, str) for one in found):
        raise refuse(f"architectures must be a list of names, not {named!r}", **{"from": source})
    return found


def most(name: str) -> int:
    """The largest number that a field may hold."""
    return _MOST if _REPEATED.search(name) else _LARGEST


class TypeDefaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What transformers says about a model type: defaults of the fields we read, by section, and other spellings."""

    type: str
    version: str = ""
    defaults: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict[str, dict[str, Any]])
    """section ("" or text_config …) → field → value"""
    aliases: dict[str, dict[str, str]] = msgspec.field(default_factory=dict[str, dict[str, str]])
    fields: dict[str, list[str]] = msgspec.field(default_factory=dict[str, list[str]])
    """section → every field that the type's table reads for one model or another"""


@cache
def _lines() -> bytes:
    with open(os.path.join(os.path.dirname(__file__), "defaults.jsonl"), "rb") as file:
        return file.read()


@cache
def type_defaults(model_type: str) -> TypeDefaults:
    """The row of a model type; an empty one for a type that transformers does not have."""
    found = re.search(rb'^\{"type":"' + re.escape(model_type.encode()) + rb'",.*$', _lines(), re.MULTILINE)
    return msgspec.json.decode(found[0], type=TypeDefaults) if found else TypeDefaults(model_type)


def wrong_count(name: str, value: Any, least: int = 1) -> str:
    """What is wrong with a number of a config.json."""
    if value is None:
        return "is missing"
    if isinstance(value, int) and value > most(name):
        return f"must be at most {most(name):,}, not {value}"
    return f"must be a whole number {'above 0' if least == 1 else f'of at least {least}'}, not {value!r}"


class Fields:
    """One section of a config. Every field that a table asks for is noted in `read`. With `names`, sizes carry their
    symbols, and so does every shape that is made of them."""

    def __init__(
        self,
        config: Mapping[str, Any],
        source: str,
        known: TypeDefaults,
        place: str = "",
        section: str = "",
        parent: Fields | None = None,
        *,
        names: bool = False,
    ) -> None:
        self.names = names if parent is None else parent.names
        self.config = config
        self.source = source
        self.known = known
        self.place = place
        """the section of `known` that holds the defaults"""
        self.section = section
        """where in the file"""
        self.defaults = known.defaults.get(place, {})
        self.aliases = known.aliases.get(place, {})
        self.read: set[str] = set()
        self.known_as: dict[str, list[str]] = {}
        self.said: dict[str, Any] = {}
        """what `given` found: layers ask for the same fields again and again"""
        self.memo: dict[str, Any] = {}
        """what was computed of the fields"""
        self.assumed: dict[str, Any] = {} if parent is None else parent.assumed
        self.mistakes: Mistakes = Mistakes() if parent is None else parent.mistakes
        self.sections: dict[str, Fields] = {}

    def path(self, name: str) -> str:
        return f"{self.section}.{name}" if self.section else name

    def wrong(self, fact: str, **context: str) -> None:
        """Note a mistake, with the file, once."""
        if all(known.fact != fact for known in self.mistakes.found):
            self.mistakes.add(fact, **{"from": self.source, **context})

    def given(self, name: str) -> Any:
        """What the config says under any spelling; None if nothing."""
        if name not in self.said:
            self.said[name] = self._look_up(name)
        return self.said[name]

    def _look_up(self, name: str) -> Any:
        spellings = self.spellings(name)
        self.read.update(spellings)
        said = {one: self.config[one] for one in spellings if self.config.get(one) is not None}
        if len(said) > 1 and len({str(value) for value in said.values()}) > 1:
            self.wrong(" and ".join(f"{self.path(one)} = {value}" for one, value in said.items()) + " mean the same")
        return next(iter(said.values()), None)

    def spellings(self, name: str) -> list[str]:
        if name not in self.known_as:
            others = [self.aliases.get(name, ""), *(other for other, real in self.aliases.items() if real == name)]
            self.known_as[name] = [name, *(other for other in others if other)]
        return self.known_as[name]

    def cleared(self, name: str) -> bool:
        """The config says null: the field is there and empty, so no default stands for it."""
        return any(one in self.config for one in self.spellings(name))

    def get(self, name: str) -> Any:
        """The value, or transformers' default (noted as an assumption), or None."""
        value = self.given(name)
        if value is None and not self.cleared(name):
            value = self.defaults.get(name, self.defaults.get(self.aliases.get(name, "")))
            if value is not None:
                self.assumed[self.path(name)] = value
        return value

    def count(self, name: str, otherwise: Size | None = None, least: int = 1) -> Size:
        """A whole number of at least `least`; `otherwise` stands for a field that is allowed to be missing."""
        required = name in REQUIRED and not self.section
        value = self.given(name) if required else self.get(name)
        if value is None and otherwise is not None:
            return otherwise
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most(name):
            self.wrong(f"{self.path(name)} {wrong_count(name, value, least)}")
            return max(least, 1)
        return self.named(name, value)

    def named(self, name: str, value: Size) -> Size:
        """A size of that name, where sizes carry symbols."""
        return Named(int(value), SYMBOLS.get(name, name)) if self.names else value

    def flag(self, name: str | bool) -> bool:
        """True or false; a bool stands for itself, so that a table can hold either."""
        return name if isinstance(name, bool) else bool(self.get(name))

    def word(self, name: str, otherwise: str) -> str:
        """A word, such as an activation's name; `otherwise` where neither the config nor its type says one."""
        return str(self.get(name) or otherwise)

    def choice(self, name: str, known: Iterable[str]) -> str:
        """One of `known` words."""
        value, words = str(self.get(name)), list(known)
        if value not in words:
            self.wrong(f"{self.path(name)} = {value!r} is not known", near=near(value, words), allowed=", ".join(words))
            return words[0]
        return value

    def items(self, name: str, length: int) -> list[Any] | None:
        """A list with one entry a layer; None if the config has none."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, str):
            value = list(value)
        entries = cast("list[Any]", value) if isinstance(value, list) else []
        if not isinstance(value, list) or len(entries) < length:
            what = f"{len(entries)} entries" if isinstance(value, list) else repr(value)
            self.wrong(f"{self.path(name)} has {what} for {length} layers")
            return None
        return entries

    def numbers(self, name: str, length: int) -> list[int]:
        """A list of at least `length` whole numbers above 0."""
        found = _entries(self.get(name))
        if len(found) < length or not _whole(found):
            self.wrong(f"{self.path(name)} must be {length} whole numbers above 0, not {self.get(name)!r}")
            return [1] * length
        return found

    def pairs(self, name: str, length: int) -> list[list[int]]:
        """A list of at least `length` pairs of whole numbers above 0."""
        found = [_entries(one) for one in _entries(self.get(name))]
        if len(found) < length or not all(len(one) == 2 and _whole(one) for one in found):
            self.wrong(f"{self.path(name)} must be {length} pairs of whole numbers above 0, not {self.get(name)!r}")
            return [[1, 1]] * length
        return found

    def words(self, name: str, length: int, known: Iterable[str]) -> list[str] | None:
        """A list with a word for each layer; None if the config has none."""
        entries, words = self.items(name, length), list(known)
        for entry in dict.fromkeys(map(str, entries or ())):
            if entry not in words:
                self.wrong(f"{self.path(name)} has {entry!r}, which is not known", allowed=", ".join(words))
        return entries

    def indices(self, name: str) -> set[int]:
        """A list of layer numbers."""
        value = self.get(name)
        return {one for one in cast("list[Any]", value) if isinstance(one, int)} if isinstance(value, list) else set()

    def sub(self, name: str, model_type: str = "") -> Fields:
        """A nested section; an empty one where the config has none. `model_type`: whose configuration it is."""
        if name not in self.sections:
            value = self.given(name)
            if value is not None and not isinstance(value, dict):
                self.wrong(f"{self.path(name)} must be an object, not {value!r}")
            config: Mapping[str, Any] = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
            known = type_defaults(model_type) if model_type else self.known
            place = "" if model_type else f"{self.place}.{name}".strip(".")
            self.sections[name] = Fields(config, self.source, known, place, self.path(name), self)
        return self.sections[name]

    def flat(self, name: str) -> Fields:
        """A nested section, or this one where the config spells it flat."""
        if self.given(name) is not None:
            return self.sub(name)
        return self.sections.setdefault(
            name, Fields(self.config, self.source, self.known, f"{self.place}.{name}".strip("."), self.section, self)
        )

    def divides(self, small: str, by: Size, large: str, whole_size: Size) -> None:
        """`small` = by must divide `large` = whole_size."""
        if whole_size % by:
            self.wrong(f"{self.path(small)} = {by} does not divide {self.path(large)} = {whole_size}")


def _entries(value: object) -> list[Any]:
    """A JSON list; an empty one for anything else."""
    return list(cast("list[Any]", value)) if isinstance(value, (list, tuple)) else []


def _whole(entries: list[Any]) -> bool:
    return all(isinstance(one, int) and 0 < one < _LARGEST for one in entries)
