"""Why a path changes nothing in a job, by the job's other values. Whether it does is found by answering without it
(`estimate/effects.py`); here is what to say then. The first row that applies gives the cause."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from vramcast.algorithms import ALGORITHMS, generates, is_apart, is_grouped, learns, serves
from vramcast.types.settings import ADAPTED, ROLES, Settings

_Paths: TypeAlias = Callable[[str], bool]
_When: TypeAlias = Callable[[Settings], bool]
_Row: TypeAlias = tuple[_Paths, _When, str]
_SHARDED = ("fsdp1", "fsdp2")


def _of(*names: str) -> _Paths:
    """These paths; a name that ends in a dot stands for all below it."""
    exact, below = frozenset(names), tuple(name for name in names if name.endswith("."))
    return lambda path: path in exact or path.startswith(below)


_learned = _of(
    "tuning", "trainable", "optimizer", "optimizer.impl", "accumulation", "recompute", "recompute.every",
    "recompute.reentrant", "loss", "loss.chunk", "labelled_frac", "state_dtype", "grad_dtype", "master_dtype",
    "packing", "padding", "mini_batch", "offload.optimizer", "offload.gradients", "offload.activations", "lora.",
)  # fmt: skip
"""what only a role that learns has"""


def _scored(path: str) -> bool:
    return path.startswith("logprob.") and path != "logprob.source"


def _of_engines(path: str) -> bool:
    """What an engine has, and `generate` of the model itself does not."""
    return path.startswith("engine.") and path not in ("engine.kind", "engine.cache", "engine.kv_dtype")


def _shards(job: Settings) -> bool:
    return job.shard in _SHARDED and job.gpus > 1


def uses_host(job: Settings) -> bool:
    """Something of the job waits in host memory."""
    return "cpu" in (job.offload_weights, job.offload_optimizer) or job.engine_sleep == "1"


_ABSENT: tuple[_Row, ...] = (
    (_of("lora."), lambda job: job.tuning not in ADAPTED, "only with tuning=lora or qlora"),
    (_of("autocast", "loss", "tuning"), lambda job: not learns(job), "nothing trains in inference"),
    (_learned, lambda job: not learns(job), "nothing trains in inference"),
    (_of("engine.", "prompt_len", "response_len"), lambda job: job.algorithm in ALGORITHMS and not generates(job),
     "this algorithm does not generate"),
    (_of("attention", "compute_dtype", "weights_dtype", "quant.", "token_budget"), serves,
     "an engine has values of its own: engine.dtype, engine.quant, engine.max_batched_tokens"),
    (_of("engine.process"), serves, "the engine is the only process"),
    (_of_engines, lambda job: job.engine_kind != "vllm", "only with engine.kind=vllm"),
    (_of("engine.cache"), lambda job: job.engine_kind != "hf", "only with engine.kind=hf"),
    (_of("engine.kv_dtype"), lambda job: job.engine_kind == "none", "nothing generates on these GPUs"),
    (_of("quant."), lambda job: job.quant_kind == "none", "only with packed weights"),
    (_of("quant.double", "quant.storage"), lambda job: job.quant_kind not in ("nf4", "fp4"),
     "only with quant.kind=nf4 or fp4"),
    (_of("group", "prompts_per_step", "mini_batch", "grpo.variant", "logprob.", "reference.", "reward."),
     lambda job: job.algorithm in ALGORITHMS and not is_grouped(job), "only with algorithm=grpo"),
    (_of("logprob.chunk"), lambda job: job.logprob_entropy != "chunked", "only with logprob.entropy=chunked"),
    (_scored, lambda job: job.logprob_source == "engine", "only with logprob.source=trainer"),
    (_of("recompute.every", "recompute.reentrant"), lambda job: job.recompute == "none", "nothing is recomputed"),
    (_of("loss.chunk"), lambda job: job.loss != "chunked", "only with loss=chunked"),
    (_of("shard", "shard_size", "wrap", "reshard", "buckets", "replicas"), lambda job: job.gpus == 1,
     "only with several GPUs"),
    (_of("shard_size", "wrap", "reshard"), lambda job: job.shard == "none", "only with shard=fsdp1 or fsdp2"),
    (_of("vpp", "schedule"), lambda job: job.pp == 1, "only with pipeline stages (pp)"),
    (_of("host_bytes", "gpus_per_node"), lambda job: not uses_host(job), "nothing of this job is on the host"),
)  # fmt: skip
"""Nothing of the job has this path: no value of it can matter."""
_SAME: tuple[_Row, ...] = (
    (_of("seq_len", "prompt_len", "response_len", "micro_batch", "image_tokens"), serves,
     "an engine takes its share of the card whatever it is asked"),
    (_of("engine."), is_apart,
     "the engine has GPUs of its own, which are not forecast here"),
    (_of("engine.version"), lambda job: True, "the terms of this job are the same in the version that is assumed"),
    (_of("engine.fraction"), lambda job: job.engine_kv_bytes is not None, "engine.kv_bytes says it"),
    (_of("engine.kv_dtype"), lambda job: job.engine_kind == "hf" and job.engine_cache != "quantised",
     "Transformers keeps the model's dtype, unless engine.cache=quantised"),
    (_of("quant.storage"), lambda job: True, "the same bytes, seen as another dtype"),
    (_of("logprob."), lambda job: job.reference_kind == "none", "nothing is scored beside the training step"),
    (_of("grpo.variant"), lambda job: True, "the variants compute other numbers with the same tensors"),
    (_of("token_budget"), lambda job: not learns(job), "generation takes micro_batch sequences"),
    (_of("seq_len"), is_grouped, "a sequence is prompt_len + response_len"),
    (_of("micro_batch"), lambda job: job.token_budget is not None, "token_budget says it"),
    (_of("labelled_frac"), is_grouped, "every token of a response is scored"),
    (_of("labelled_frac"), lambda job: job.loss != "fused", "only a fused loss leaves out tokens without a label"),
    (_of("packing", "padding"), lambda job: True, "every micro-batch is priced full: micro_batch × seq_len tokens"),
    (_of("weights_dtype", "lora.dtype"), lambda job: _shards(job) and job.autocast,
     "FSDP's mixed precision keeps what trains in fp32"),
    (_of("compute_dtype"), lambda job: not (job.autocast or _shards(job)),
     "without autocast products run in the dtype of the weights"),
)  # fmt: skip
"""The job has this path, and its answer does not depend on it."""


def absent(path: str, job: Settings, *, alone: bool = False) -> str:
    """Why no value of a path can matter to this job; empty when one can. `job`: the settings of the policy; `alone`:
    FSDP wraps a model on one GPU too."""
    if alone and job.gpus == 1 and path in ("shard", "wrap", "reshard"):
        return ""
    role, _, name = path.partition(".")
    return _absent_role(role, name, job) if is_of_role(path) else _first(_ABSENT, path, job)


def cause(path: str, job: Settings) -> str:
    """Why a path whose value changes nothing does not; empty when no cause is known."""
    return absent(path, job) or _first(_SAME, path, job)


def is_of_role(path: str) -> bool:
    """A path with a role before it, such as `reference.micro_batch`; `reference.kind` is the job's own."""
    role, _, name = path.partition(".")
    return role in ROLES and name != "kind"


def _first(rows: tuple[_Row, ...], path: str, job: Settings) -> str:
    return next((why for concerns, applies, why in rows if concerns(path) and applies(job)), "")


def _absent_role(role: str, name: str, job: Settings) -> str:
    if role == "rollout" and serves(job):
        return "an engine has values of its own: engine.dtype, engine.quant, engine.max_len"
    if role == "rollout" and is_grouped(job):
        return "what generates has values of its own: engine.dtype, engine.quant, engine.max_len"
    if job.algorithm not in ALGORITHMS:
        return ""
    if role != "reference":
        return f"this job has no {role}"
    if not is_grouped(job):
        return "only with algorithm=grpo"
    if job.reference_kind != "copy":
        return "only with reference.kind=copy"
    return "the reference only scores" if _learned(name) else ""
