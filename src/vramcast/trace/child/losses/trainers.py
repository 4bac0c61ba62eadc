"""The loss functions of the installed TRL's trainers, run on an object that has what they read and nothing else.

Their metrics (entropy, accuracies, `.item()`) are part of the trace: some of them hold memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from vramcast.trace.child.losses.calls import Accelerator, Batch, language_batch, tokens
from vramcast.trace.child.losses.scoring import Scoring
from vramcast.trace.child.model import Parts
from vramcast.trace.child.patches.patch import Moved
from vramcast.trace.child.recompute import checkpoint_kwargs
from vramcast.trace.child.watch import Watch
from vramcast.trace.question import Question


class Trainer:
    """What the three trainers have in common: a trainer of TRL without its constructor."""

    kind = ""
    """the class of TRL"""

    def __init__(self, question: Question, parts: Parts, watch: Watch, accelerator: Accelerator) -> None:
        self.question = question
        self.parts = parts
        self.watch = watch
        self.scoring = Scoring(watch)
        self.trainer = self._light(accelerator)

    def fields(self) -> dict[str, Any]:
        """Attributes that this trainer's loss reads beside the common ones."""
        return {}

    def args(self) -> dict[str, Any]:
        """Fields of the trainer's configuration that its loss reads."""
        return {}

    def _light(self, accelerator: Accelerator) -> Any:
        import trl

        with reads(self.kind):
            trainer = object.__new__(getattr(trl, self.kind))
        question = self.question
        common = {
            "model": self.parts.model,
            "ref_model": self.parts.reference,
            "accelerator": accelerator,
            "aux_loss_enabled": False,
            "_metrics": {"train": defaultdict(list), "eval": defaultdict(list)},
            "_total_train_tokens": 0,
            "_tp_size": 1,
            "beta": question.beta if question.reference != "none" else 0.0,
        }
        vars(trainer).update(common, **self.fields())
        trainer.args = SimpleNamespace(
            report_to=[],
            gradient_checkpointing_kwargs=checkpoint_kwargs(question),
            gradient_accumulation_steps=question.accumulation,
            **self.args(),
        )
        return trainer


@contextmanager
def reads(kind: str) -> Generator[None]:
    """A trainer's function that reads what this one has not is another version's.

    Raises:
        Moved: an attribute is missing.
    """
    try:
        yield
    except (AttributeError, ImportError) as error:
        raise Moved(f"TRL's {kind}: {error}") from error


class Sft(Trainer):
    """SFTTrainer.compute_loss."""

    kind = "SFTTrainer"

    def fields(self) -> dict[str, Any]:
        return {"compute_loss_func": None, "label_smoother": None, "get_tp_size": lambda: 1}

    def args(self) -> dict[str, Any]:
        return {"loss_type": self.question.variant or "nll", "average_tokens_across_devices": True}

    def batches(self) -> Iterable[Batch]:
        """All at once: the Trainer counts their labels first (transformers/trainer.py: get_batch_samples)."""
        batches = [language_batch(self.question) for _ in range(self.question.accumulation)]
        self.labels = sum(batch["labels"].ne(-100).sum() for batch in batches)
        return batches

    def loss(self, batch: Batch) -> tuple[torch.Tensor, Any]:
        with reads(self.kind):
            return self.trainer.compute_loss(self.parts.model, dict(batch), num_items_in_batch=self.labels), None


class Dpo(Trainer):
    """DPOTrainer._compute_loss: chosen and rejected sequences in one batch; the reference scores while the policy's
    activations wait."""

    kind = "DPOTrainer"

    def __init__(self, question: Question, parts: Parts, watch: Watch, accelerator: Accelerator) -> None:
        from trl.trainer.utils import disable_dropout_in_model

        super().__init__(question, parts, watch, accelerator)
        disable_dropout_in_model(parts.model)
        if question.reference in ("copy", "adapter_off"):
            scorer = parts.model if parts.reference is None else parts.reference
            self.scoring.inside_the_loss(scorer, "score.reference")

    def fields(self) -> dict[str, Any]:
        return {
            "precompute_ref_logps": self.question.reference == "precomputed",
            "ld_alpha": None,
            "f_divergence_type": "reverse_kl",
            "f_alpha_divergence_coef": 0.5,
            "loss_types": [self.question.variant or "sigmoid"],
            "loss_weights": [1.0],
            "label_smoothing": 0.0,
            "use_weighting": False,
            "beta": self.question.beta or 0.1,
        }

    def args(self) -> dict[str, Any]:
        return {"max_length": self.question.seq_len, "discopop_tau": 0.05}

    def batches(self) -> Iterable[Batch]:
        """`sequences` pairs: twice as many sequences."""
        pairs, length = self.question.sequences, self.question.seq_len
        batches: list[Batch] = []
        for _ in range(self.question.accumulation):
            batch = {name: tokens(2 * pairs, length) for name in ("input_ids", "attention_mask", "completion_mask")}
            if self.question.reference == "precomputed":
                batch |= {name: torch.zeros(pairs) for name in ("ref_chosen_logps", "ref_rejected_logps")}
            batches.append(batch)
        return batches

    def loss(self, batch: Batch) -> tuple[torch.Tensor, Any]:
        with reads(self.kind):
            return self.trainer._compute_loss(self.parts.model, batch, False), None


