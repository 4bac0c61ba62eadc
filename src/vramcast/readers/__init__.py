"""From what a user has to facts: the job files of this package, and the configurations of frameworks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO

from vramcast.types.paths import Value

if TYPE_CHECKING:
    from vramcast.types.job import Understanding


def read_config(source: str, stdin: TextIO | None = None) -> Understanding:
    """The facts of a job file, of a framework's configuration, or of a launch script; `-` reads `stdin`.

    Raises:
        Refused: the file cannot be read, is in no known format, or holds wrong values (all of them at once).
    """
    from vramcast.readers.detect import understand
    from vramcast.readers.files import read_text

    return understand(*read_text(source, stdin), folder="" if source == "-" else os.path.dirname(source))


def native_keys(framework_name: str, edits: Mapping[str, Value]) -> dict[str, Value]:
    """A lever's edits (path → value) in the framework's own keys; what it has no key for is left out."""
    match framework_name.partition("==")[0]:
        case "trl":
            from vramcast.readers.frameworks.trl.native import trl_keys

            return trl_keys(edits)
        case "verl":
            from vramcast.readers.frameworks.verl.native import verl_keys

            return verl_keys(edits)
        case _:
            return {}
