"""What the child process is asked to run: a job as the traced step reads it. It knows nothing of torch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from vramcast.catalog.gpus import Gpu
from vramcast.catalog.models import ModelRow
from vramcast.errors import Mistake, Mistakes, refuse
from vramcast.estimate.lengths import scored_len, total_len
from vramcast.estimate.resolve import Resolved
from vramcast.memory.terms.runtime import LT_WORKSPACE
from vramcast.types.paths import PATHS
from vramcast.types.settings import ADAPTED, Settings

Loss: TypeAlias = Literal["full", "fp32", "fused", "chunked", "compiled", "liger", "cut"]
"""How the loss meets the logits.

full: logits of every token, and the framework's loss on them; fp32: logits are fp32 before that loss
fused: TRL's fused head (1.15 and later); chunked: logits in chunks; compiled: full logits, a loss made by torch.compile
liger: Liger's fused linear cross-entropy; cut: Apple's cut cross-entropy
"""


class Adapters(Struct, frozen=True, kw_only=True):
    """LoRA as PEFT is told."""

    rank: int
    targets: list[str] | None
    """None: PEFT's own for the model"""
    dtype: str
    """dtype of the adapters after the trainer's casts"""
    dropout: float


class Packed(Struct, frozen=True, kw_only=True):
    """A base that bitsandbytes packs."""

    kind: str
    """nf4, fp4 or int8"""
    double: bool
    storage: str
    compute_dtype: str
    rest_dtype: str
    """dtype of embedding, norms and head, after `prepare_model_for_kbit_training` if that runs"""
    ready: bool = False
    """the checkpoint is packed already"""
    clears_cache: bool | None = None
    """`prepare_model_for_kbit_training` gives cached memory back at its end; None: as the installed PEFT does"""


class Question(Struct, frozen=True, kw_only=True, tag="job"):
    """One training step. Equal questions have equal recordings under equal versions: the key of the cache."""

    config: dict[str, Any]
    """the model's config.json"""
    code: str = ""
    """the folder of a model's own code, where that is to be run"""
    weights_dtype: str
    compute_dtype: str
    autocast: bool
    tuning: Literal["full", "lora", "frozen"]
    adapters: Adapters | None = None
    packed: Packed | None = None
    device_map: bool = False
    """weights are read onto the card one by one; packed ones always are"""

    sequences: int
    seq_len: int
    scored_len: int
    """tokens of each sequence that have a label"""
    image_tokens: int = 0
    """tokens of each sequence that images take"""
    accumulation: int
    steps: int = 2

    trainer: Literal["loop", "sft", "dpo", "grpo"]
    """whose loss path: Transformers' own loss in a plain loop or its Trainer, or a trainer of TRL"""
    loss: Loss
    loss_chunk: int = 0
    """tokens in a chunk of a chunked loss; 0: the framework's own"""
    kernels: Literal["none", "liger"] = "none"
    """replacement kernels for the layers; Liger's fused head is `loss = liger`"""
    variant: str = ""
    """which loss of a preference or reinforcement trainer, by TRL's `loss_type`; empty: its first"""
    beta: float = 0.0
    """weight of the distance to the reference; above 0 the trainer of GRPO scores under the reference"""
    reference: Literal["none", "copy", "adapter_off", "precomputed"] = "none"
    """what scores beside the policy"""
    old_logprobs: bool = False
    """GRPO scores its rollout under the policy before it learns"""
    prompt_len: int = 0
    """tokens of a prompt (DPO, GRPO); the rest of a sequence is scored"""
    outputs_kept: bool
    outputs_fp32: bool
    scores: str = ""
    """how GRPO takes log-probabilities from whole logits; it and the next three: see `types/recipe.py`"""
    outputs_named: bool = False
    entropy: str = ""
    accuracy: str = ""
    clips: bool
    recompute: Literal["none", "reentrant", "plain", "selective"]
    """selective: attention and every second matrix product are kept"""
    optimizer: str
    optimizer_impl: str

    attention: str
    capability: str
    """compute capability of the card: kernels differ"""
    cublas_bytes: int
    """workspace of a cuBLAS handle"""
    cublaslt_bytes: int
    """workspace of cublasLt, beside it; 0 where they are one"""


