"""The path table: each public name with its type, its role rule and the reading of its values.

`PATHS` is made from the fields of `Settings`; nothing else lists paths.
"""

from __future__ import annotations

import re
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

import msgspec

from vramcast.errors import Refused, refuse
from vramcast.types.settings import ROLES, Settings
from vramcast.types.words import UNSET, choice, meant
from vramcast.units import LARGEST, parse_bytes, parse_count, show_bytes

Value: TypeAlias = bool | int | float | str | list[Any] | dict[str, Any] | None

LONGEST = 4096
"""characters of a value: as many as a file name may have"""
_GROUP = re.compile(r"groups\.([A-Za-z0-9_-]+)\.(gpus|roles)")


class Path(msgspec.Struct, frozen=True):
    """One public path: `name`, the field behind it, its type, and what it means."""

    name: str
    attribute: str
    kind: str
    """count, bytes, fraction, number, flag, choice, text, list or table"""
    about: str
    job_wide: bool
    default: Value
    choices: tuple[str, ...]
    optional: bool
    type: Any

    @property
    def allowed(self) -> str:
        """What a value may be, in words."""
        if self.kind == "choice":
            return ", ".join(self.choices)
        words = {
            "count": "a whole number such as 4096 or 4k",
            "bytes": "a size with its unit, such as 80GiB",
            "fraction": "a decimal fraction such as 0.45",
            "number": "a number",
            "flag": "true or false",
            "text": "text",
            "list": "names separated by commas",
            "table": "name=number pairs",
        }[self.kind]
        return f"{words}, or null" if self.optional else words


_KINDS = {int: "count", float: "fraction", bool: "flag", str: "text", list: "list", dict: "table"}


def _read_annotation(name: str, attribute: str, default: Any, hint: Any) -> Path:
    metas: list[msgspec.Meta] = []
    options: list[Any] = []

    def peel(part: Any) -> None:
        if get_origin(part) is Annotated:
            inner, *found = get_args(part)
            metas.extend(meta for meta in found if isinstance(meta, msgspec.Meta))
            peel(inner)
        elif get_origin(part) in (Union, UnionType):
            for option in get_args(part):
                peel(option)
        else:
            options.append(part)

    peel(hint)
    main = next(option for option in options if option is not NoneType)
    extra = {key: value for meta in metas for key, value in (meta.extra or {}).items()}
    choices = get_args(main) if get_origin(main) is Literal else ()
    kind = "choice" if choices else _KINDS[get_origin(main) or main]
    if extra.get("unit") == "bytes":
        kind = "bytes"
    elif kind == "fraction" and not any(meta.le or meta.lt for meta in metas):
        kind = "number"
    about = next(meta.description for meta in metas if meta.description)
    return Path(name, attribute, kind, about, bool(extra.get("job_wide")), default, choices, NoneType in options, hint)


def _table() -> dict[str, Path]:
    hints = Settings.__annotations__
    defaults = Settings()
    names = zip(Settings.__struct_fields__, Settings.__struct_encode_fields__, strict=True)
    return {
        name: _read_annotation(name, attribute, getattr(defaults, attribute), hints[attribute])
        for attribute, name in names
    }


PATHS = _table()


def is_path(name: str) -> bool:
    """Whether `find` knows the name, or has words of its own for it."""
    try:
        find(name)
    except Refused as refused:
        return not refused.mistakes[0].fact.startswith("unknown path")
    return True


def find(name: str) -> tuple[str, Path]:
    """A written path → (role or "", path).

    Raises:
        Refused: no such path, or a role prefix on a job-wide path.
    """
    if name in PATHS:
        return "", PATHS[name]
    role, _, rest = name.partition(".")
    if role in ROLES and rest in PATHS:
        if PATHS[rest].job_wide:
            raise refuse(f"{name} cannot differ by role", use=rest)
        return role, PATHS[rest]
    if _GROUP.fullmatch(name):
        raise refuse(f"{name}: placing roles on groups of their own is not modelled yet")
    raise refuse(
        f"unknown path {name!r}",
        near=lambda: meant(rest if role in ROLES else name, PATHS),
        help="`vramcast list paths` shows every path",
    )


def read_value(path: Path, raw: Any) -> Value:
    """A value as written on the command line (text) or in a file (typed) → the path's type.

    Raises:
        ValueError: with a one-line reason.
    """
    if isinstance(raw, str) and len(raw) > LONGEST:
        raise ValueError(f"{len(raw):,} characters are more than the {LONGEST:,} that any value has")
    value = _from_text(path, raw) if isinstance(raw, str) else raw
    if path.kind == "choice" and isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if path.kind in ("count", "bytes") and isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is not {path.allowed}")
    if path.kind == "bytes" and isinstance(raw, int):
        raise ValueError(f"{raw!r} needs a unit: {path.allowed}")
    if path.kind in ("fraction", "number") and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) <= LARGEST else float("inf")
    if isinstance(value, int | float) and not abs(value) <= LARGEST:
        raise ValueError("too large" if value > 0 else f"{value!r} is not {path.allowed}")
    try:
        return msgspec.convert(value, path.type, strict=True)
    except msgspec.ValidationError as error:
        raise ValueError(_reason(path, value, str(error))) from None


def _reason(path: Path, value: Any, error: str) -> str:
    if ">=" in error or "<=" in error or "`float` >" in error or "`float` <" in error:
        bound = error.split("Expected ")[-1].replace("`int` ", "").replace("`float` ", "").replace("`", "")
        return f"must be {bound.split(' - ')[0]}, not {value}"
    return f"{value!r} is not {'one of: ' if path.kind == 'choice' else ''}{path.allowed}"


def _from_text(path: Path, text: str) -> Any:
    text = text.strip()
    if path.optional and text.lower() in UNSET and text.lower() not in path.choices:
        return None
    match path.kind:
        case "count":
            return parse_count(text)
        case "bytes":
            return parse_bytes(text)
        case "fraction" | "number":
            try:
                return float(text)
            except ValueError:
                raise ValueError(f"{text!r} is not {path.allowed}") from None
        case "flag":
            if text.lower() in ("true", "yes", "on", "1"):
                return True
            if text.lower() in ("false", "no", "off", "0"):
                return False
            raise ValueError(f"{text!r} is not true or false")
        case "list":
            return [part.strip() for part in text.strip("[]").split(",") if part.strip()]
        case "table":
            pairs = [part.partition("=") for part in text.split(",") if part.strip()]
            if not all(name.strip() and number for name, _, number in pairs):
                raise ValueError(f"{text!r} is not {path.allowed}")
            return {name.strip(): parse_count(number) for name, _, number in pairs}
        case "choice":
            return choice(text, path.choices)
        case _:
            return text


def write_value(path: Path, value: Value) -> Value:
    """The value as a job file holds it: `read_value` gives the same value back."""
    return show_bytes(value) if path.kind == "bytes" and isinstance(value, int) else value


def show_value(value: Value) -> str:
    """A value in a sentence."""
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
