"""TRL on a command line: `trl sft --config x.yaml --a_b 1`, or a trainer script behind a launcher.

Flags become keys of a TRL file and are read as such, merged over the file that `--config` names.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vramcast.errors import refuse
from vramcast.readers.command import LOOKED_FOR, Launch
from vramcast.readers.document import Document
from vramcast.readers.files import named_file
from vramcast.readers.flags import Flags, beside, read_flags
from vramcast.readers.frameworks.trl.keys import CHOOSES, KEYS, NO_EFFECT, known_key
from vramcast.readers.frameworks.trl.programs import Known, known
from vramcast.readers.frameworks.trl.reader import Program, read_trl, trainer_of
from vramcast.readers.launchers import handed_on, read_starter
from vramcast.types.job import Fact, Missing, Origin, Understanding, Unread

_FEEDS = {
    "dtype": "weights_dtype",
    "bf16": "compute_dtype",
    "max_length": "seq_len",
    "model_max_length": "seq_len",
    "optim": "optimizer",
    "beta": "reference.kind",
    "use_peft": "tuning",
    "gradient_checkpointing": "recompute",
    "generation_batch_size": "prompts_per_step",
    "steps_per_generation": "prompts_per_step",
    "num_processes": "gpus",
    "nproc_per_node": "gpus",
    "num_gpus": "gpus",
    "nnodes": "gpus",
    "accelerate_config": "shard",
    "config_file": "shard",
    "deepspeed": "shard",
    "fsdp": "shard",
    "config": "model",
}
"""Keys that are not in `KEYS`, with a path that they feed."""
_COMMON = frozenset("model_name_or_path output_dir seed model_revision trust_remote_code debug config dataset".split())
"""Keys that any script may have."""


def trains(launch: Launch) -> bool:
    """Whether a script's name and arguments tell what it trains."""
    return isinstance(_known(launch, read_flags(launch.arguments, known_key).lines), Known)


def read_trl_command(launch: Launch, name: str, folder: str) -> Understanding:
    """The facts of a TRL command line; `folder` is where the files that it names may stand.

    Raises:
        Refused: a program that is not known, with every wrong value, or a file that cannot be read.
    """
    given, options = read_flags(launch.arguments, known_key), read_flags(launch.options, known_key)
    given.refuse_others(name)
    own, launching = given, Flags({}, {}, {})
    if launch.starter == "trl":
        theirs = handed_on(given.lines)
        own, launching = given.part(lambda key: key not in theirs), given.part(lambda key: key in theirs)
    where = f"{name}:{launch.line}"
    file, file_name = Document({}, {}), ""
    if "config" in own.values:
        file, file_name = named_file(str(own.values.pop("config")), f"{name}:{own.lines['config']}", folder)
    found = _known(launch, {**file.content, **own.lines})
    if isinstance(found, str):
        raise refuse(f"{where}: {found}", read=LOOKED_FOR, help="a job file says the same without a program")
    program = Program(found.trainer, found.framework, launch.starter == "trl", launching)
    lines = {key: line for key, line in own.lines.items() if key in own.values}
    understood = read_trl(Document({**file.content, **own.values}, lines), name, folder, program)
    if file_name:
        understood = beside(understood, file, {*own.values, *launching.values}, name, file_name)
    return (
        _command(launch, found, where)
        + understood
        + read_starter(options, launch.starter, name, folder)
        + _unknown({**own.gaps, **launching.gaps, **options.gaps}, {**given.lines, **options.lines}, name)
    )


def _known(launch: Launch, keys: Iterable[str]) -> Known | str:
    keys = list(keys)
    arguments = [key for key in keys if known_key(key) and key not in _COMMON]
    return known(launch.program, keys, arguments, trainer_of(keys))


def _command(launch: Launch, found: Known, where: str) -> Understanding:
    """The trainer, if the command names it; if it is only assumed, that is said."""
    algorithm = "grpo" if found.trainer == "rloo" else found.trainer
    origin = Origin(where, launch.program)
    warnings: list[str] = []
    if found.assumed:
        origin = Origin(f"assumed: {where}: {launch.program} is not known, and {found.assumed}")
        warnings = [
            f"{where}: {launch.program} is not known; {found.assumed}: it is priced as {found.trainer}, "
            "--set algorithm=... if it does something else"
        ]
    facts = [Fact("algorithm", algorithm, origin)]
    if found.trainer == "rloo":
        facts.append(Fact("grpo.variant", "rloo", origin))
    return Understanding(facts, warnings=warnings)


def _unknown(gaps: dict[str, tuple[Any, ...]], lines: dict[str, int], name: str) -> Understanding:
    """Values that the script does not tell: only the user can, if they matter."""
    missing: list[Missing] = []
    unread: list[Unread] = []
    no_effect: list[Unread] = []
    for key in gaps:
        where = f"{name}:{lines[key]}"
        path = KEYS[key][0] if key in KEYS else _FEEDS.get(key)
        reasons = ", ".join(f"{gap.name} {gap.why}" for gap in dict.fromkeys(gaps[key]))
        if path:
            missing.append(Missing(path, f"{where}  {key}: {reasons}"))
        elif key in CHOOSES:
            raise refuse(f"{key} is not known: {reasons}", **{"from": where, "why": f"it chooses {CHOOSES[key][1]}"})
        else:
            (no_effect if key in NO_EFFECT else unread).append(Unread(key, where))
    return Understanding([], unread, missing=missing, no_effect=no_effect)
