"""The files that a trace writes: what cannot be written, or is somebody else's, is refused before tracing."""

from __future__ import annotations

import argparse
import os
import re

from vramcast.errors import Mistakes, Refused
from vramcast.units import MIB

_FOLDED = re.compile(rb".+ \[[^\]\n]*\] \d+")
_PREDICTED = b": from a trace on fake tensors, no GPU was used"
"""what a snapshot of ours says of itself near its end"""
_END = 64 << 10


def check_targets(options: argparse.Namespace, mistakes: Mistakes) -> None:
    """Note every target that cannot be, and two answers on standard output."""
    if options.json and options.flame == "-":
        mistakes.add("--json and --flame would both be on standard output", use="--flame FILE")
    if options.save_arch and options.step:
        mistakes.add(
            "--save-arch measures a job at several sizes, and a step of your own has only its own",
            use="vramcast trace CONFIG --save-arch FILE",
        )
    targets = (
        ("--snapshot", options.snapshot, _is_snapshot),
        ("--flame", None if options.flame == "-" else options.flame, _is_flame),
        ("--save-arch", options.save_arch, _is_saved),
    )
    for flag, path, ours in targets:
        if path is None:
            continue
        folder = os.path.dirname(path) or "."
        if not os.path.isdir(folder):
            mistakes.add(f"{flag} {path}: there is no folder {folder}")
        elif os.path.isdir(path):
            mistakes.add(f"{flag} {path} is a folder")
        elif os.path.exists(path) and not os.path.isfile(path):  # a pipe or a device takes what comes
            if not os.access(path, os.W_OK):
                mistakes.add(f"{flag} {path} cannot be written")
        elif os.path.islink(path):
            mistakes.add(f"{flag} {path} is a link to another place, which stays as it is", use="another name")
        elif not os.access(folder, os.W_OK):
            mistakes.add(f"{flag} {path}: nothing can be written in {folder}")
        elif os.path.exists(path) and not ours(path):
            mistakes.add(f"{flag} {path}: there is something else, and it stays", use="another name")


def _is_snapshot(path: str) -> bool:
    """Told by its last bytes: a pickle is not loaded to look at it."""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - _END))
        return _PREDICTED in file.read()


def _is_flame(path: str) -> bool:
    """Folded stacks whose last frames end with a purpose; an empty file is nobody's."""
    with open(path, "rb") as file:
        return all(_FOLDED.fullmatch(line) for line in file.read(16 * MIB).splitlines()[:1000])


def _is_saved(path: str) -> bool:
    from vramcast.catalog.models import model_config

    try:
        return bool(model_config(path).measured)
    except Refused:
        return False
