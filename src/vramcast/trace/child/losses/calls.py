"""What a trainer does around a model's call: batches, autocast, outputs in fp32."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from types import MethodType
from typing import Any, Protocol, TypeAlias

import torch

from vramcast.trace.child.model import DTYPES
from vramcast.trace.child.patches.images import image_batch
from vramcast.trace.question import Question

Batch: TypeAlias = dict[str, torch.Tensor]


class Path(Protocol):
    """Whose code runs between a batch and its loss."""

    def batches(self) -> Iterable[Batch]:
        """The micro-batches of an optimizer step, and what comes before them."""
        ...

    def loss(self, batch: Batch) -> tuple[torch.Tensor, Any]:
        """The loss of a micro-batch, and what the caller holds through backward."""
        ...


class Accelerator:
    """Stands where accelerate's Accelerator is, for one process: gathers give back what they got."""

    num_processes = 1
    parallelism_config = None
    sync_gradients = True
    is_main_process = True
    device = torch.device("cpu")

    def __init__(self, question: Question) -> None:
        self._question = question

    def gather(self, tensor: Any) -> Any:
        return tensor

    gather_for_metrics = gather

    def reduce(self, tensor: Any, reduction: str = "sum") -> Any:
        return tensor

    def unwrap_model(self, model: Any) -> Any:
        return model

    def autocast(self) -> AbstractContextManager[Any]:
        """The job's autocast, or none."""
        if not self._question.autocast:
            return nullcontext()
        return torch.autocast("cpu", dtype=DTYPES[self._question.compute_dtype])

    def prepare_model(self, model: Any) -> None:
        """Autocast around the model's forward, its outputs in fp32 (accelerate/accelerator.py: prepare_model)."""
        if not self._question.autocast:
            return
        forward = _plain(model.forward)

        def under_autocast(*args: Any, **kwargs: Any) -> Any:
            with self.autocast():
                return forward(*args, **kwargs)

        wrapped: Callable[..., Any] = under_autocast
        if self._question.outputs_fp32:
            from accelerate.utils.operations import convert_outputs_to_fp32

            wrapped = convert_outputs_to_fp32(under_autocast)
        bound = hasattr(model.forward, "__func__")
        model.forward = MethodType(wrapped, model) if bound else wrapped


def _plain(forward: Any) -> Any:
    return getattr(forward, "__func__", forward)


def tokens(sequences: int, length: int) -> torch.Tensor:
    """Token ids, masks, labels: 8 bytes each."""
    return torch.zeros((sequences, length), dtype=torch.long)


def language_batch(question: Question) -> Batch:
    """Token ids, attention mask and labels of sequences without padding."""
    size = (question.sequences, question.seq_len)
    batch = {"input_ids": tokens(*size), "attention_mask": tokens(*size), "labels": tokens(*size)}
    return {**batch, **image_batch(question)} if question.image_tokens else batch
