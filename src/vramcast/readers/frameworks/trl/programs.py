"""What the name of a training script tells: TRL's own, another algorithm's, or nothing.

Read in TRL 0.12 to 1.16 (`trl/scripts`, `examples/scripts`) and in the launch scripts of other frameworks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_TRAINERS = ("sft", "dpo", "kto", "reward", "grpo", "rloo")
_OWN = re.compile(r"trl\.scripts\.(?P<module>\w+)|(?:.*/)?trl/scripts/(?P<script>\w+)\.py|trl (?P<command>\S+)")
_OTHERS = {
    "gold": "GOLD, which distils a teacher",
    "gkd": "GKD, which distils a teacher",
    "minillm": "MiniLLM, which distils a teacher",
    "distillation": "distillation of a teacher",
    "distill": "distillation of a teacher",
    "sdft": "self-distillation",
    "sdpo": "self-distillation",
    "ssd": "self-distillation",
    "online": "online preference learning with a judge or a reward model",
    "nash": "Nash-MD, with a mixture of models",
    "xpo": "XPO, with a judge or a reward model",
    "ppo": "PPO, with a value and a reward model",
    "prm": "a process reward model",
    "bco": "BCO",
    "cpo": "CPO",
    "orpo": "ORPO",
    "tpo": "TPO",
    "gmpo": "GMPO",
    "papo": "PAPO",
    "bema": "a moving average of the policy",
    "async": "asynchronous training beside an engine",
    "ddpo": "diffusion models",
    "alignprop": "diffusion models",
    "vllm": "vLLM's server",
}
"""Words in the names of TRL's other trainers and scripts, and what they do."""
_HUGGING_FACE = re.compile(r"(?:.*/)?run_clm(?:_\w+)?\.py")
_ROLES = re.compile(r"(?:.*_)?(?:teacher|reward|critic|judge|draft|ref_model|reference_model|student)(?:_.*)?")
_ENOUGH = 3


class Known(NamedTuple):
    """What a script is taken for; `assumed` says why when that is a guess."""

    trainer: str
    """one of TRL's, or `pretrain`"""
    framework: str
    assumed: str = ""


def known(program: str, keys: Iterable[str], arguments: Iterable[str], signed: str) -> Known | str:
    """What the program trains, or why that is not known; `keys` are its options, `arguments` those of them that the
    plain Trainer of transformers, or TRL, has, `signed` the trainer of TRL that alone has one of them."""
    own = _OWN.fullmatch(program)
    if own:
        name = own["module"] or own["script"] or own["command"]
        if name in _TRAINERS:
            return Known(name, "trl")
        return _other([name, *_words(name)]) or f"{program} is none of TRL's trainers: {', '.join(_TRAINERS)}"
    words = _words(program.rpartition("/")[2].removesuffix(".py"))
    folders = _words(program.rpartition("/")[0])
    other = _other(words) or _other(word for word in folders if word in ("gold", "gkd", "minillm", "ppo", "sdft"))
    if other:
        return f"{program} is another trainer: {other}"
    found = trainer_in(program.rpartition("/")[2])
    if found:
        return Known(found, "trl", "" if "examples/scripts/" in program else f"its name says {found}")
    roles = [key for key in keys if _ROLES.fullmatch(key)]
    if roles:
        return f"{program} is not known, and {roles[0]} speaks of a second model"
    if signed:
        return Known(signed, "trl", f"its arguments are those of TRL's {signed}")
    if _HUGGING_FACE.fullmatch(program):
        return Known("pretrain", "transformers")
    if len(set(arguments)) >= _ENOUGH:
        return Known("sft", "transformers", "its arguments are those of a Hugging Face Trainer")
    return f"{program} is not known"


def trainer_in(name: str) -> str:
    """The one trainer of TRL that a file's name speaks of; empty if there is none, or several."""
    found = {word for word in _words(name) if word in _TRAINERS}
    return found.pop() if len(found) == 1 else ""


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"[^a-z0-9]+", text.lower()) if word]


def _other(words: Iterable[str]) -> str:
    return next((_OTHERS[word] for word in words if word in _OTHERS), "")
