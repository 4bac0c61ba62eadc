"""The table of patches: everything in which a fake step on the CPU would differ from a real one on the card."""

from __future__ import annotations

import sys

from vramcast.trace.child.patches import (
    data,
    fused_head,
    hidden,
    hugging_face,
    images,
    kernels,
    libraries,
    liger,
    packed_products,
    states,
    values,
)
from vramcast.trace.child.patches.patch import Moved, Patch, installed
from vramcast.trace.question import OwnStep, Question

__all__ = ["CPU", "TABLE", "Moved", "Patch", "imported_patches", "installed", "own_patches", "patches_of"]

TABLE = [
    *data.PATCHES, *kernels.PATCHES, *hidden.PATCHES, *libraries.PATCHES, *hugging_face.PATCHES,
    *fused_head.PATCHES, *liger.PATCHES, *packed_products.PATCHES, *states.PATCHES, *images.PATCHES,
]  # fmt: skip
CPU = [*data.PATCHES, *hugging_face.PATCHES]
"""those without which a fake step would differ from a real one on the CPU: what is left is CUDA's own"""


def patches_of(question: Question) -> list[Patch]:
    """Those that a question needs."""
    return [patch for patch in TABLE if patch.applies(question)]


def own_patches(question: OwnStep) -> list[Patch]:
    """Those that a user's own step needs, whatever it imports."""
    table = [*values.PATCHES, data.SUMS, *kernels.PATCHES, *hidden.PATCHES, *libraries.PATCHES]
    return [patch for patch in table if patch.applies(question)]


def imported_patches() -> list[Patch]:
    """Those of the frameworks that a user's own step has imported."""
    return hugging_face.PATCHES if "transformers.masking_utils" in sys.modules else []
