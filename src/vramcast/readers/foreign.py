"""Frameworks that are not read yet, told by keys and programs that only they have (`foreign.json`)."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
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
    """patterns of modules and files"""
    arguments: str = ""
    """options that only its programs have"""
    shown: bool = False
    """the program is named as well, as the row is one of several of a framework that is read"""


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


def foreign_program(program: str, options: Collection[str]) -> str:
    """What a module or file that is started is of; empty if nothing tells."""
    rows = foreign().items()
    told = next((name for name, row in rows if any(option in row.arguments.split() for option in options)), "")
    told = told or foreign_commands().get(program.partition(".")[0], "")
    told = told or next((name for name, row in rows if any(re.fullmatch(each, program) for each in row.scripts)), "")
    return f"{program} ({told})" if told and foreign()[told].shown else told
