"""A framework on a command line: flags that are keys of its configuration, over the file that they name."""

from __future__ import annotations

from typing import Any

from vramcast.errors import refuse
from vramcast.readers.command import Launch
from vramcast.readers.document import Document
from vramcast.readers.files import named_file
from vramcast.readers.flags import beside, read_flags
from vramcast.readers.framework import Framework, feeds, key_names, read_document
from vramcast.readers.launchers import read_starter
from vramcast.types.job import Missing, Understanding, Unread

_STARTS = {
    **dict.fromkeys(("num_processes", "nproc_per_node", "num_gpus", "nnodes"), "gpus"),
    **dict.fromkeys(("accelerate_config", "config_file"), "shard"),
    "config": "model",
}
"""Keys of launchers, and of the configuration, with a path that they feed."""


def read_flag_command(framework: Framework, launch: Launch, name: str, folder: str) -> Understanding:
    """The facts of a command; `name` is the script in origins, `folder` where the files that it names may stand.

    Raises:
        Refused: with every wrong value and every word that is no option, or a file that cannot be read.
    """
    known = key_names(framework).__contains__
    given, options = read_flags(launch.arguments, known), read_flags(launch.options, known)
    given.refuse_others(name)
    file, file_name = Document({}, {}), ""
    if "config" in given.values:
        file, file_name = named_file(str(given.values.pop("config")), f"{name}:{given.lines['config']}", folder)
    lines = {key: line for key, line in given.lines.items() if key in given.values}
    understood = read_document(framework, Document({**file.content, **given.values}, lines), name, folder)
    if file_name:
        understood = beside(understood, file, set(given.values), name, file_name)
    gaps, places = {**given.gaps, **options.gaps}, {**given.lines, **options.lines}
    return understood + read_starter(options, launch.starter, name, folder) + unknown(framework, gaps, places, name)


def unknown(
    framework: Framework, gaps: dict[str, tuple[Any, ...]], lines: dict[str, int], name: str
) -> Understanding:
    """Values that the script does not tell: only the user can, if they matter.

    Raises:
        Refused: the key chooses what is not modelled.
    """
    found, known = Understanding([]), framework.known()
    paths = {**{key.native: key.path for key in framework.keys}, **feeds(framework), **_STARTS}
    for key in gaps:
        where = f"{name}:{lines[key]}"
        reasons = ", ".join(f"{gap.name} {gap.why}" for gap in dict.fromkeys(gaps[key]))
        if paths.get(key):
            found.missing.append(Missing(paths[key], f"{where}  {key}: {reasons}"))
        elif key in known.unmodelled:
            what = known.unmodelled[key][1]
            raise refuse(f"{key} is not known: {reasons}", **{"from": where, "why": f"it chooses {what}"})
        else:
            (found.no_effect if key in known.no_effect else found.unread).append(Unread(key, where))
    return found
