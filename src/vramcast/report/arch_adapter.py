"""What an adapter trains, as PEFT prints it: a part of `explain --arch`."""

from __future__ import annotations

import os
from typing import Any, cast

from msgspec import Struct

from vramcast.catalog.userfile import read_bytes, read_json
from vramcast.errors import refuse
from vramcast.models.adapters import Adapter, AdapterCount, by_peft, count, lora_adapter, read_adapter, readable
from vramcast.report.arch_subject import Subject
from vramcast.types.settings import ADAPTED, Settings

_FILE = "adapter_config.json"
_DEFAULTS = Settings()


class AdapterShare(Struct, frozen=True, kw_only=True):
    """What `print_trainable_parameters` prints, and where it is."""

    method: str
    source: str
    trainable: int
    total: int
    percent: float
    modules: dict[str, int]
    """last name of the adapted modules ("" for tensors that all share) -> parameters that train"""


def adapter(subject: Subject, file: str | None) -> AdapterShare | None:
    """The adapter of a PEFT configuration, or of the job's `lora` paths; None if there is neither.

    Raises:
        Refused: what PEFT would refuse, with the modules that exist.
    """
    found = _from_file(file) if file else _from_paths(subject)
    if found is None:
        return None
    counted = _counted(subject, found)
    trainable, total = int(counted.trainable), int(counted.total)
    return AdapterShare(
        method=found.method,
        source=found.source,
        trainable=trainable,
        total=total,
        percent=round(100 * trainable / total, 4),
        modules={name: int(size) for name, size in counted.modules.items()},
    )


def _counted(subject: Subject, found: Adapter) -> AdapterCount:
    if not by_peft(found):
        return count(subject.layout, found)
    from vramcast.trace.adapters import count_adapter  # a process of its own, where torch is

    readable(subject.layout, found)
    return count_adapter(subject.row.config, found, subject.dtype)


def _from_file(path: str) -> Adapter:
    """A PEFT adapter's folder, or its adapter_config.json."""
    file = os.path.join(path, _FILE) if os.path.isdir(path) else path
    try:
        config = read_json(read_bytes(file, what=_FILE))
    except ValueError as error:
        raise refuse(f"{file} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise refuse(f"{file} is not an {_FILE}: its top level is not an object")
    return read_adapter(cast("dict[str, Any]", config), file)


def _from_paths(subject: Subject) -> Adapter | None:
    lora = {path: fact.value for path, fact in subject.asked.items() if path.startswith("lora.")}
    if not lora and subject.value("tuning") not in ADAPTED:
        return None
    targets = lora.get("lora.targets")
    return lora_adapter(
        _number(lora.get("lora.rank"), _DEFAULTS.lora_rank),
        targets if isinstance(targets, list) else None,
        dora=bool(lora.get("lora.dora")),
        rank_pattern=cast("dict[str, int] | None", lora.get("lora.rank_pattern")),
        save_modules=cast("list[str] | None", lora.get("lora.save_modules")),
        source=subject.origin("lora.targets") or subject.origin("lora.rank") or subject.origin("tuning"),
    )


def _number(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) else otherwise
