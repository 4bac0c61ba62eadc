"""Which trainer of TRL reads a file or runs in a script, and the version that its keys leave.

Read in TRL 0.12 to 1.16, every minor version (`trl/scripts`, `examples/scripts`, the fields of its configs), and in the
launch scripts of other frameworks. A deprecated key that is no longer obeyed counts as gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from vramcast.catalog.frameworks import parse_framework
from vramcast.readers.frameworks.trl.keys import known

TRAINERS = ("sft", "dpo", "kto", "reward", "grpo", "rloo")
_LOSSES = {
    "dpo": "sigmoid sigmoid_norm hinge ipo exo_pair nca_pair robust bco_pair sppo_hard aot aot_unpaired apo_zero "
    "apo_down discopop",
    "sft": "nll chunked_nll dft",
}
_OWN = re.compile(r"trl\.scripts\.(?P<module>\w+)|(?:.*/)?trl/scripts/(?P<script>\w+)\.py|trl (?P<command>\S+)")
_HUGGING_FACE = re.compile(r"(?:.*/)?run_clm(?:_\w+)?\.py")
_ROLES = re.compile(r"(?:.*_)?(?:teacher|reward|critic|judge|draft|ref_model|reference_model|student)(?:_.*)?")
_ENOUGH = 3


class Script(NamedTuple):
    """What a script is taken for; `assumed` says why when that is a guess."""

    trainer: str
    """one of TRL's, or `pretrain`"""
    framework: str
    assumed: str = ""


class Priced(NamedTuple):
    """The version that a file's keys leave, and the text that says why."""

    version: str
    why: str
    contradiction: str = ""


def trainer_of(keys: Iterable[str]) -> tuple[str, str]:
    """(the trainer that alone has one of the keys, that key), both empty when none tells.

    `beta` and `max_prompt_length` count for DPO where nothing tells GRPO.
    """
    keys = list(keys)
    for kind, text in known().more["signs"].items():
        signs = text.split()
        for key in keys:
            if key in signs or (kind == "grpo" and key.startswith("vllm_")):
                return kind, key
    return "", ""


def trainer_of_losses(losses: Any) -> str:
    """The trainer that has the loss; several at once are DPO's."""
    if isinstance(losses, list):
        return "dpo"
    return next((kind for kind, names in _LOSSES.items() if str(losses) in names.split()), "")


def trainer_in(name: str) -> str:
    """The one trainer of TRL that a file's name speaks of; empty if there is none, or several."""
    found = {word for word in _words(name) if word in TRAINERS}
    return found.pop() if len(found) == 1 else ""


def script(program: str, keys: Iterable[str], arguments: Iterable[str], signed: str) -> Script | str:
    """What the program trains, or why that is not known; `keys` are its options, `arguments` those of them that the
    plain Trainer of transformers, or TRL, has, `signed` the trainer of TRL that alone has one of them."""
    own = _OWN.fullmatch(program)
    if own:
        name = own["module"] or own["script"] or own["command"]
        if name in TRAINERS:
            return Script(name, "trl")
        return _other([name, *_words(name)]) or f"{program} is none of TRL's trainers: {', '.join(TRAINERS)}"
    folder, _, file = program.rpartition("/")
    other = _other(_words(file.removesuffix(".py")))
    other = other or _other(word for word in _words(folder) if word in ("gold", "gkd", "minillm", "ppo", "sdft"))
    if other:
        return f"{program} is another trainer: {other}"
    if found := trainer_in(file):
        return Script(found, "trl", "" if "examples/scripts/" in program else f"its name says {found}")
    if roles := [key for key in keys if _ROLES.fullmatch(key)]:
        return f"{program} is not known, and {roles[0]} speaks of a second model"
    if signed:
        return Script(signed, "trl", f"its arguments are those of TRL's {signed}")
    if _HUGGING_FACE.fullmatch(program):
        return Script("pretrain", "transformers")
    if len(set(arguments)) >= _ENOUGH:
        return Script("sft", "transformers", "its arguments are those of a Hugging Face Trainer")
    return f"{program} is not known"


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", text.lower()) if word]


def _other(words: Iterable[str]) -> str:
    others = known().more["other_trainers"]
    return next((others[word] for word in words if word in others), "")


def version_of(keys: Iterable[str], trainer: str, framework: str = "trl") -> Priced:
    """The newest version that obeys every one of `keys` in this trainer's file."""
    keys = list(keys)
    newest = parse_framework(framework).version
    if framework == "transformers":
        gone = next((key for key in keys if key in known().more["transformers_4"].split()), "")
        return Priced("4.57.0", f"{gone} was read up to transformers 4") if gone else Priced(newest, "")
    last, first = ({key: found for key in keys if (found := bounds.get(key))} for bounds in _bounds(trainer))
    if not last:
        return Priced(newest, "")
    ends = min(last, key=lambda key: _order(last[key]))
    text = f"{ends} was read up to trl {last[ends]}"
    late = [key for key in first if _order(first[key]) > _order(last[ends])]
    if late:
        begins = max(late, key=lambda key: _order(first[key]))
        return Priced(newest, "", f"{text}, and {begins} is read since {first[begins]}: no version reads both")
    return Priced(f"{last[ends]}.0", text)


def _bounds(trainer: str) -> list[dict[str, str]]:
    """The last version that obeys each key in a trainer's file, and the first; "" stands for every trainer."""
    return [
        {key: at for kind in ("", trainer) for at, keys in table.get(kind, {}).items() for key in keys.split()}
        for table in (known().more["last"], known().more["first"])
    ]


def _order(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
