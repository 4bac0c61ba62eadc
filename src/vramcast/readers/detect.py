"""Which reader a configuration is for: told by its keys, since files of all frameworks end alike."""

from __future__ import annotations

from vramcast.errors import near, refuse
from vramcast.readers.document import formats, parse
from vramcast.readers.foreign import foreign_format
from vramcast.readers.framework import read_document
from vramcast.readers.frameworks import frameworks
from vramcast.readers.script import is_script, read_script
from vramcast.types.job import Understanding
from vramcast.types.paths import PATHS


def understand(name: str, text: str, folder: str) -> Understanding:
    """The facts of a configuration or script; `folder` is where files that it names may stand.

    Raises:
        Refused: in no format that is read, or with wrong values.
    """
    if is_script(name, text):
        return read_script(name, text, folder)
    document = parse(name, text)
    if foreign := foreign_format(document.content):
        raise refuse(f"{name} is a configuration of {foreign}, which is not read yet", read=formats())
    framework = next((each for each in frameworks() if each.recognise(document, name)), None)
    if framework is None:
        keys = list(document.content)
        raise refuse(
            f"{name} is not a configuration that vramcast reads",
            keys=", ".join(keys[:5]),
            near=near(keys[0], PATHS) if len(keys) == 1 else "",
            read=formats(),
        )
    understood = read_document(framework, document, name, folder)
    understood.warnings[:0] = document.remarks
    return understood
