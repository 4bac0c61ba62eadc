"""verl: hydra overrides of a launch script or of a list, or a nested YAML, with the FSDP backend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vramcast.catalog.frameworks import parse_framework
from vramcast.errors import refuse
from vramcast.readers.bash.words import Word
from vramcast.readers.document import Document
from vramcast.readers.frameworks.verl import rules, work
from vramcast.readers.frameworks.verl.config import Config
from vramcast.readers.frameworks.verl.defaults import NEWEST, has_key, last_release, plain_defaults, release_of
from vramcast.readers.frameworks.verl.keys import ACTOR, CRITIC, KEYS, OLD, RULED
from vramcast.readers.frameworks.verl.limits import NO_EFFECT, REFUSED, idle, refusal
from vramcast.readers.frameworks.verl.native import NATIVE
from vramcast.readers.hydra import Overrides, flat, read_overrides, resolve
from vramcast.types.job import Fact, Missing, Origin, Understanding

__all__ = ["NATIVE", "read_verl", "read_verl_yaml"]

_BACKENDS = {"megatron": "Megatron", "veomni": "VeOmni", "torchtitan": "TorchTitan", "automodel": "Automodel"}
_STANDARD = ("ppo_trainer", "dapo_trainer")
_CHOICES = ("dp", "dp_actor", "dp_ref", "dp_critic", "dp_reward_model", "hf_model", "rollout", "legacy_data", "reward",
            "rollout_correction", "distillation", "transfer_queue")  # fmt: skip
"""what the groups of verl's tree are by default"""
_IDLE = tuple(start for starts in NO_EFFECT.values() for start in starts)
_WHOLE = "print the whole configuration (add `--cfg job` to the command) and give that file"


def read_verl(words: Iterable[Word], name: str, environment: Mapping[str, Word] | None = None) -> Understanding:
    """The facts of hydra overrides; `name` is the script in origins, `environment` what it exports.

    Raises:
        Refused: with every word that is no override and every wrong value; a backend that is not modelled.
    """
    words = list(words)
    found = read_overrides(words, name)
    _tree(found, name)
    added = {word.text.lstrip("+").partition("=")[0] for word in words if word.text.startswith("+")}
    understood = _understand(found, name, environment or {}, added)
    nothing = [f"{name}:{gap.line}: {gap.name} {gap.why}: what it would add is not read" for gap in found.empty]
    understood.warnings[:0] = nothing
    return understood


def read_verl_yaml(document: Document, name: str) -> Understanding:
    """The facts of a nested configuration file.

    Raises:
        Refused: with every wrong value; a backend that is not modelled.
    """
    values = {key: value for key, value in flat(document.content) if value != "???"}  # the mark of what is left out
    return _understand(Overrides(values, dict(document.lines), {}, {}, []), name, {}, set())


def _tree(found: Overrides, name: str) -> None:
    """`--config-name` chooses the defaults: only those of the FSDP trainer are known."""
    chosen = found.config.get("name")
    if chosen is None:
        return
    where = f"{name}:{chosen.line}" if chosen.line else name
    _refuse_backend(chosen.text, where, f"--config-name {chosen.text}")
    tree = chosen.text.removesuffix(".yaml")
    if tree not in _STANDARD:
        raise refuse(
            f"the defaults of {tree or 'another configuration'} are not known",
            **{"from": where, "known": ", ".join(_STANDARD), "help": _WHOLE},
        )


def _refuse_backend(text: str, where: str, written: str) -> None:
    for word, backend in _BACKENDS.items():
        if word in text:
            raise refuse(f"verl's {backend} backend is not modelled yet", **{"from": f"{where}  {written}"})


def _understand(found: Overrides, name: str, environment: Mapping[str, Word], added: set[str]) -> Understanding:
    version, why = _release([key for key in found.values if key not in added])
    resolve(found, plain_defaults(version), _IDLE, environment, name)
    config = Config(Document(found.values, found.lines), name, found.gaps, version)
    release = parse_framework(f"verl=={version}")
    config.facts.append(Fact("framework", f"{release.name}=={release.version}", Origin(why.format(name=name))))
    _backend(config)
    _old_names(config)
    rules.algorithm(config)
    _table(config)
    for rule in (
        rules.cluster, work.lengths, work.work, rules.precision, rules.layout, rules.optimizer, rules.attention,
        work.entropy, work.old_logprobs, rules.engine, rules.adapters, rules.roles, rules.critic,
    ):  # fmt: skip
        rule(config)
    _unknown(config)
    _rest(config)
    understood = config.understanding()
    understood.idle = list(config.unused_keys.values())
    return understood


