"""Places where Transformers behaves in another way because tensors are fake."""

from __future__ import annotations

from typing import Any

from vramcast.trace.child.patches.patch import Patch, Replacement
from vramcast.trace.child.tracker import Tracker
from vramcast.trace.question import Question


def _masks(question: Question, tracker: Tracker) -> list[Replacement]:
    from transformers import masking_utils

    found = [
        Replacement(masking_utils, "is_tracing", lambda _: lambda *args, **kwargs: False),
        Replacement(masking_utils, "find_packed_sequence_indices", lambda _: lambda *args, **kwargs: None),
    ]
    if hasattr(masking_utils, "fast_all"):
        found.append(Replacement(masking_utils, "fast_all", lambda _: lambda *args, **kwargs: True))
    return found


def _padding_warning(question: Question, tracker: Tracker) -> list[Replacement]:
    from transformers import modeling_utils

    return [Replacement(modeling_utils, "is_tracing", lambda _: lambda *args, **kwargs: True)]


PATCHES = [
    Patch(
        "attention masks",
        "Transformers takes a fake tensor for a graph capture, and then builds a mask that no batch without padding has",
        "transformers/masking_utils.py: is_tracing",
        replaces=_masks,
    ),
    Patch(
        "padding warning",
        "a warning reads the token ids",
        "transformers/modeling_utils.py: warn_if_padding_and_no_attention_mask",
        replaces=_padding_warning,
    ),
]
