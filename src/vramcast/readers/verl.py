"""verl: hydra overrides of a launch script or of a list, or a nested YAML, with the FSDP backend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vramcast.catalog.frameworks import parse_framework
from vramcast.errors import refuse
from vramcast.readers import verl_rules as rules
from vramcast.readers.document import Document
from vramcast.readers.shell_words import Word
from vramcast.readers.verl_keys import CRITIC, DEFAULTS, KEYS, NO_EFFECT, NOT_MODELLED, OLD, RULED, known_key
from vramcast.readers.verl_native import NATIVE
from vramcast.readers.verl_overrides import Overrides, flat, read_overrides, resolve
from vramcast.readers.verl_rules import Config
from vramcast.types.job import Fact, Missing, Origin, Understanding

__all__ = ["NATIVE", "read_verl", "read_verl_yaml"]

_BACKENDS = {"megatron": "Megatron", "veomni": "VeOmni", "torchtitan": "TorchTitan"}
_STANDARD = ("ppo_trainer", "dapo_trainer")


def read_verl(words: Iterable[Word], name: str, environment: Mapping[str, Word] | None = None) -> Understanding:
    """The facts of hydra overrides; `name` is the script in origins, `environment` what it exports.

    Raises:
        Refused: with every word that is no override and every wrong value; a backend that is not modelled.
    """
    found = read_overrides(words, name)
    warnings = _tree(found, name)
    resolve(found, DEFAULTS, NO_EFFECT, environment or {}, name)
    understood = _understand(found, name)
    nothing = [f"{name}:{gap.line}: {gap.name} {gap.why}: what it would add is not read" for gap in found.empty]
    return Understanding(
        understood.facts, understood.unread, [*warnings, *nothing, *understood.warnings], understood.missing
    )


def read_verl_yaml(document: Document, name: str) -> Understanding:
    """The facts of a nested configuration file.

    Raises:
        Refused: with every wrong value; a backend that is not modelled.
    """
    values = {key: value for key, value in flat(document.content) if value != "???"}  # the mark of what is left out
    found = Overrides(values, dict(document.lines), {}, {}, [])
    resolve(found, DEFAULTS, NO_EFFECT, {}, name)
    return _understand(found, name)


def _tree(found: Overrides, name: str) -> list[str]:
    """`--config-name` chooses the defaults: only those of the FSDP trainer are known."""
    chosen = found.config.get("name")
    if chosen is None:
        return []
    where = f"{name}:{chosen.line}" if chosen.line else name
    _refuse_backend(chosen.text, where, f"--config-name {chosen.text}")
    tree = chosen.text.removesuffix(".yaml")
    return (
        [] if tree in _STANDARD else [f"{where}: the defaults of {tree} are not read: those of ppo_trainer are assumed"]
    )


def _refuse_backend(text: str, where: str, written: str) -> None:
    for word, backend in _BACKENDS.items():
        if word in text:
            raise refuse(f"verl's {backend} backend is not modelled yet", **{"from": f"{where}  {written}"})


def _understand(found: Overrides, name: str) -> Understanding:
    config = Config(Document(found.values, found.lines), name, found.gaps)
    for key in ("model_engine", "actor_rollout_ref.actor.strategy"):
        _refuse_backend(str(config.get(key)), config.where(key), f"{key}={config.get(key)}")
    _assumed(config)
    _old_names(config)
    rules.algorithm(config)
    _table(config)
    for rule in (
        rules.cluster,
        rules.lengths,
        rules.work,
        rules.precision,
        rules.layout,
        rules.optimizer,
        rules.attention,
        rules.entropy,
        rules.adapters,
        rules.roles,
        rules.critic,
    ):
        rule(config)
    _unknown(config)
    return config.understanding()


def _assumed(config: Config) -> None:
    release = parse_framework(f"verl=={rules.VERSION}")
    origin = Origin(f"assumed: the newest verl that is known, as {config.name} names no version")
    config.facts.append(Fact("framework", f"{release.name}=={release.version}", origin))


def _old_names(config: Config) -> None:
    for old, (key, when) in OLD.items():
        if config.get(old) is not None:
            config.warn(old, f"is a key of versions {when}; name your version with --set framework=verl==VERSION")
            config.take_as(old, key, config.content.pop(old))


def _unknown(config: Config) -> None:
    """Values that the script does not tell: only the user can, if they matter."""
    for written, gaps in config.gaps.items():
        key = OLD[written][0] if written in OLD else written
        paths = RULED.get(key) or [table[key][0] for table in (KEYS, CRITIC) if key in table]
        reasons = ", ".join(f"{gap.name} {gap.why}" for gap in dict.fromkeys(gaps))
        for path in [path for path in paths if rules.matters(config, path)]:
            config.missing.append(Missing(path, f"{config.where(written)}  {written}: {reasons}"))
        if not paths and (key in NOT_MODELLED or not known_key(key)):
            config.leave(written)


def _table(config: Config) -> None:
    for key, value in list(config.content.items()):
        if key in KEYS and value is not None:
            path, convert = KEYS[key]
            with config.reading(key):
                config.fact(path, convert(value), key)
        elif key in NOT_MODELLED:
            if value not in (None, False, "", [], {}, *NOT_MODELLED[key]):
                config.leave(key)
        elif value is not None and not known_key(key) and not _is_off(config, key):
            config.leave(key)


def _is_off(config: Config, key: str) -> bool:
    """Whether a block around the key is switched off: the rest of it has no effect."""
    parts = key.split(".")
    blocks = (".".join(parts[:size]) for size in range(1, len(parts)))
    return any(config.get(f"{block}.{switch}") is False for block in blocks for switch in ("enable", "enabled"))