def _release(keys: list[str]) -> tuple[str, str]:
    """The newest release that has the keys, and why it is that one. `++key` and `+key` may be in none."""
    version = release_of(keys)
    if version == NEWEST:
        return version, "assumed: the newest verl that is known, as {name} names no version"
    gone = next(key for key in keys if has_key(key, version) and not has_key(key, NEWEST))
    return version, f"the newest verl with the keys of {{name}}: {gone} is one of versions up to {last_release(gone)}"


def _backend(config: Config) -> None:
    """Keys of another backend, and groups of the tree that are not verl's own choice."""
    for key in ("model_engine", f"{ACTOR}strategy"):
        _refuse_backend(str(config.get(key)), config.where(key), f"{key}={config.get(key)}")
    chosen = f"{ACTOR}strategy" in config.content
    for key in list(config.content):
        inner = next((word for word in _BACKENDS if f".{word}." in key), "")
        if inner and chosen:
            config.unused(key, f"read by {_BACKENDS[inner]} only")
        elif inner and config.get(key) is not None and not config.is_default(key):
            _refuse_backend(inner, config.where(key), key)
        if "@" in key or key == "model_engine":
            _group(config, key, config.content[key])
    trees: list[Any] = config.content.pop("defaults", None) or []  # of a tree that a user wrote
    for item in trees:
        choices: dict[str, Any] = item if isinstance(item, dict) else {"defaults": item}  # pyright: ignore
        for group, choice in choices.items():
            _group(config, group, choice)


def _group(config: Config, key: str, choice: Any) -> None:
    if choice not in (*_CHOICES, *_STANDARD, "_self_"):
        _refuse_backend(str(choice), config.where(key), f"{key}={choice}")
        config.mistakes.add(
            f"{key} = {choice}: the keys that this choice sets are not known",
            **{"from": config.where(key), "known": ", ".join(_CHOICES), "help": _WHOLE},
        )


def _old_names(config: Config) -> None:
    for old, key in OLD.items():
        if config.get(old) is None:
            continue
        if not has_key(old, config.version):
            config.warn(old, f"is a key of versions up to {last_release(old)}, beside keys of {config.version}")
        if key not in config.content:
            config.take_as(old, key, config.content.pop(old))


def _unknown(config: Config) -> None:
    """Values that the script does not tell: only the user can, if they matter."""
    for written, gaps in config.gaps.items():
        key = OLD.get(written, written)
        paths = RULED.get(key) or [table[key][0] for table in (KEYS, CRITIC) if key in table]
        reasons = ", ".join(f"{gap.name} {gap.why}" for gap in dict.fromkeys(gaps))
        for path in [path for path in paths if rules.matters(config, path)]:
            config.missing.append(Missing(path, f"{config.where(written)}  {written}: {reasons}"))
        if key in REFUSED:
            config.mistakes.add(f"{written} is not known: {reasons}", **{"from": config.where(written)})
        elif not paths and not idle(key):
            config.leave(written)


def _table(config: Config) -> None:
    for key, value in list(config.content.items()):
        if key in KEYS and (value is not None or not config.is_default(key)):
            path, convert = KEYS[key]
            if isinstance(config.default(key), bool):
                config.flag(key)  # says what a text is
            with config.reading(key):
                config.fact(path, convert(value), key)


def _rest(config: Config) -> None:
    """Every key that no rule has read: verl's own value, refused, without effect, or unread."""
    for key, value in config.content.items():
        if key.startswith("critic.") and key != "critic.enable" and not config.has_critic:
            config.unused(key, "there is no critic")
        if key in (*KEYS, *RULED, *config.unused_keys) or "@" in key or config.is_default(key):
            continue
        if key.startswith("critic."):
            if key not in CRITIC:
                config.leave(key)
        elif does := refusal(key, value):
            config.refuse_because(key, does)
        elif why := "this is what is modelled" if key in REFUSED else idle(key) or _switched_off(config, key):
            config.unused(key, why)
        else:
            config.leave(key)


def _switched_off(config: Config, key: str) -> str:
    """The switch that turns off the block around the key: the rest of it has no effect."""
    parts = key.split(".")
    switches = [f"{'.'.join(parts[:size])}.{word}" for size in range(1, len(parts)) for word in ("enable", "enabled")]
    known = [each for each in switches if each != key and (each in config.content or config.default(each) is not None)]
    return next((f"{switch} is off" for switch in known if not config.or_default(switch)), "")
