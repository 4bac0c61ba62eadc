"""Trainers of TRL before 1.15: logits of every position, and metrics over all of them.

What those versions did in their own functions is done here with the installed TRL's helpers, which are the same.
"""

from __future__ import annotations

from typing import Any

import torch

from vramcast.trace.child.losses.calls import Accelerator, Batch
from vramcast.trace.child.losses.trainers import Dpo, Grpo, Sft, reads
from vramcast.trace.child.model import Parts
from vramcast.trace.child.watch import Watch
from vramcast.trace.question import Question


class OlderSft(Sft):
    """The model's own loss, then entropy and accuracy from its logits, which live until both are known.

    Source: trl/trainer/sft_trainer.py, compute_loss (0.20 to 1.6; before 0.20 without the entropy).
    """

    def loss(self, batch: Batch) -> tuple[torch.Tensor, Any]:
        from trl.trainer.utils import entropy_from_logits

        outputs = self.parts.model(**batch, use_cache=False, num_items_in_batch=self.labels)
        with torch.no_grad():
            entropy = entropy_from_logits(outputs.logits)
            mask = batch["attention_mask"]
            (torch.sum(entropy * mask) / mask.sum()).item()
            logits = outputs.logits[..., :-1, :].contiguous()
            labels = batch["labels"][..., 1:].contiguous()
            right = (logits.argmax(dim=-1) == labels) & (labels != -100)
            right.sum().item()
        return outputs.loss, None


class OlderDpo(Dpo):
    """Log-probabilities from shifted copies of the policy's and the reference's logits, then metrics over the policy's.

    Source: trl/trainer/dpo_trainer.py, _compute_loss (0.29 to 1.14).
    """

    def loss(self, batch: Batch) -> tuple[torch.Tensor, Any]:
        from trl.models.utils import disable_gradient_checkpointing

        model, scored = self.parts.model, batch["completion_mask"][..., 1:].contiguous()
        labels = batch["input_ids"][..., 1:].contiguous()
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        outputs, logits, policy = _sums(model, inputs, labels, scored)
        if self.question.reference == "precomputed":
            reference = torch.cat([batch["ref_chosen_logps"], batch["ref_rejected_logps"]])
        else:
            scorer = model if self.parts.reference is None else self.parts.reference
            kwargs = self.trainer.args.gradient_checkpointing_kwargs
            with torch.no_grad(), disable_gradient_checkpointing(model, kwargs), self._adapter_off(scorer is model):
                kept = _sums(scorer, inputs, labels, scored)
            reference = kept[-1]
        chosen, rejected = (policy - reference).chunk(2)
        loss = -torch.nn.functional.logsigmoid(self.trainer.beta * (chosen - rejected)).mean()
        _preference_metrics(logits, labels, scored)
        del outputs
        return loss, None

    def _adapter_off(self, same: bool) -> Any:
        from contextlib import nullcontext

        from trl.trainer.utils import use_adapter

        return use_adapter(self.parts.model, None) if same and self.question.adapters is not None else nullcontext()


def _sums(model: Any, inputs: Batch, labels: torch.Tensor, scored: torch.Tensor) -> tuple[Any, Any, Any]:
    """The outputs, the shifted logits, and the log-probability of each completion."""
    from trl.trainer.utils import selective_log_softmax

    outputs = model(**inputs, use_cache=False)
    logits = outputs.logits[..., :-1, :].contiguous()
    each = selective_log_softmax(logits, labels)
    each = each.masked_fill(scored == 0, 0.0)
    return outputs, logits, each.sum(dim=1)


def _preference_metrics(logits: torch.Tensor, labels: torch.Tensor, scored: torch.Tensor) -> None:
    """Entropy, mean logits of the completions (each a copy of its rows), accuracy."""
    from trl.trainer.utils import entropy_from_logits

    detached = logits.detach()
    entropy_from_logits(detached)[scored.bool()].mean().item()
    chosen, rejected = detached.chunk(2, dim=0)
    chosen_mask, rejected_mask = scored.chunk(2, dim=0)
    for half, mask in ((chosen, chosen_mask), (rejected, rejected_mask)):
        half[mask.bool()].mean(-1).sum().item()
    right = (chosen.argmax(dim=-1) == labels[: len(labels) // 2]) & chosen_mask.bool()
    right.sum().item()


class OlderGrpo(Grpo):
    """Logits of the completion, divided in place, their log-probabilities, and the entropy without a gradient.

    Source: trl/trainer/grpo_trainer.py, _get_per_token_logps_and_entropies (1.0 to 1.14; before 1.0 a divided copy).
    """

    def __init__(self, question: Question, parts: Parts, watch: Watch, accelerator: Accelerator) -> None:
        super().__init__(question, parts, watch, accelerator)
        vars(self.trainer)["_get_per_token_logps_and_entropies"] = self._each

    def _each(
        self, model: Any, ids: torch.Tensor, mask: torch.Tensor, kept: int, *, compute_entropy: bool = False, **_: Any
    ) -> tuple[Any, Any, Any]:
        from trl.trainer.utils import entropy_from_logits, selective_log_softmax

        found: list[torch.Tensor] = []
        entropies: list[torch.Tensor] = []
        size = self.question.sequences
        for start in range(0, len(ids), size):
            part = slice(start, start + size)
            outputs = model(input_ids=ids[part], attention_mask=mask[part], logits_to_keep=kept + 1, use_cache=False)
            logits = outputs.logits[:, :-1, :][:, -kept:, :]
            logits.div_(1.0)
            found.append(selective_log_softmax(logits, ids[part, -kept:]))
            if compute_entropy:
                with torch.no_grad():
                    entropies.append(entropy_from_logits(logits))
        return torch.cat(found), torch.cat(entropies) if entropies else None, None

    def log_probabilities(self, scorer: Any, ids: torch.Tensor, mask: torch.Tensor, kept: int) -> torch.Tensor:
        with reads(self.kind):
            return self._each(scorer, ids, mask, kept)[0]
