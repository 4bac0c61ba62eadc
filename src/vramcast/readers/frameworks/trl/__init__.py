"""TRL: flat YAML (`trl sft --config x.yaml`, dpo, grpo ...), its command lines, and the scripts around it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vramcast.readers.document import Document
from vramcast.readers.framework import Framework, key_names
from vramcast.readers.frameworks.trl.keys import KEYS, known
from vramcast.readers.frameworks.trl.rules import FIRST, RULES
from vramcast.types.job import Understanding

if TYPE_CHECKING:
    from vramcast.readers.bash.words import Word
    from vramcast.readers.command import Launch

_SHARED = frozenset(
    "seed output_dir logging_dir logging_steps save_steps eval_steps max_steps learning_rate weight_decay beta "
    "temperature top_p top_k debug env loss_type num_generations warmup_ratio warmup_steps resume_from_checkpoint "
    "dataset dtype bf16 report_to project run_name gradient_checkpointing use_vllm epsilon model_max_length "
    "deepspeed".split()
)
"""Keys of TRL that configurations of others have too."""
_DISTINCT = 3
"""So many keys of TRL alone, beside a majority that nobody knows, are a file for a script around TRL."""


def own_keys(content: Mapping[str, Any]) -> list[str]:
    """The keys that TRL has, and those that it hands on to `accelerate launch`."""
    from vramcast.readers.launchers import is_launcher_option

    names = key_names(FRAMEWORK)
    return [key for key in content if key in names or is_launcher_option(key)]


def _recognise(document: Document, name: str) -> bool:
    """Half of the keys are TRL's, or one names the model as TRL does, or there are several that no other format has."""
    keys = own_keys(document.content)
    if "model_name_or_path" in keys:
        return True
    return 2 * len(keys) >= len(document.content) or sum(key not in _SHARED for key in keys) >= _DISTINCT


def _read(document: Document, name: str, folder: str) -> Understanding:
    from vramcast.readers.frameworks.trl.reader import read_trl

    return read_trl(document, name, folder)


def _read_words(words: Mapping[str, Any], where: str) -> Understanding:
    from vramcast.readers.frameworks.trl.reader import read_words

    return read_words(words, where)


def _read_command(launch: Launch, name: str, environment: Mapping[str, Word], folder: str) -> Understanding:
    from vramcast.readers.frameworks.trl.command import read_trl_command

    return read_trl_command(launch, name, folder)


FRAMEWORK = Framework(
    "trl",
    "TRL",
    _recognise,
    KEYS,
    RULES,
    known,
    FIRST,
    read=_read,
    programs=re.compile(r"trl\.scripts\.\w+|(?:.*/)?trl/scripts/\w+\.py|(?:.*/)?(?:sft|dpo|kto|reward|grpo|rloo)\.py"),
    command=_read_command,
    words=_read_words,
    depends=lambda key: key in ("beta", "generation_batch_size", "steps_per_generation"),
    # `optim` holds both, and only AdamW has a choice
    omits=lambda path, edits: path == "optimizer.impl" and edits.get("optimizer", "adamw") != "adamw",
)
