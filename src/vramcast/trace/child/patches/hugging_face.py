"""Places where Transformers behaves in another way because tensors are fake."""

from __future__ import annotations

from typing import Any

from vramcast.trace.child.patches.patch import Patch, Replacement
from vramcast.trace.child.tracker import Tracker
from vramcast.trace.question import OwnStep, Question


def _masks(question: Question | OwnStep, tracker: Tracker) -> list[Replacement]:
    from transformers import masking_utils

    found = [
        Replacement(masking_utils, "is_tracing", lambda _: lambda *args, **kwargs: False),
        Replacement(masking_utils, "find_packed_sequence_indices", lambda _: lambda *args, **kwargs: None),
    ]

    def fast_all(mask: Any) -> bool:
        if isinstance(question, OwnStep):
            tracker.assumed.setdefault("no batch has padding")
        return True

    if hasattr(masking_utils, "fast_all"):
        found.append(Replacement(masking_utils, "fast_all", lambda _: fast_all))
    return found


def _padding_warning(question: Question, tracker: Tracker) -> list[Replacement]:
    from transformers import modeling_utils

    return [Replacement(modeling_utils, "is_tracing", lambda _: lambda *args, **kwargs: True)]


PATCHES = [
    Patch(
        "attention masks",
        "Transformers takes a fake tensor for a graph capture and builds a mask that no batch without padding has",
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
