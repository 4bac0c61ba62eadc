"""A framework as a row: the keys that it has, what they feed, and what is known of those that feed nothing.

A reader goes through the tables in this order: old names, keys, keys that are not modelled, rules, and what is left.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from vramcast.readers.config import ConfigReader
from vramcast.readers.document import Document
from vramcast.readers.keys import UNSAID, Key
from vramcast.types.job import Understanding
from vramcast.types.paths import Value

if TYPE_CHECKING:
    from vramcast.readers.bash.words import Word
    from vramcast.readers.command import Launch

_ROLE = re.compile(
    r"(?:.*_)?(?:teacher|student|critic|judge|draft|speculative|value_model|reward_model|ref_model|reference_model)(?:_.*)?"
    r"|(?:.*_)?adapter(?:s|_path|_name|_name_or_path)?"
    r"|(?:.*_)?(?:tensor|pipeline|context|sequence|expert|data)_(?:model_)?parallel(?:_.*)?"
    r"|(?:zero_stage|fsdp|deepspeed|megatron|sglang|vllm|engine|quantization|load_in)(?:_.*)?"
    r"|algorithm|trainer(?:_type|_name)?|algo|adv_estimator|tuner_type|finetuning_type|train_type|model"
)
"""Words of keys that choose roles, layout, algorithm, model or engine, whoever's keys these are."""

Write = Callable[[Any], Mapping[str, Any]]
"""The value of one of our paths → keys with values; empty for one that the framework cannot say."""


class Rule(Struct, frozen=True):
    """Keys whose meaning depends on others: what they say, and the way back."""

    apply: Callable[[Any], None]
    feeds: Mapping[str, str]
    """key → the paths that it feeds, with blanks between them"""
    write: Mapping[str, Write] = {}


class Known(Struct, frozen=True):
    """Names of keys that set no path: data, made from the framework's own dataclasses where it has these."""

    renamed: Mapping[str, str] = {}
    """names of older versions, and today's"""
    unmodelled: Mapping[str, tuple[tuple[Any, ...], str]] = {}
    """keys that choose roles, layout, algorithm or engine: (values that choose nothing, what they choose)"""
    small: Mapping[str, tuple[Any, ...]] = {}
    """keys that may change memory a little: unread, unless their value is null, empty or one of these"""
    no_effect: frozenset[str] = frozenset()
    """keys that do not change the memory of a step"""
    more: Mapping[str, Any] = {}
    """what else the framework's file of names says"""


@cache
def known_names(module: str, name: str = "known.json") -> Known:
    """The names in a JSON file beside a module: `renamed`, `unmodelled`, `small`, and `no_effect` as texts by what they
    are about."""
    with open(os.path.join(os.path.dirname(module), name), "rb") as opened:
        content: dict[str, Any] = msgspec.json.decode(opened.read())
    texts: dict[str, str] = content.get("no_effect", {})
    renamed, unmodelled, small = (content.get(table, {}) for table in ("renamed", "unmodelled", "small"))
    return Known(renamed, unmodelled, small, frozenset(" ".join(texts.values()).split()), content)


def choose(table: Mapping[Any, Mapping[str, Any]]) -> Write:
    """The keys of each value that the framework can say."""
    return lambda value: table.get(value, {})


class Framework(Struct, frozen=True):
    """One framework. The fields below `known` are for what the tables alone do not say."""

    name: str
    title: str
    """the name in messages"""
    recognise: Callable[[Document, str], bool]
    """whether a configuration, with the name of its file, is one of this framework"""
    keys: tuple[Key, ...] = ()
    rules: tuple[Rule, ...] = ()
    known: Callable[[], Known] = Known
    first: tuple[Rule, ...] = ()
    """rules that are read before the keys, because they put keys in the place of others"""
    read: Callable[[Document, str, str], Understanding] | None = None
    """the reader of a file: (document, name, folder)"""
    programs: re.Pattern[str] | None = None
    """modules and files that a launcher starts"""
    command: Callable[[Launch, str, Mapping[str, Word], str], Understanding] | None = None
    """the reader of a command, where flags are not keys: (launch, script, environment, folder)"""
    words: Callable[[Mapping[str, Any], str], Understanding] | None = None
    """the reader of keys of `--set`: (keys with values, where they stand)"""
    knows: Callable[[str], bool] | None = None
    depends: Callable[[str], bool] = lambda key: False
    """whether what a key says hangs on others, so that it says nothing alone"""
    omits: Callable[[str, Mapping[str, Value]], bool] = lambda path, edits: False
    """whether an edit is said by another one already"""


