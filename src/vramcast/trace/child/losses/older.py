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

    Source: trl/trainer/sft_trainer.py, compute_loss (0.15 to 1.14).
    """

    def loss(self, batch: Batch) -> tuple[torch.Tensor, Any]:
        outputs = self.parts.model(**batch, use_cache=False, num_items_in_batch=self.labels)
        labels, accuracy = batch["labels"][..., 1:].contiguous(), self.question.accuracy
        with torch.no_grad():
            shifted = outputs.logits[..., :-1, :]
            each = entropies(shifted if accuracy == "view" else outputs.logits, self.question)
            if each is not None:
                each.mean().item()
            if accuracy:
                logits = shifted.contiguous() if accuracy == "copy" else shifted
                right = (logits.argmax(dim=-1) == labels) & (labels != -100)
                right.sum().item()
        return outputs.loss, None


def entropies(logits: torch.Tensor, question: Question) -> torch.Tensor | None:
    """Entropy of every position, as the version computes it: of a sequence at a time, of 128 rows at a time, or not.

    Source: trl/trainer/utils.py, entropy_from_logits.
    """
    if not question.entropy:
        return None
    by_row = question.entropy == "rows"
    flat = logits.reshape(-1, logits.size(-1)) if by_row else logits
    found: list[torch.Tensor] = []
    for part in flat.split(128 if by_row else 1):
        logs = part.log_softmax(dim=-1)
        found.append(-(torch.exp(logs) * logs).sum(-1))
    return torch.cat(found)


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
    """Logits of the completion, divided or not, their log-probabilities, and the entropy without a gradient.

    Source: trl/trainer/grpo_trainer.py, _get_per_token_logps (0.14 to 0.19) and _get_per_token_logps_and_entropies
    (0.20 to 1.14).
    """

    def __init__(self, question: Question, parts: Parts, watch: Watch, accelerator: Accelerator) -> None:
        super().__init__(question, parts, watch, accelerator)
        vars(self.trainer)["_get_per_token_logps_and_entropies"] = self._each

    def _each(
        self, model: Any, ids: torch.Tensor, mask: torch.Tensor, kept: int, *, compute_entropy: bool = False, **_: Any
    ) -> tuple[Any, Any, Any]:
        found: list[torch.Tensor] = []
        measured: list[torch.Tensor] = []
        size = self.question.sequences
        for start in range(0, len(ids), size):
            part = slice(start, start + size)
            outputs = model(input_ids=ids[part], attention_mask=mask[part], logits_to_keep=kept + 1, use_cache=False)
            logits = outputs.logits[:, :-1, :][:, -kept:, :]
            if not self.question.outputs_named:
                del outputs
            if self.question.scores == "in_place":
                logits.div_(1.0)
            elif self.question.scores == "divided":
                logits = logits / 1.0
            found.append(_token_scores(logits, ids[part, -kept:], self.question.scores))
            if compute_entropy:
                with torch.no_grad():
                    each = entropies(logits, self.question)
                measured.append(found[-1].detach() if each is None else each.view(found[-1].shape))
        return torch.cat(found), torch.cat(measured) if compute_entropy else None, None

    def log_probabilities(self, scorer: Any, ids: torch.Tensor, mask: torch.Tensor, kept: int) -> torch.Tensor:
        with reads(self.kind):
            return self._each(scorer, ids, mask, kept)[0]


def _token_scores(logits: torch.Tensor, ids: torch.Tensor, scores: str) -> torch.Tensor:
    """Log-probabilities of ids (trl/trainer/utils.py, selective_log_softmax; 0.14: a log-softmax of every row)."""
    if scores == "kernel":
        return _Kernel.apply(logits, ids)
    if scores != "rows" and logits.dtype == torch.float32:
        picked = torch.gather(logits, dim=-1, index=ids.unsqueeze(-1)).squeeze(-1)
        return picked - torch.stack([torch.logsumexp(row, dim=-1) for row in logits])
    rows = zip(logits, ids, strict=True)
    return torch.stack([row.log_softmax(dim=-1).gather(-1, picks.unsqueeze(-1)).squeeze(-1) for row, picks in rows])


class _Kernel(torch.autograd.Function):
    """One kernel in forward, one in backward, by what they allocate.

    Source: trl/kernels/logprob_entropy.py (1.14).
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        score, _, log_z, expected = (ids.new_empty(ids.shape, dtype=torch.float32) for _ in range(4))
        ctx.save_for_backward(logits, ids, log_z, expected)
        return score

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.empty_like(ctx.saved_tensors[0], memory_format=torch.contiguous_format), None
