"""Optimizers by their names in the catalogue, as their own classes."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.errors import refuse
from vramcast.trace.question import Question

_IMPLEMENTATIONS: dict[str, dict[str, bool]] = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "loop": {"foreach": False},
}


def optimizer_of(question: Question, parameters: list[torch.nn.Parameter]) -> Any:
    """The optimizer of a question.

    Raises:
        Refused: one that is not traced yet.
    """
    how = _IMPLEMENTATIONS[question.optimizer_impl]
    each = {key: value for key, value in how.items() if key == "foreach"}
    match question.optimizer:
        case "adamw":
            return torch.optim.AdamW(parameters, **how)
        case "sgd":
            return torch.optim.SGD(parameters, lr=1e-3, **how)
        case "sgd_momentum":
            return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, **how)
        case "adafactor_torch":
            return torch.optim.Adafactor(parameters, **each)
        case "adafactor":
            from transformers.optimization import Adafactor

            return Adafactor(parameters, scale_parameter=False, relative_step=False, lr=1e-3)
        case _:
            raise refuse(f"optimizer = {question.optimizer} is not traced yet")
