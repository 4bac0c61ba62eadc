"""What the child process is asked to run: a job as the traced step reads it. It knows nothing of torch."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from vramcast.estimate.lengths import scored_len, total_len
from vramcast.estimate.resolve import Resolved
from vramcast.types.settings import ADAPTED, Settings


class Adapters(Struct, frozen=True, kw_only=True):
    """LoRA as PEFT is told."""

    rank: int
    targets: list[str] | None
    """None: PEFT's own for the model"""
    dtype: str
    """dtype of the adapters after the trainer's casts"""
    dropout: float


class Packed(Struct, frozen=True, kw_only=True):
    """A base that bitsandbytes packs while it loads."""

    kind: str
    """nf4, fp4 or int8"""
    double: bool
    storage: str
    compute_dtype: str
    rest_dtype: str
    """dtype of embedding, norms and head, after `prepare_model_for_kbit_training` if that runs"""


class Question(Struct, frozen=True, kw_only=True):
    """One training step. Equal questions have equal recordings under equal versions: the key of the cache."""

    config: dict[str, Any]
    """the model's config.json"""
    trust_remote_code: bool = False
    weights_dtype: str
    compute_dtype: str
    autocast: bool
    tuning: Literal["full", "lora", "frozen"]
    adapters: Adapters | None = None
    packed: Packed | None = None

    sequences: int
    seq_len: int
    scored_len: int
    """tokens of each sequence that have a label"""
    accumulation: int
    steps: int = 2

    trainer: Literal["loop", "sft", "dpo", "grpo"]
    """whose loss path: Transformers' own loss in a plain loop, or a trainer of TRL"""
    loss: Literal["full", "fused"]
    outputs_kept: bool
    outputs_fp32: bool
    clips: bool
    recompute: Literal["none", "reentrant", "plain"]
    optimizer: str
    optimizer_impl: str

    attention: str
    capability: str
    """compute capability of the card: kernels differ"""
    cublas_bytes: int
    """workspace of a cuBLAS handle"""
    cublaslt_bytes: int
    """workspace of cublasLt, beside it; 0 where they are one"""


def question_of(job: Resolved, config: dict[str, Any]) -> Question:
    """The step of a resolved job on one rank.

    Args:
        config: the model's config.json.
    """
    settings = job.settings
    adapted = settings.tuning in ADAPTED
    trl = job.framework.startswith("trl")
    return Question(
        config=config,
        weights_dtype=settings.weights_dtype,
        compute_dtype=settings.compute_dtype,
        autocast=settings.autocast,
        tuning="lora" if adapted else "full",
        adapters=_adapters(settings) if adapted else None,
        packed=_packed(settings),
        sequences=settings.micro_batch,
        seq_len=total_len(settings),
        scored_len=scored_len(settings, job.recipe),
        accumulation=settings.accumulation,
        trainer="sft" if trl else "loop",
        loss="fused" if settings.loss == "fused" else "full",
        outputs_kept=job.recipe.outputs_kept,
        outputs_fp32=job.recipe.outputs_fp32,
        clips=True,
        recompute=_recompute(settings),
        optimizer=settings.optimizer,
        optimizer_impl=settings.optimizer_impl,
        attention=settings.attention or "flash",
        capability=job.gpu.compute_capability,
        cublas_bytes=job.gpu.cublas_workspace_bytes.value,
        cublaslt_bytes=(1 << 20) if job.gpu.before_hopper else 0,
    )


def _recompute(settings: Settings) -> Literal["none", "reentrant", "plain"]:
    if settings.recompute == "none":
        return "none"
    return "reentrant" if settings.recompute_reentrant else "plain"


def _adapters(settings: Settings) -> Adapters:
    return Adapters(
        rank=settings.lora_rank,
        targets=settings.lora_targets,
        dtype=settings.lora_dtype,
        dropout=settings.lora_dropout,
    )


def _packed(settings: Settings) -> Packed | None:
    if settings.quant_kind == "none":
        return None
    return Packed(
        kind=settings.quant_kind,
        double=settings.quant_double,
        storage=settings.quant_storage or "uint8",
        compute_dtype=settings.quant_compute_dtype or settings.weights_dtype,
        rest_dtype=settings.quant_rest_dtype or settings.weights_dtype,
    )