class OwnStep(Struct, frozen=True, kw_only=True, tag="own"):
    """A user's own step, on a card."""

    target: str
    """module:function"""
    folder: str
    """where modules are looked for first"""
    steps: int = 2
    recompute: Literal["none", "reentrant", "plain"] = "plain"
    attention: str
    total_bytes: int = 0
    """of the card"""
    capability: str
    cublas_bytes: int
    cublaslt_bytes: int


class ClassQuestion(Struct, frozen=True, kw_only=True, tag="class"):
    """A class of Transformers whose parameters are to be counted."""

    config: dict[str, Any]


class AdapterQuestion(Struct, frozen=True, kw_only=True, tag="adapter"):
    """A method of PEFT on a class of Transformers, whose parameters are to be counted."""

    config: dict[str, Any]
    """of the model"""
    adapter: dict[str, Any]
    """adapter_config.json, `peft_type` in PEFT's spelling"""
    dtype: str
    """of the weights: with AdaLoRA what PEFT upcasts trains as well"""
    source: str = ""


SEEN = ("gemma3", "llava", "qwen2_5_vl", "qwen2_vl", "qwen3_vl")
"""model types whose batches may have images"""
Asked: TypeAlias = Question | OwnStep | ClassQuestion | AdapterQuestion
TRACED: dict[str, tuple[Any, ...]] = {
    "algorithm": ("sft", "pretrain", "dpo", "grpo"),
    "gpus": (1,),
    "tuning": ("full", "lora", "qlora"),
    "quant.kind": ("none", "nf4", "fp4", "int8"),
    "offload.optimizer": ("none",),
    "offload.weights": ("none",),
}
"""values that a trace runs; what the forecast does not know either is refused there"""
ALSO: dict[str, tuple[Any, ...]] = {
    "algorithm": ("dpo",),
    "engine.process": ("server",),
    "attention": ("eager", "math", "cudnn"),
    "fused_kernels": ("liger",),
    "loss": ("fp32", "chunked", "compiled"),
    "optimizer": ("muon",),
    "recompute": ("selective",),
}
"""values that a trace runs, and the formulas do not know yet"""


def question_of(job: Resolved, config: dict[str, Any], *, code: str = "") -> Question:
    """The step of a resolved job on one rank.

    Args:
        config: the model's config.json.
        code: where the model's own code is, if it is to be run.

    Raises:
        Refused: what cannot be traced yet, all of it.
    """
    settings = job.settings
    mistakes = Mistakes(untraced({path: getattr(settings, PATHS[path].attribute) for path in TRACED}))
    _check_generation(settings, mistakes)
    if settings.image_tokens and config.get("model_type") not in SEEN:
        mistakes.add(f"images of model type {config.get('model_type')} are not traced yet", allowed=", ".join(SEEN))
    mistakes.done()
    adapted = settings.tuning in ADAPTED
    return Question(
        config=config,
        code=code,
        weights_dtype=settings.weights_dtype,
        compute_dtype=settings.compute_dtype,
        autocast=settings.autocast,
        tuning="lora" if adapted else "full",
        adapters=_adapters(settings) if adapted else None,
        packed=_packed(job, config),
        device_map=job.recipe.device_map,
        sequences=settings.micro_batch,
        seq_len=total_len(settings),
        scored_len=scored_len(settings, job.recipe),
        image_tokens=settings.image_tokens or 0,
        accumulation=settings.accumulation,
        trainer=_trainer(job),
        loss=_loss(job),
        loss_chunk=settings.loss_chunk or 0,
        kernels="liger" if settings.fused_kernels == "liger" else "none",
        variant=settings.grpo_variant if settings.algorithm == "grpo" else "",
        beta=_BETA.get(settings.algorithm, 0.0),
        reference=_reference(settings),
        old_logprobs=job.recipe.old_logprobs,
        prompt_len=max(total_len(settings) - settings.response_len, 1) if settings.response_len else 0,
        outputs_kept=job.recipe.outputs_kept,
        outputs_fp32=job.recipe.outputs_fp32,
        scores=job.recipe.scores,
        outputs_named=job.recipe.outputs_named,
        entropy=job.recipe.entropy,
        accuracy=job.recipe.accuracy,
        clips=True,
        recompute=_recompute(settings),
        optimizer=settings.optimizer,
        optimizer_impl=settings.optimizer_impl,
        attention=settings.attention or "flash",
        **workspaces(job.gpu),
    )


