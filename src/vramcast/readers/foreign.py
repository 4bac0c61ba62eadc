"""Frameworks that are not read yet, told by keys and programs that only they have (`foreign.json`)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct


class Foreign(Struct):
    """What tells a framework; words of a text stand between blanks."""

    keys: str = ""
    together: list[str] = []
    """keys that tell it where all of a text are there"""
    inside: str = ""
    """a key of any block"""
    commands: str = ""
    """programs, and packages whose modules are started"""
    scripts: list[str] = []
    """patterns of files"""


@cache
def foreign() -> dict[str, Foreign]:
    """The frameworks by name."""
    with open(os.path.join(os.path.dirname(__file__), "foreign.json"), "rb") as file:
        return msgspec.json.decode(file.read(), type=dict[str, Foreign])


def foreign_format(content: Mapping[str, Any]) -> str:
    """The framework that the keys belong to; empty if no key tells."""
    rows = foreign().items()
    blocks = [set[str](value) for value in content.values() if isinstance(value, dict)]  # pyright: ignore[reportUnknownArgumentType]
    told = next((name for key in content for name, row in rows if key in row.keys.split()), "")
    told = told or next((name for name, row in rows for keys in row.together if set(keys.split()) <= set(content)), "")
    return told or next((name for name, row in rows if row.inside and any(row.inside in each for each in blocks)), "")


@cache
def foreign_commands() -> dict[str, str]:
    """Program → the framework that it is of."""
    return {command: name for name, row in foreign().items() for command in row.commands.split()}


def foreign_program(program: str) -> str:
    """The framework of a module or file that is started; empty if none is known by it."""
    scripts = ((name, pattern) for name, row in foreign().items() for pattern in row.scripts)
    package = foreign_commands().get(program.partition(".")[0], "")
    return package or next((name for name, pattern in scripts if re.fullmatch(pattern, program)), "")
