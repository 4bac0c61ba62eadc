"""verl: hydra overrides of a launch script or of a list, or a nested YAML, with the FSDP backend."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vramcast.readers.document import Document
from vramcast.readers.framework import Framework
from vramcast.readers.frameworks.verl import rules
from vramcast.readers.frameworks.verl.defaults import has_key
from vramcast.readers.frameworks.verl.keys import CRITIC, KEYS, OWN, known, ruled
from vramcast.types.job import Understanding

if TYPE_CHECKING:
    from vramcast.readers.bash.words import Word
    from vramcast.readers.command import Launch

_SECTIONS = frozenset("actor_rollout_ref data algorithm trainer critic reward_model reward".split())


def _read(document: Document, name: str, folder: str) -> Understanding:
    from vramcast.readers.frameworks.verl.reader import read_verl_yaml

    return read_verl_yaml(document, name)


def _read_command(launch: Launch, name: str, environment: Mapping[str, Word], folder: str) -> Understanding:
    from vramcast.readers.frameworks.verl.reader import read_verl

    return read_verl(launch.arguments, name, environment)


def _read_words(words: Mapping[str, Any], where: str) -> Understanding:
    from vramcast.readers.bash.words import Word
    from vramcast.readers.frameworks.verl.reader import read_verl

    return read_verl([Word(f"{key}={raw}", 0) for key, raw in words.items()], where)


def _knows(key: str) -> bool:
    return "." in key and (key in OWN or key in ruled() or has_key(key))


def _recognise(document: Document, name: str) -> bool:
    return "actor_rollout_ref" in document.content or len(_SECTIONS & set(document.content)) > 1


FRAMEWORK = Framework(
    "verl",
    "verl",
    _recognise,
    (*KEYS, *CRITIC),
    rules.RULES,
    known,
    read=_read,
    programs=re.compile(
        r"verl\.trainer\.main_ppo(?:_v0)?|(?:verl\.)?recipe\.dapo(?:_transfer_queue)?\.main_dapo"
        r"|(?:.*/)?main_(?:ppo|dapo)\.py"
    ),
    command=_read_command,
    words=_read_words,
    knows=_knows,
    depends=lambda key: key in ruled() and not key.endswith("_micro_batch_size_per_gpu"),
)
