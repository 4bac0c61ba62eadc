"""The table of patches: everything in which a fake step on the CPU would differ from a real one on the card."""

from __future__ import annotations

from vramcast.trace.child.patches import data, frameworks, hidden, kernels, libraries
from vramcast.trace.child.patches.patch import Moved, Patch, installed
from vramcast.trace.question import Question

__all__ = ["TABLE", "Moved", "Patch", "installed", "patches_of"]

TABLE = [*data.PATCHES, *kernels.PATCHES, *hidden.PATCHES, *libraries.PATCHES, *frameworks.PATCHES]


def patches_of(question: Question) -> list[Patch]:
    """Those that a question needs."""
    return [patch for patch in TABLE if patch.applies(question)]
