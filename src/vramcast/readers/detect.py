"""Which reader a configuration is for: told by its keys, since files of all frameworks end alike."""

from __future__ import annotations

from vramcast.errors import Refused, near, refuse
from vramcast.readers.document import Document, formats, parse
from vramcast.readers.native import read_native
from vramcast.readers.script import is_script, read_script
from vramcast.readers.trl import read_trl
from vramcast.readers.trl_keys import known_key
from vramcast.types.job import Understanding, flatten
from vramcast.types.paths import PATHS
from vramcast.types.settings import ROLES

# Keys that only the named format has. Several of these share TRL's keys, and would pass for a TRL file.
_FOREIGN = {
    "finetuning_type": "LLaMA-Factory",
    "cutoff_len": "LLaMA-Factory",
    "stage": "LLaMA-Factory",
    "lora_target": "LLaMA-Factory",
    "base_model": "axolotl",
    "sequence_len": "axolotl",
    "sample_packing": "axolotl",
    "flash_attention": "axolotl",
    "fsdp_version": "axolotl",
    "zero_optimization": "DeepSpeed",
    "train_micro_batch_size_per_gpu": "DeepSpeed",
}


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
    understood = _read(document, name)
    understood.warnings[:0] = document.remarks
    return understood


def _read(document: Document, name: str) -> Understanding:
    foreign = next((_FOREIGN[key] for key in document.content if key in _FOREIGN), None)
    if foreign:
        raise refuse(f"{name} is a configuration of {foreign}, which is not read yet", read=formats())
    if "actor_rollout_ref" in document.content or len(_VERL & set(document.content)) > 1:
        from vramcast.readers.verl import read_verl_yaml

        return read_verl_yaml(document, name)
    if _ACCELERATE & set(document.content):
        from vramcast.readers.accelerate import read_accelerate

        return read_accelerate(document, name)
    native, trl = _paths(document), _trl_keys(document)
    if name.lower().endswith(".toml") or (native and len(native) >= len(trl)):
        return read_native(document, name)
    if trl:
        return read_trl(document, name)
    raise _neither(document, name)


def _paths(document: Document) -> list[str]:
    return [name for name, _ in flatten(document.content) if _is_path(name)]


def _is_path(name: str) -> bool:
    role, _, rest = name.partition(".")
    return name in PATHS or (role in ROLES and rest in PATHS)


def _trl_keys(document: Document) -> list[str]:
    return [key for key in document.content if known_key(key)]


def _neither(document: Document, name: str) -> Refused:
    keys = list(document.content)
    return refuse(
        f"{name} is not a configuration that vramcast reads",
        keys=", ".join(keys[:5]),
        near=near(keys[0], PATHS) if len(keys) == 1 else "",
        read=formats(),
    )