def own_code(model: ModelRow, *, trusted: bool) -> str:
    """Where a model's own code is, if it brings some and that is trusted.

    Raises:
        Refused: its configuration is not where Transformers looks for it.
    """
    if not trusted or "auto_map" not in model.config:
        return ""
    if os.path.basename(model.source) != "config.json":
        raise refuse(f"{model.where} brings its own code", use="a folder with that code and a config.json")
    return os.path.dirname(os.path.abspath(model.source))


def untraced(values: Mapping[str, Any]) -> Iterator[Mistake]:
    """What of these paths cannot be traced yet."""
    for path, known in TRACED.items():
        if path in values and values[path] not in known:
            yield Mistake(
                f"{path} = {values[path]} is not traced yet", traced=", ".join(map(str, known)), use="vramcast check"
            )


def _check_generation(settings: Settings, mistakes: Mistakes) -> None:
    """What generates is not traced, so it must not be on this card."""
    if settings.algorithm == "grpo" and settings.engine_kind != "none" and settings.engine_process != "server":
        mistakes.add(
            f"engine.kind = {settings.engine_kind} beside the trainer is not traced yet: only the learning step is",
            allowed="engine.process=server, or engine.kind=none",
            use="vramcast check",
        )


def workspaces(gpu: Gpu) -> dict[str, Any]:
    """What a question has to know of a card."""
    return {
        "capability": gpu.compute_capability or "",
        "cublas_bytes": gpu.cublas_workspace_bytes.value,
        "cublaslt_bytes": LT_WORKSPACE if gpu.before_hopper else 0,
    }


_BETA = {"dpo": 0.1, "grpo": 0.04}
"""TRL's, where a reference scores; its value does not matter to memory"""


def _trainer(job: Resolved) -> Literal["loop", "sft", "dpo", "grpo"]:
    if not job.framework.startswith("trl"):
        return "loop"
    algorithm = job.settings.algorithm
    return algorithm if algorithm in ("dpo", "grpo") else "sft"


def _loss(job: Resolved) -> Loss:
    """Liger's fused head comes with its kernels, unless TRL's own head is there."""
    settings = job.settings
    if settings.fused_kernels == "liger" and settings.loss == "full" and not job.framework.startswith("trl"):
        return "liger"
    return "full" if settings.loss == "vocab_parallel" else settings.loss


def _reference(settings: Settings) -> Literal["none", "copy", "adapter_off", "precomputed"]:
    return "none" if settings.reference_kind == "swapped" else settings.reference_kind


def _recompute(settings: Settings) -> Literal["none", "reentrant", "plain", "selective"]:
    if settings.recompute in ("none", "selective"):
        return settings.recompute
    return "reentrant" if settings.recompute_reentrant else "plain"


def _adapters(settings: Settings) -> Adapters:
    return Adapters(
        rank=settings.lora_rank,
        targets=settings.lora_targets,
        dtype=settings.lora_dtype,
        dropout=settings.lora_dropout,
    )


def _packed(job: Resolved, config: dict[str, Any]) -> Packed | None:
    settings = job.settings
    if settings.quant_kind == "none":
        return None
    return Packed(
        kind=settings.quant_kind,
        double=settings.quant_double,
        storage=settings.quant_storage or "uint8",
        compute_dtype=settings.quant_compute_dtype or settings.weights_dtype,
        rest_dtype=settings.quant_rest_dtype or settings.weights_dtype,
        ready="quantization_config" in config,
        clears_cache=None if job.recipe.clears_cache else False,
    )
