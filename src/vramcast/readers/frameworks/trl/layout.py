"""How a trainer's own arguments share the states over GPUs: `fsdp`, `deepspeed`, `parallelism_config`.

Read in transformers 4.57, 5.0, 5.12 and 5.24 (TrainingArguments).
"""

from __future__ import annotations

from typing import Any

from vramcast.readers.config import ConfigReader
from vramcast.readers.frameworks.trl.keys import flag, number
from vramcast.types.job import Understanding

_OPTIONS = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2", "offload", "auto_wrap")
_OF_FOUR = ("fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params")
"""Keys of TrainingArguments in transformers 4, whose FSDP is version 1 and wraps only if it is told to."""


def layout(config: ConfigReader, folder: str, *, old: bool) -> Understanding:
    """What the keys say and the files that they name; `folder` is where these may stand, `old` the version of
    transformers where nothing tells it: 4.

    Raises:
        Refused: with every wrong value in a file that is named.
    """
    return _fsdp(config, folder, old or any(key in config.said for key in _OF_FOUR)) + (
        _deepspeed(config, folder) + _parallelism(config)
    )


def _fsdp(config: ConfigReader, folder: str, old: bool) -> Understanding:
    chosen = config.get("fsdp")
    others = [key for key in ("fsdp_config", *_OF_FOUR) if key in config.said]
    if not chosen or str(chosen).lower() == "false":
        for key in others:
            config.rest(key, "only with fsdp")
        if "fsdp" in config.said:
            config.rest("fsdp", "off")
        return Understanding([])
    options = _options(config, chosen)
    values, labels = _fsdp_config(config, folder)
    given = [(values[key], labels[key]) for key in ("version",) if values.get(key) is not None]
    version = str(given[0][0]) if given else "1" if old or _strategy_of_one(options) else "2"

    def add(key: str, value: Any, label: str = "fsdp") -> None:
        if values.get(key) is None:
            values[key], labels[key] = value, label

    add("version", version)
    for option in options:
        if option == "offload":
            add("offload_params", True)
        elif option != "auto_wrap":
            add("reshard_after_forward", option.upper() if version == "1" else option == "full_shard")
    if version == "2" or not old:
        add("auto_wrap_policy", "TRANSFORMER_BASED_WRAP")
    elif "auto_wrap" in options:
        least = config.get("fsdp_min_num_params") or values.get("min_num_params") or 0
        with config.reading("fsdp_min_num_params"):
            add("auto_wrap_policy", "SIZE_BASED_WRAP" if number(least) > 0 else "TRANSFORMER_BASED_WRAP")
    config.settled.update(("fsdp", "fsdp_config"))
    for key in _OF_FOUR:
        if key in config.said and key not in config.settled:
            config.rest(key, "which blocks are units" if "auto_wrap" in options else "only with auto_wrap")
    from vramcast.readers.frameworks.accelerate import read_fsdp

    with config.mistakes.collect():
        return read_fsdp(values, labels, config)
    return Understanding([])


def _options(config: ConfigReader, chosen: Any) -> list[str]:
    """`full_shard auto_wrap`, as text or a list; a bare `--fsdp` is true."""
    if chosen is True or str(chosen).lower() == "true":
        return []
    words = [str(word) for word in chosen] if isinstance(chosen, list) else str(chosen).split()  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    with config.reading("fsdp"):
        for word in words:
            if word not in _OPTIONS:
                raise ValueError(f"{word!r} is not one of {', '.join(_OPTIONS)}")
    return words


def _strategy_of_one(options: list[str]) -> bool:
    return any(option in ("no_shard", "hybrid_shard", "hybrid_shard_zero2") for option in options)


def _fsdp_config(config: ConfigReader, folder: str) -> tuple[dict[str, Any], dict[str, str]]:
    """`fsdp_config`, in the file or beside it, without the prefix; and how each key is written."""
    named = config.get("fsdp_config")
    if isinstance(named, str) and named and not named.strip().startswith("{"):
        from vramcast.readers.files import named_file

        with config.mistakes.collect():
            document, _ = named_file(named, f"{config.where('fsdp_config')}  fsdp_config", folder)
            config.content["fsdp_config"] = document.content
    table = config.table("fsdp_config")
    names = {key.removeprefix("fsdp_"): key for key in table}
    for key in ("xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt"):
        if key in names:
            with config.reading(f"fsdp_config.{names[key]}"):
                if flag(table[names[key]]):
                    config.refuse(f"fsdp_config.{names[key]}", "torch's XLA", True)
            table.pop(names.pop(key))
    return {key: table[written] for key, written in names.items()}, {
        key: f"fsdp_config.{written}" for key, written in names.items()
    }


def _deepspeed(config: ConfigReader, folder: str) -> Understanding:
    """A file beside the configuration, or its content."""
    named = config.get("deepspeed")
    if named in (None, "", False, {}):
        if "deepspeed" in config.said:
            config.rest("deepspeed", "off")
        return Understanding([])
    from vramcast.readers.document import Document
    from vramcast.readers.files import named_file, place_of
    from vramcast.readers.frameworks.deepspeed import read_deepspeed

    config.settled.add("deepspeed")
    place = f"{config.where('deepspeed')}  deepspeed"
    with config.mistakes.collect(), config.reading("deepspeed"):
        if not isinstance(named, str | dict):
            raise ValueError(f"{named!r} names no file")
        if isinstance(named, dict) or named.strip().startswith("{"):
            return read_deepspeed(Document(config.table("deepspeed"), {}), place)
        if place_of(named, folder):
            return read_deepspeed(*named_file(named, place, folder))
        config.needs("shard", "deepspeed", f"names {named}, which is neither here nor beside the configuration")
    return Understanding([])


def _parallelism(config: ConfigReader) -> Understanding:
    table = config.table("parallelism_config")
    if not table:
        return Understanding([])
    from vramcast.readers.frameworks.accelerate import read_parallelism

    config.settled.add("parallelism_config")
    with config.mistakes.collect():
        return read_parallelism(table, config)
    return Understanding([])
