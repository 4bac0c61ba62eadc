"""What a framework puts on a model before PEFT wraps it: TRL's fused head, Liger's kernels."""

from __future__ import annotations

from typing import Any

from vramcast.trace.question import Question

_OUTPUTS = {
    "sft": ("log_probs", "entropy", "is_top1"),
    "dpo": ("log_probs", "entropy", "mean_logits", "is_top1"),
    "grpo": ("log_probs", "entropy"),
}
"""what a trainer asks of TRL's fused head (trl/trainer/*_trainer.py: add_fused_lm_head)"""

_LAYERS = ("rope", "rms_norm", "layer_norm", "swiglu", "geglu")
"""what Liger replaces in layers (liger_kernel/transformers/monkey_patch.py)"""


def put_head(model: Any, question: Question, *, learns: bool = True) -> None:
    """Give a model the head and the kernels of its loss; a reference is asked for log-probabilities only."""
    if question.kernels == "liger" or question.loss == "liger":
        from liger_kernel.transformers.monkey_patch import _apply_liger_kernel_to_instance

        layers = dict.fromkeys(_LAYERS, question.kernels == "liger")
        _apply_liger_kernel_to_instance(model=model, fused_linear_cross_entropy=question.loss == "liger", **layers)
    if question.loss == "fused":
        from trl.trainer.utils import add_fused_lm_head

        add_fused_lm_head(model, outputs=_OUTPUTS[question.trainer] if learns else ("log_probs",))
