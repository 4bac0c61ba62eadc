"""How batches become a loss: Transformers' own, other heads, and the functions of TRL's trainers."""

from __future__ import annotations

from vramcast.errors import refuse
from vramcast.trace.child.losses.calls import Accelerator, Batch, Path
from vramcast.trace.child.losses.heads import HEADS, Head, checkpointed
from vramcast.trace.child.losses.loop import Loop
from vramcast.trace.child.losses.older import OlderDpo, OlderGrpo, OlderSft
from vramcast.trace.child.losses.trainers import Dpo, Grpo, Sft
from vramcast.trace.child.model import Parts
from vramcast.trace.child.watch import Watch
from vramcast.trace.question import Question

__all__ = ["Batch", "Path", "path_of"]

_TRL = {"sft": Sft, "dpo": Dpo, "grpo": Grpo}
_OLDER = {"sft": OlderSft, "dpo": OlderDpo, "grpo": OlderGrpo}


def path_of(question: Question, parts: Parts, watch: Watch) -> Path:
    """The loss path of a question.

    Raises:
        Refused: a trainer that has no such loss.
    """
    accelerator = Accelerator(question)
    for model in (parts.model, parts.reference):
        if model is not None:
            accelerator.prepare_model(model)
    if question.loss in ("fused", "full") and question.trainer != "loop":
        table = _TRL if question.loss == "fused" else _OLDER
        return table[question.trainer](question, parts, watch, accelerator)
    if question.trainer in ("dpo", "grpo") or question.loss == "fused":
        raise refuse(f"loss = {question.loss} is not traced for {question.trainer}", traced="full, fused")
    if question.trainer == "sft" and question.loss == "chunked":
        return Head(question, parts, checkpointed)
    return Head(question, parts, HEADS[question.loss]) if question.loss in HEADS else Loop(question, parts)
