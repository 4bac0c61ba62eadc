"""TRL on a command line: `trl sft --config x.yaml --a_b 1`, or a trainer script behind a launcher.

Flags become keys of a TRL file and are read as such, merged over the file that `--config` names.
"""

from __future__ import annotations

from collections.abc import Iterable

from vramcast.errors import refuse
from vramcast.readers.command import LOOKED_FOR, Launch
from vramcast.readers.document import Document
from vramcast.readers.files import named_file
from vramcast.readers.flag_command import unknown
from vramcast.readers.flags import Flags, beside, read_flags
from vramcast.readers.framework import has_key
from vramcast.readers.frameworks.trl import FRAMEWORK
from vramcast.readers.frameworks.trl.reader import Program, algorithm, read_trl
from vramcast.readers.frameworks.trl.trainer import Script, script, trainer_of
from vramcast.readers.launchers import handed_on, read_starter
from vramcast.types.job import Origin, Understanding

_COMMON = frozenset("model_name_or_path output_dir seed model_revision trust_remote_code debug config dataset".split())
"""Keys that any script may have."""


def _has(key: str) -> bool:
    return has_key(FRAMEWORK, key)


def trains(launch: Launch) -> bool:
    """Whether a script's name and arguments tell what it trains."""
    return isinstance(_script(launch, read_flags(launch.arguments, _has).lines), Script)


def read_trl_command(launch: Launch, name: str, folder: str) -> Understanding:
    """The facts of a TRL command line; `folder` is where the files that it names may stand.

    Raises:
        Refused: a program that is not known, with every wrong value, or a file that cannot be read.
    """
    given, options = read_flags(launch.arguments, _has), read_flags(launch.options, _has)
    given.refuse_others(name)
    own, launching = given, Flags({}, {}, {})
    if launch.starter == "trl":
        theirs = handed_on(given.lines)
        own, launching = given.part(lambda key: key not in theirs), given.part(lambda key: key in theirs)
    where = f"{name}:{launch.line}"
    file, file_name = Document({}, {}), ""
    if "config" in own.values:
        file, file_name = named_file(str(own.values.pop("config")), f"{name}:{own.lines['config']}", folder)
    found = _script(launch, {**file.content, **own.lines})
    if isinstance(found, str):
        raise refuse(f"{where}: {found}", read=LOOKED_FOR, help="a job file says the same without a program")
    program = Program(found.trainer, found.framework, launch.starter == "trl", launching)
    lines = {key: line for key, line in own.lines.items() if key in own.values}
    understood = read_trl(Document({**file.content, **own.values}, lines), name, folder, program)
    if file_name:
        understood = beside(understood, file, {*own.values, *launching.values}, name, file_name)
    return (
        _trainer(launch, found, where)
        + understood
        + read_starter(options, launch.starter, name, folder)
        + unknown(FRAMEWORK, {**own.gaps, **launching.gaps, **options.gaps}, {**given.lines, **options.lines}, name)
    )


def _script(launch: Launch, keys: Iterable[str]) -> Script | str:
    keys = list(keys)
    arguments = [key for key in keys if _has(key) and key not in _COMMON]
    return script(launch.program, keys, arguments, trainer_of(keys)[0])


def _trainer(launch: Launch, found: Script, where: str) -> Understanding:
    """The trainer, if the command names it; if it is only assumed, that is said."""
    if not found.assumed:
        return Understanding(algorithm(found.trainer, Origin(where, launch.program)))
    why = f"{where}: {launch.program} is not known"
    warning = f"{found.assumed}: it is priced as {found.trainer}, --set algorithm=... if it does something else"
    facts = algorithm(found.trainer, Origin(f"assumed: {why}, and {found.assumed}"))
    return Understanding(facts, warnings=[f"{why}; {warning}"])
