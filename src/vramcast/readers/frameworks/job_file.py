"""Job files of this package: TOML, or a file with as many paths as keys of TRL, with which paths share names."""

from __future__ import annotations

from vramcast.readers.document import Document
from vramcast.readers.framework import Framework
from vramcast.readers.native import read_native
from vramcast.types.job import flatten
from vramcast.types.paths import is_path


def _recognise(document: Document, name: str) -> bool:
    if name.lower().endswith(".toml"):
        return True
    paths = [path for path, _ in flatten(document.content) if is_path(path)]
    if not paths:
        return False
    from vramcast.readers.frameworks.trl import own_keys

    return len(paths) >= len(own_keys(document.content))


FRAMEWORK = Framework(
    "vramcast", "vramcast", _recognise, read=lambda document, name, folder: read_native(document, name)
)