def has_key(framework: Framework, key: str) -> bool:
    """Whether the framework has, or had, the key."""
    return framework.knows(key) if framework.knows else key in key_names(framework)


def key_names(framework: Framework) -> set[str]:
    """The keys of the framework's tables."""
    known = framework.known()
    keys = {key.native for key in framework.keys}
    return keys.union(feeds(framework), known.renamed, known.unmodelled, known.small, known.no_effect)


def _is_strange(framework: Framework, key: str) -> bool:
    return bool(_ROLE.fullmatch(key)) and not has_key(framework, key)


def feeds(framework: Framework) -> dict[str, str]:
    """The keys of the rules, with the paths that they feed."""
    return {key: paths for rule in (*framework.first, *framework.rules) for key, paths in rule.feeds.items()}


def read_document(framework: Framework, document: Document, name: str, folder: str = "") -> Understanding:
    """The facts of a configuration; `name` is the file in origins, `folder` where files that it names may stand.

    Raises:
        Refused: with every wrong value, and every key that chooses what is not modelled.
    """
    if framework.read:
        return framework.read(document, name, folder)
    return read_tables(framework, ConfigReader(document, name, folder))


def read_tables(framework: Framework, config: ConfigReader) -> Understanding:
    """What a framework's tables make of a configuration."""
    known = framework.known()
    for rule in framework.first:
        rule.apply(config)
    for old, key in known.renamed.items():
        config.rename(old, key)
    table = {key.native: key for key in framework.keys}
    for name, value in list(config.content.items()):
        if name in table and value is not None:
            config.key(table[name], value)
        elif name in known.unmodelled and name not in config.settled:
            harmless, what = known.unmodelled[name]
            if value is None or value in ("", [], {}) or value in harmless:
                config.rest(name, "it chooses nothing")
            else:
                config.refuse(name, what)
        elif name in known.small and (value is None or value in known.small[name]):
            config.rest(name, "the default")
        elif name not in config.settled and value not in (None, "", [], {}) and _is_strange(framework, name):
            what = f"no key of {framework.title}, and its name says that it chooses a model, a role or a layout"
            config.refuse(name, what)
    for rule in framework.rules:
        rule.apply(config)
    config.settle(known.no_effect)
    return config.understanding()


def read_words(framework: Framework, words: Mapping[str, Any], where: str) -> Understanding:
    """What keys of `--set` or of a job file say by themselves.

    Raises:
        Refused: with every wrong value, and every key that is not modelled.
    """
    if framework.words:
        return framework.words(words, where)
    return read_document(framework, Document(dict(typed(words)), {}), where)


def typed(words: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Values of the command line as a YAML file would have them."""
    from vramcast.readers.hydra import parse_value

    for key, raw in words.items():
        yield key, parse_value(raw) if isinstance(raw, str) else raw


def writes(framework: Framework) -> dict[str, Write]:
    """The way back of each path: that of the first key that sets it, or of a rule."""
    plain = {key.path: _back(key) for key in reversed(framework.keys)}
    return plain | {path: write for rule in framework.rules for path, write in rule.write.items()}


def _back(key: Key) -> Write:
    def write(value: Any) -> Mapping[str, Any]:
        native = key.codec.write(value)
        return {} if native is UNSAID else {key.native: native}

    return write


def write_keys(framework: Framework, edits: Mapping[str, Value]) -> dict[str, Value]:
    """Edits (path → value) as one mapping of the framework's keys; what it cannot say is left out."""
    back = writes(framework)
    merged: dict[str, Any] = {}
    for path, value in edits.items():
        for key, native in back[path](value).items() if path in back and not framework.omits(path, edits) else ():
            both = isinstance(native, dict) and isinstance(merged.get(key), dict)
            merged[key] = {**merged[key], **native} if both else native
    return merged
