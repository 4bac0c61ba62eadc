"""Which reader a configuration is for: told by its keys, since files of all frameworks end alike."""

from __future__ import annotations

from vramcast.errors import Refused, near, refuse
from vramcast.readers.document import Document, formats, parse
from vramcast.readers.foreign import foreign_format
from vramcast.readers.frameworks.deepspeed import is_deepspeed, read_deepspeed
from vramcast.readers.frameworks.trl.keys import known_key
from vramcast.readers.frameworks.trl.reader import read_trl
from vramcast.readers.launchers import is_launcher_option
from vramcast.readers.native import read_native
from vramcast.readers.script import is_script, read_script
from vramcast.types.job import Understanding, flatten
from vramcast.types.paths import PATHS
from vramcast.types.settings import ROLES

_COMMON = frozenset(
    "seed output_dir logging_dir logging_steps save_steps eval_steps max_steps learning_rate weight_decay beta "
    "temperature top_p top_k debug env loss_type num_generations warmup_ratio warmup_steps resume_from_checkpoint "
    "dataset dtype bf16 report_to project run_name gradient_checkpointing use_vllm epsilon model_max_length "
    "deepspeed".split()
)
"""Keys of TRL that configurations of others have too."""
_DISTINCT = 3
"""So many keys of TRL alone, beside a majority that nobody knows, are a file for a script around TRL."""
_VERL = frozenset("actor_rollout_ref data algorithm trainer critic reward_model reward".split())
_ACCELERATE = frozenset("compute_environment distributed_type downcast_bf16 machine_rank".split())


def understand(name: str, text: str, folder: str) -> Understanding:
    """The facts of a configuration or script; `folder` is where files that it names may stand.

    Raises:
        Refused: in no format that is read, or with wrong values.
    """
    if is_script(name, text):
        return read_script(name, text, folder)
    document = parse(name, text)
    understood = _read(document, name, folder)
    understood.warnings[:0] = document.remarks
    return understood


def _read(document: Document, name: str, folder: str) -> Understanding:
    foreign = foreign_format(document.content)
    if foreign:
        raise refuse(f"{name} is a configuration of {foreign}, which is not read yet", read=formats())
    if is_deepspeed(document.content):
        return read_deepspeed(document, name)
    if "actor_rollout_ref" in document.content or len(_VERL & set(document.content)) > 1:
        from vramcast.readers.frameworks.verl.reader import read_verl_yaml

        return read_verl_yaml(document, name)
    if _ACCELERATE & set(document.content):
        from vramcast.readers.frameworks.accelerate import read_accelerate

        return read_accelerate(document, name, folder)
    native, trl = _paths(document), _trl_keys(document)
    if name.lower().endswith(".toml") or (native and len(native) >= len(trl)):
        return read_native(document, name)
    if _is_trl(document, trl):
        return read_trl(document, name, folder)
    raise _neither(document, name)


def _paths(document: Document) -> list[str]:
    return [name for name, _ in flatten(document.content) if _is_path(name)]


def _is_path(name: str) -> bool:
    role, _, rest = name.partition(".")
    return name in PATHS or (role in ROLES and rest in PATHS)


def _trl_keys(document: Document) -> list[str]:
    return [key for key in document.content if known_key(key) or is_launcher_option(key)]


def _is_trl(document: Document, keys: list[str]) -> bool:
    """Half of the keys are TRL's, or one names the model as TRL does, or there are several that no other format has."""
    if "model_name_or_path" in keys:
        return True
    return 2 * len(keys) >= len(document.content) or sum(key not in _COMMON for key in keys) >= _DISTINCT


def _neither(document: Document, name: str) -> Refused:
    keys = list(document.content)
    return refuse(
        f"{name} is not a configuration that vramcast reads",
        keys=", ".join(keys[:5]),
        near=near(keys[0], PATHS) if len(keys) == 1 else "",
        read=formats(),
    )
