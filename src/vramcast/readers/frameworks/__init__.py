"""The frameworks whose configurations are read: one tuple, which detection, launch scripts, `--set` and native answers
go through.

Each name is a module here with its row, `FRAMEWORK`, which is imported when it is asked for. The first row that
recognises a configuration reads it, so those with keys of their own come first.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vramcast.readers.framework import Framework

FRAMEWORKS = ("deepspeed", "verl", "accelerate", "job_file", "trl")
SCRIPTS = "trl"
"""who reads a script that no framework knows by name: nearly all are around Hugging Face's Trainer"""


def framework(name: str) -> Framework:
    """The row of a framework in the tuple."""
    return import_module(f"vramcast.readers.frameworks.{name}").FRAMEWORK


def frameworks() -> Iterator[Framework]:
    """The rows of the tuple, one by one."""
    return map(framework, FRAMEWORKS)