class Grpo(Trainer):
    """GRPOTrainer._compute_loss, and its passes over a whole rollout before that."""

    kind = "GRPOTrainer"

    def fields(self) -> dict[str, Any]:
        question = self.question
        length = question.seq_len - question.prompt_len
        return {
            "top_entropy_quantile": 1.0,
            "off_policy_mask_threshold": None,
            "importance_sampling_level": "sequence" if question.variant == "gspo" else "token",
            "loss_type": _GRPO_LOSSES.get(question.variant, question.variant) or "dapo",
            "epsilon_low": 0.2,
            "epsilon_high": 0.2,
            "use_vllm": False,
            "vllm_importance_sampling_correction": False,
            "max_completion_length": length,
            "current_gradient_accumulation_steps": question.accumulation,
            "_entropy_bonus_enabled": False,
            "temperature": 1.0,
            "state": SimpleNamespace(global_step=0),
        }

    def args(self) -> dict[str, Any]:
        return {
            "use_bias_correction_kl": False,
            "delta": None,
            "steps_per_generation": self.question.accumulation,
            "sapo_temperature_pos": 1.0,
            "sapo_temperature_neg": 1.05,
            **{f"vespo_{name}": 2.0 for name in ("k_pos", "lambda_pos", "k_neg", "lambda_neg")},
        }

    def batches(self) -> Iterable[Batch]:
        """The rollout, scored, then cut into micro-batches."""
        rollout = self._rollout()
        self._score(rollout)
        size = self.question.sequences
        for start in range(0, size * self.question.accumulation, size):
            yield {name: x[start : start + size] if x.ndim else x for name, x in rollout.items()}

    def _rollout(self) -> Batch:
        count, prompt = self.question.sequences * self.question.accumulation, self.question.prompt_len
        made = {name: tokens(count, prompt) for name in ("prompt_ids", "prompt_mask")}
        made |= {name: tokens(count, self.question.seq_len - prompt) for name in ("completion_ids", "completion_mask")}
        made["advantages"] = torch.zeros(count)
        made["num_items_in_batch"] = torch.zeros(())
        for tensor in made.values():
            self.watch.tracker.relabel(tensor, "input")
        return made

    def _score(self, rollout: Batch) -> None:
        """Log-probabilities under the policy and the reference (_generate_and_score_completions)."""
        scores: list[tuple[str, str]] = []
        if self.question.old_logprobs:
            scores.append(("score.old", "old_per_token_logps"))
        if self.trainer.beta:
            scores.append(("score.reference", "ref_per_token_logps"))
        if not scores:
            return
        ids = torch.cat([rollout["prompt_ids"], rollout["completion_ids"]], dim=1)
        mask = torch.cat([rollout["prompt_mask"], rollout["completion_mask"]], dim=1)
        for phase, name in scores:
            rollout[name] = self._scored(phase, ids, mask, rollout["completion_ids"].size(1))

    def _scored(self, phase: str, ids: torch.Tensor, mask: torch.Tensor, kept: int) -> torch.Tensor:
        from trl.models.utils import disable_gradient_checkpointing

        model = self.parts.model
        scorer = self.parts.reference if phase == "score.reference" and self.parts.reference is not None else model
        kwargs = self.trainer.args.gradient_checkpointing_kwargs
        with (
            reads(self.kind),
            torch.no_grad(),
            disable_gradient_checkpointing(model, kwargs),
            self.scoring.over(scorer, phase, adapter_off=phase == "score.reference" and scorer is model),
        ):
            return self.log_probabilities(scorer, ids, mask, kept)

    def log_probabilities(self, scorer: Any, ids: torch.Tensor, mask: torch.Tensor, kept: int) -> torch.Tensor:
        return self.trainer._get_per_token_logps_and_entropies(
            scorer, ids, mask, kept, batch_size=self.question.sequences
        )[0]

    def loss(self, batch: Batch) -> tuple[torch.Tensor, Any]:
        with reads(self.kind):
            return self.trainer._compute_loss(self.parts.model, batch), None


_GRPO_LOSSES = {"gspo": "grpo"}
"""names of a method that is TRL's loss with another setting"""
