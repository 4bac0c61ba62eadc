"""The reader of TRL's keys: what a file says, and what its keys tell of the trainer and of the version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from vramcast.readers.config import ConfigReader
from vramcast.readers.document import Document
from vramcast.readers.flags import Flags
from vramcast.readers.framework import read_tables, typed
from vramcast.readers.frameworks.trl import FRAMEWORK
from vramcast.readers.frameworks.trl.trainer import trainer_in, trainer_of, trainer_of_losses, version_of
from vramcast.types.job import Fact, Origin, Understanding

_CONFIGS = {
    "rloo": "RLOOConfig",
    "grpo": "GRPOConfig",
    "kto": "KTOConfig",
    "reward": "RewardConfig",
    "dpo": "DPOConfig",
    "sft": "SFTConfig",
}


class Program(NamedTuple):
    """What is known of the program that reads the keys."""

    trainer: str = ""
    """one of TRL's, or `pretrain`; empty when only the keys can tell"""
    framework: str = "trl"
    launches: bool = True
    """the program starts processes itself (`trl`): keys of `accelerate launch` in its file count"""
    options: Flags = Flags({}, {}, {})
    """what its command line says to `accelerate launch`"""


def read_trl(document: Document, name: str, folder: str = "", program: Program | None = None) -> Understanding:
    """The facts of a TRL file; `name` is the file in origins, `folder` where files that it names may stand.

    Raises:
        Refused: with every wrong value, and every key that chooses what is not modelled.
    """
    program = program or Program()
    config = ConfigReader(document, name, folder)
    _assume(config, program)
    _launcher(config, program)
    return read_tables(FRAMEWORK, config)


def _assume(config: ConfigReader, program: Program) -> None:
    """What the file does not say: the trainer (from its keys, unless the program tells) and the version."""
    trainer, sign = (program.trainer, "") if program.trainer else _trainer(config)
    priced = version_of(config.said, trainer, program.framework)
    config.trainer, config.old = trainer, bool(priced.why)
    why = f"whose keys are read: {priced.why}" if priced.why else f"that is known, as {config.name} names no version"
    words = {"trl": "TRL", "transformers": "Transformers"}[program.framework]
    origin = Origin(f"assumed: the newest {words} {why}")
    config.facts.append(Fact("framework", f"{program.framework}=={priced.version}", origin))
    if not program.trainer:
        why = f"key {sign} of {_CONFIGS[trainer]}" if sign else "no key tells the trainer"
        if not sign:
            named = "as its name says" if trainer_in(config.name) else "TRL's plainest trainer"
            config.warnings.append(
                f"{config.name}: {why}: priced as {trainer}, {named}; --set algorithm=... names another"
            )
        where = f"{config.where(sign)}: {why}" if sign else f"assumed: {config.name}: {why}"
        config.facts.extend(algorithm(trainer, Origin(where)))
    if told := priced.contradiction or priced.why:
        config.warnings.append(
            f"{config.name}: {told}; priced as {program.framework} {priced.version}, "
            f"--set framework={program.framework}==VERSION names yours"
        )


def algorithm(trainer: str, origin: Origin) -> list[Fact]:
    """The algorithm of a trainer: RLOO is a variant of GRPO."""
    if trainer == "rloo":
        return [Fact("algorithm", "grpo", origin), Fact("grpo.variant", "rloo", origin)]
    return [Fact("algorithm", trainer, origin)]


def _trainer(config: ConfigReader) -> tuple[str, str]:
    """(trainer, the key that tells it, or empty)."""
    kind, key = trainer_of(config.content)
    if kind:
        return kind, key
    if kind := trainer_of_losses(config.get("loss_type")):
        return kind, "loss_type"
    return trainer_in(config.name) or "sft", ""


def _launcher(config: ConfigReader, program: Program) -> None:
    """Keys of `accelerate launch` in the file: `trl` hands them on, a script that is started already ignores them."""
    from vramcast.readers.launchers import handed_on, read_starter

    part = handed_on(config.said)
    for key in part:
        if config.said[key] is None:
            config.rest(key, "null: as if it were left out")
        elif program.launches:
            config.settled.add(key)
        else:
            config.rest(key, "the processes are started already")
    options = program.options
    if program.launches and (part or options.values):
        values = {**{key: config.said[key] for key in part if config.said[key] is not None}, **options.values}
        lines = {**{key: config.lines[key] for key in part if key in config.lines}, **options.lines}
        with config.mistakes.collect():
            config.beside.append(read_starter(Flags(values, lines, {}), "trl", config.name, config.folder))


def read_words(words: Mapping[str, Any], where: str) -> Understanding:
    """What keys of `--set` say by themselves, from `where` they stand."""
    found = read_trl(Document(dict(typed(words)), {}), where)
    packed = next((fact for fact in found.facts if fact.path == "quant.kind" and fact.origin.key), None)
    if packed is not None and not any(fact.path == "tuning" for fact in found.facts):
        found.facts.append(Fact("tuning", "qlora", packed.origin))  # a packed base trains under adapters only
        found.warnings = [text for text in found.warnings if "without use_peft" not in text]
    return found
