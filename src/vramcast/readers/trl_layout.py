"""How a trainer's own arguments share the states over GPUs: `fsdp`, `deepspeed`, `parallelism_config`.

Read in transformers 4.57, 5.0, 5.12 and 5.24 (TrainingArguments).
"""

from __future__ import annotations

from typing import Any

from vramcast.readers.trl_keys import flag, number
from vramcast.readers.trl_sheet import Sheet
from vramcast.types.job import Understanding

_OPTIONS = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2", "offload", "auto_wrap")
_OF_FOUR = ("fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params")
"""Keys of TrainingArguments in transformers 4, whose FSDP is version 1 and wraps only if it is told to."""


def layout(sheet: Sheet, folder: str, *, old: bool) -> Understanding:
    """What the keys say and the files that they name; `folder` is where these may stand, `old` the version of
    transformers where nothing tells it: 4.

    Raises:
        Refused: with every wrong value in a file that is named.
    """
    return _fsdp(sheet, folder, old or any(key in sheet.said for key in _OF_FOUR)) + (
        _deepspeed(sheet, folder) + _parallelism(sheet)
    )


def _fsdp(sheet: Sheet, folder: str, old: bool) -> Understanding:
    chosen = sheet.get("fsdp")
    others = [key for key in ("fsdp_config", *_OF_FOUR) if key in sheet.said]
    if not chosen or str(chosen).lower() == "false":
        for key in others:
            sheet.rest(key, "only with fsdp")
        if "fsdp" in sheet.said:
            sheet.rest("fsdp", "off")
        return Understanding([])
    options = _options(sheet, chosen)
    values, labels = _config(sheet, folder)
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
        least = sheet.get("fsdp_min_num_params") or values.get("min_num_params") or 0
        with sheet.reading("fsdp_min_num_params"):
            add("auto_wrap_policy", "SIZE_BASED_WRAP" if number(least) > 0 else "TRANSFORMER_BASED_WRAP")
    sheet.settled.update(("fsdp", "fsdp_config"))
    for key in _OF_FOUR:
        if key in sheet.said and key not in sheet.settled:
            sheet.rest(key, "which blocks are units" if "auto_wrap" in options else "only with auto_wrap")
    from vramcast.readers.accelerate import read_fsdp

    with sheet.mistakes.collect():
        return read_fsdp(values, labels, sheet)
    return Understanding([])


def _options(sheet: Sheet, chosen: Any) -> list[str]:
    """`full_shard auto_wrap`, as text or a list; a bare `--fsdp` is true."""
    if chosen is True or str(chosen).lower() == "true":
        return []
    words = [str(word) for word in chosen] if isinstance(chosen, list) else str(chosen).split()  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    with sheet.reading("fsdp"):
        for word in words:
            if word not in _OPTIONS:
                raise ValueError(f"{word!r} is not one of {', '.join(_OPTIONS)}")
    return words


def _strategy_of_one(options: list[str]) -> bool:
    return any(option in ("no_shard", "hybrid_shard", "hybrid_shard_zero2") for option in options)


def _config(sheet: Sheet, folder: str) -> tuple[dict[str, Any], dict[str, str]]:
    """`fsdp_config`, in the file or beside it, without the prefix; and how each key is written."""
    config = sheet.get("fsdp_config")
    if isinstance(config, str) and config and not config.strip().startswith("{"):
        from vramcast.readers.files import named_file

        with sheet.mistakes.collect():
            document, _ = named_file(config, f"{sheet.where('fsdp_config')}  fsdp_config", folder)
            config = document.content
            sheet.content["fsdp_config"] = config
    table = sheet.table("fsdp_config")
    names = {key.removeprefix("fsdp_"): key for key in table}
    for key in ("xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt"):
        if key in names:
            with sheet.reading(f"fsdp_config.{names[key]}"):
                if flag(table[names[key]]):
                    sheet.refuse(f"fsdp_config.{names[key]}", "torch's XLA", True)
            table.pop(names.pop(key))
    return {key: table[written] for key, written in names.items()}, {
        key: f"fsdp_config.{written}" for key, written in names.items()
    }


def _deepspeed(sheet: Sheet, folder: str) -> Understanding:
    """A file beside the configuration, or its content."""
    named = sheet.get("deepspeed")
    if named in (None, "", False, {}):
        if "deepspeed" in sheet.said:
            sheet.rest("deepspeed", "off")
        return Understanding([])
    from vramcast.readers.deepspeed import read_deepspeed
    from vramcast.readers.document import Document
    from vramcast.readers.files import named_file, place_of

    sheet.settled.add("deepspeed")
    place = f"{sheet.where('deepspeed')}  deepspeed"
    with sheet.mistakes.collect(), sheet.reading("deepspeed"):
        if not isinstance(named, str | dict):
            raise ValueError(f"{named!r} names no file")
        if isinstance(named, dict) or named.strip().startswith("{"):
            return read_deepspeed(Document(sheet.table("deepspeed"), {}), place)
        if place_of(named, folder):
            return read_deepspeed(*named_file(named, place, folder))
        sheet.needs("shard", "deepspeed", f"names {named}, which is neither here nor beside the configuration")
    return Understanding([])


def _parallelism(sheet: Sheet) -> Understanding:
    table = sheet.table("parallelism_config")
    if not table:
        return Understanding([])
    from vramcast.readers.accelerate import read_parallelism

    sheet.settled.add("parallelism_config")
    with sheet.mistakes.collect():
        return read_parallelism(table, sheet)
    return Understanding([])
