"""TRL on a command line: `trl sft --config x.yaml --a_b 1`, or a trainer script behind a launcher.

Flags become keys of a TRL file and are read as such, merged over the file that `--config` names.
"""

from __future__ import annotations

from typing import Any

from vramcast.readers.document import Document
from vramcast.readers.flags import Flags, beside, read_flags
from vramcast.readers.launch import Launch
from vramcast.readers.starter import is_launcher_option, named_file, read_starter
from vramcast.readers.trl import read_trl
from vramcast.readers.trl_keys import KEYS, NO_EFFECT, known_key
from vramcast.types.job import Fact, Missing, Origin, Understanding, Unread

_SIGNS = {
    "sft": "",
    "dpo": "precompute_ref_log_probs",
    "kto": "desirable_weight",
    "reward": "center_rewards_coefficient",
    "grpo": "reward_funcs",
}
"""Trainers, and a key by which `read_trl` knows each; with a null value it says nothing else."""
_FEEDS = {
    "dtype": "weights_dtype",
    "bf16": "compute_dtype",
    "max_length": "seq_len",
    "optim": "optimizer",
    "beta": "reference.kind",
    "use_peft": "tuning",
    "gradient_checkpointing": "recompute",
    "generation_batch_size": "prompts_per_step",
    "num_processes": "gpus",
    "nproc_per_node": "gpus",
    "num_gpus": "gpus",
    "nnodes": "gpus",
    "accelerate_config": "shard",
    "config_file": "shard",
    "config": "model",
}
"""Keys that are not in `KEYS`, with a path that they feed."""


def read_trl_command(launch: Launch, name: str, folder: str) -> Understanding:
    """The facts of a TRL command line; `folder` is where the files that it names may stand.

    Raises:
        Refused: with every wrong value, or a file that cannot be read.
    """
    given, options = read_flags(launch.arguments, known_key), read_flags(launch.options, known_key)
    given.refuse_others(name)
    own = given
    if launch.starter == "trl":
        own, options = given.part(lambda key: not is_launcher_option(key)), given.part(is_launcher_option)
    return (
        _command(launch, name)
        + _trainer(own, launch.program.removeprefix("trl "), name, folder)
        + read_starter(options, launch.starter, name, folder)
        + _unknown({**own.gaps, **options.gaps}, {**own.lines, **options.lines}, name)
    )


def _command(launch: Launch, name: str) -> Understanding:
    """The trainer, if the command names it."""
    where = f"{name}:{launch.line}"
    if launch.program.removeprefix("trl ") in _SIGNS:
        return Understanding([Fact("algorithm", launch.program.removeprefix("trl "), Origin(where, launch.program))])
    return Understanding([], warnings=[f"{where}: {launch.program} is read as a script with TRL's arguments"])


def _trainer(own: Flags, kind: str, name: str, folder: str) -> Understanding:
    path = own.values.pop("config", None)
    sign: dict[str, Any] = {_SIGNS[kind]: None} if _SIGNS.get(kind) else {}
    if path is None:
        return read_trl(Document({**sign, **own.values}, own.lines), name)
    file, file_name = named_file(str(path), f"{name}:{own.lines['config']}", folder)
    lines = {key: line for key, line in own.lines.items() if key in own.values}
    understood = read_trl(Document({**sign, **file.content, **own.values}, lines), name)
    return beside(understood, file, set(own.values), name, file_name)


def _unknown(gaps: dict[str, tuple[Any, ...]], lines: dict[str, int], name: str) -> Understanding:
    """Values that the script does not tell: only the user can, if they matter."""
    missing: list[Missing] = []
    unread: list[Unread] = []
    for key in gaps:
        where = f"{name}:{lines[key]}"
        path = KEYS[key][0] if key in KEYS else _FEEDS.get(key)
        if path:
            reasons = ", ".join(f"{gap.name} {gap.why}" for gap in dict.fromkeys(gaps[key]))
            missing.append(Missing(path, f"{where}  {key}: {reasons}"))
        elif key not in NO_EFFECT:
            unread.append(Unread(key, where))
    return Understanding([], unread, missing=missing)
