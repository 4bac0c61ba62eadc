"""The edits: each a small function from a job to the paths to set, or to the reason why it does not apply.

A docstring is the lever's page of the manual: what it does and what it costs.
"""

from __future__ import annotations

from typing import TypeAlias

from vramcast.algorithms import is_grouped, learns
from vramcast.estimate import Resolved
from vramcast.types.paths import Value
from vramcast.types.result import Forecast

Edits: TypeAlias = dict[str, Value]
Ladder: TypeAlias = list[Edits]
"""the same edit in steps, the smallest change first: a job that does not fit goes down until it does"""


def recompute(job: Resolved, answer: Forecast) -> Edits | str:
    """Recompute activations in backward: keep one hidden state a layer, pay about a third more compute."""
    if not _trains(job):
        return _NOTHING_TRAINS
    return {"recompute": "full"} if job.settings.recompute == "none" else "activations are recomputed already"


def non_reentrant(job: Resolved, answer: Forecast) -> Edits | str:
    """torch's newer checkpoint: no second output of a block, and FSDP 1 lets go of what backward is done with."""
    if job.settings.recompute == "none" or not _trains(job):
        return "nothing is recomputed"
    return {"recompute.reentrant": False} if job.settings.recompute_reentrant else "the newer checkpoint runs already"


def attention_kernel(job: Resolved, answer: Forecast) -> Edits | str:
    """torch's own kernels (`sdpa`) instead of eager attention, which keeps a score of every pair of tokens: the same
    function, rounded otherwise."""
    return {"attention": None} if job.settings.attention == "eager" else "a kernel without scores runs already"


def fused_loss(job: Resolved, answer: Forecast) -> Edits | str:
    """Head and loss in one kernel, tile by tile: the matrix of tokens × vocabulary is never whole."""
    if not _trains(job):
        return _NOTHING_TRAINS
    return {"loss": "fused"} if job.settings.loss == "full" else f"the loss is {job.settings.loss} already"


def smaller_batch(job: Resolved, answer: Forecast) -> Ladder | str:
    """A smaller micro-batch and as much more accumulation: the same step from smaller pieces."""
    settings = job.settings
    if settings.token_budget and learns(settings):
        return "micro-batches are cut by tokens"
    if settings.micro_batch == 1:
        return "one sequence at a time already"
    if not learns(settings):
        return [{"micro_batch": part} for part in _halves(settings.micro_batch, 1)]
    if settings.mini_batch:  # the accumulation follows
        return [{"micro_batch": part} for part in _parts(settings.micro_batch)]
    step = settings.micro_batch * settings.accumulation
    return [{"micro_batch": part, "accumulation": step // part} for part in _parts(settings.micro_batch)]


def smaller_budget(job: Resolved, answer: Forecast) -> Ladder | str:
    """Fewer tokens in a packed micro-batch, down to one sequence."""
    budget = job.settings.token_budget
    if not budget:
        return "micro-batches are not cut by tokens"
    steps: Ladder = [{"token_budget": part} for part in _halves(budget, job.settings.seq_len)]
    return steps or "one sequence fills it already"


def smaller_scoring(job: Resolved, answer: Forecast) -> Ladder | str:
    """Fewer sequences, or tokens, in a pass that computes log-probabilities."""
    if not is_grouped(job.settings):
        return "no pass computes log-probabilities only"
    by_tokens = job.settings.logprob_token_budget is not None
    path, least = ("logprob.token_budget", job.settings.seq_len) if by_tokens else ("logprob.micro_batch", 1)
    names = (path, f"reference.{path}") if job.settings.reference_kind == "copy" else (path,)
    roles = {name: job.facts[name].value for name in names if name in job.facts}
    steps = {name: _halves(size, least) for name, size in roles.items() if isinstance(size, int)}
    longest = max(map(len, steps.values()), default=0)
    found: Ladder = [
        {name: parts[min(at, len(parts) - 1)] for name, parts in steps.items() if parts} for at in range(longest)
    ]
    return found or "no log-probability pass has a batch of its own to halve"


def _halves(size: int, least: int) -> list[int]:
    """Half of it, half of that, and so on; the last is `least`."""
    found: list[int] = []
    while size > least:
        size = max(size // 2, least)
        found.append(size)
    return found


_LARGEST_FACTOR = 100
"""a batch with a larger prime factor is cut to the last divisor in one step"""


def _parts(size: int) -> list[int]:
    """Divisors of a batch, each a part of the one before, the largest first."""
    found: list[int] = []
    factor = 2
    while size > 1:
        while size % factor:
            factor = factor + 1 if factor < _LARGEST_FACTOR else size
        size //= factor
        found.append(size)
    return found


def bf16_weights(job: Resolved, answer: Forecast) -> Edits | str:
    """Load the weights in bf16 instead of fp32: half the weights, gradients and states, and no autocast copies."""
    if job.settings.weights_dtype != "fp32":
        return f"weights are {job.settings.weights_dtype} already"
    return {"weights_dtype": "bf16"} if job.gpu.has_bf16 else "the card has no bf16 units"


def fused_step(job: Resolved, answer: Forecast) -> Edits | str:
    """The fused optimizer kernel: no copy of the variance during the step."""
    if not _trains(job):
        return _NOTHING_TRAINS
    if job.settings.optimizer != "adamw":
        return "only AdamW has one"
    return {"optimizer.impl": "fused"} if job.settings.optimizer_impl != "fused" else "the step is fused already"


def eight_bit_optimizer(job: Resolved, answer: Forecast) -> Edits | str:
    """AdamW with 8-bit states: a quarter of fp32 states, half of bf16 ones; slightly other updates."""
    if not _trains(job):
        return _NOTHING_TRAINS
    return {"optimizer": "adamw_8bit"} if job.settings.optimizer == "adamw" else "the optimizer is not AdamW"


def expandable(job: Resolved, answer: Forecast) -> Edits | str:
    """Expandable segments: the allocator keeps no remainders of 2 MiB segments. vLLM's sleep mode forbids them."""
    if job.settings.engine_sleep != "none":
        return "the engine's sleep mode forbids them"
    return {"allocator": "expandable_segments:True"} if not job.settings.allocator else "the allocator is set already"


def shard(job: Resolved, answer: Forecast) -> Edits | str:
    """FSDP: share weights, gradients and states over the GPUs instead of copying them to each."""
    if not _trains(job):
        return _NOTHING_TRAINS
    if job.settings.gpus == 1:
        return "there is one GPU"
    return {"shard": "fsdp2"} if job.settings.shard == "none" else "states are shared already"


def sleep(job: Resolved, answer: Forecast) -> Edits | str:
    """Let the engine sleep while the trainer works: its weights and cache go, and come back for the next rollout."""
    if not _has_engine(job):
        return _NO_ENGINE
    return {"engine.sleep": "2"} if job.settings.engine_sleep == "none" else "the engine sleeps already"


def fraction(job: Resolved, answer: Forecast) -> Edits | str:
    """The nearest engine share at which one sequence fits into it and everything else beside it, with its whole
    range."""
    engine = next((engine for group in answer.groups for engine in group.engines), None)
    if engine is None or engine.fraction_low is None or engine.fraction_high is None:
        return _NO_ENGINE
    if job.settings.engine_kv_bytes is not None:
        return "the cache has a size of its own: engine.kv_bytes"
    now, low, high = job.settings.engine_fraction or 0.0, engine.fraction_low, engine.fraction_high
    if low > high:
        return f"no share is sure to work: {low} is needed, {high} is free beside the rest"
    if low <= now <= high:
        return f"{now} is between {low} and {high} already"
    return {"engine.fraction": high if now > high else low}


def engine(job: Resolved, answer: Forecast) -> Edits | str:
    """Generate with vLLM instead of the trained model's own code: paged cache, weights in bf16, but a second copy."""
    if not is_grouped(job.settings):
        return "nothing is generated in training"
    if job.settings.engine_kind == "vllm":
        return "vLLM generates already"
    return {"engine.kind": "vllm", "engine.sleep": "2"}


def offload_optimizer(job: Resolved, answer: Forecast) -> Edits | str:
    """Optimizer states wait on the host while nothing trains."""
    return _offload(job, "optimizer", job.settings.offload_optimizer)


def offload_weights(job: Resolved, answer: Forecast) -> Edits | str:
    """The trainer's weights wait on the host while the engine generates."""
    return _offload(job, "weights", job.settings.offload_weights)


def _offload(job: Resolved, what: str, home: str) -> Edits | str:
    if not _has_engine(job):
        return "nothing else runs between the steps"
    if job.settings.shard == "none" or job.settings.gpus == 1:
        return "only FSDP moves them"
    return {f"offload.{what}": "cpu"} if home == "none" else "they wait on the host already"


def offload_reference(job: Resolved, answer: Forecast) -> Edits | str:
    """The reference's weights stay on the host and come unit by unit for its pass."""
    if job.settings.reference_kind != "copy":
        return "there is no reference model"
    if job.role("reference").offload_weights != "none":
        return "it is on the host already"
    if job.settings.shard == "none" or job.settings.gpus == 1:
        return "only FSDP moves it"
    return {"reference.offload.weights": "cpu"}


def no_reference(job: Resolved, answer: Forecast) -> Edits | str:
    """A KL coefficient of 0 needs no reference model."""
    return {"reference.kind": "none"} if job.settings.reference_kind == "copy" else "there is no reference model"


def lora(job: Resolved, answer: Forecast) -> Edits | str:
    """Train adapters instead of all weights: gradients and optimizer states all but vanish."""
    if not _trains(job):
        return _NOTHING_TRAINS
    if job.settings.tuning != "full":
        return "adapters are trained already"
    shared: Edits = {"reference.kind": "adapter_off"} if job.settings.reference_kind == "copy" else {}
    return {"tuning": "lora", "lora.rank": job.settings.lora_rank, **shared}


def lower_rank(job: Resolved, answer: Forecast) -> Edits | str:
    """Half the rank of the adapters."""
    if job.settings.tuning != "lora" or not _trains(job):
        return "no adapters are trained"
    return {"lora.rank": job.settings.lora_rank // 2} if job.settings.lora_rank > 1 else "the rank is 1"


def shorter(job: Resolved, answer: Forecast) -> Ladder | str:
    """Shorter sequences, or responses: activations, logits and cache shrink."""
    path, length = "seq_len", job.settings.seq_len
    if is_grouped(job.settings):
        path, length = "response_len", job.settings.response_len or 0
    steps: Ladder = [{path: part} for part in _halves(length, max(length // 8, 1))]
    return steps or "sequences are one token long"


def smaller_group(job: Resolved, answer: Forecast) -> Edits | str:
    """Half the responses per prompt: fewer sequences in a rollout, a noisier baseline."""
    if not is_grouped(job.settings) or job.settings.group < 4:
        return "there is no group to halve"
    return {"group": job.settings.group // 2}


def zero(job: Resolved, answer: Forecast) -> Edits | str:
    """ZeRO-3: DeepSpeed's way of sharing weights, gradients and states."""
    return {"shard": "zero3"} if _trains(job) and job.settings.gpus > 1 else "there is one GPU"


def tensor_parallel(job: Resolved, answer: Forecast) -> Edits | str:
    """Cut every layer over two GPUs."""
    return {"tp": 2} if job.settings.gpus > 1 else "there is one GPU"


def quantise(job: Resolved, answer: Forecast) -> Edits | str:
    """QLoRA: a frozen base in 4 bits under trained adapters; in inference the same without them."""
    if job.settings.quant_kind != "none":
        return "the weights are packed already"
    return {"tuning": "qlora", "quant.kind": "nf4"} if _trains(job) else {"quant.kind": "nf4"}


def double_quantise(job: Resolved, answer: Forecast) -> Edits | str:
    """Scales of 4-bit weights quantised once more: 0.37 bits less a weight."""
    settings = job.settings
    if settings.quant_kind not in ("nf4", "fp4") or job.quantisation is not None:
        return "no weights are packed to 4 bits while loading"
    return {"quant.double": True} if not settings.quant_double else "the scales are packed already"


def engine_quant(job: Resolved, answer: Forecast) -> Edits | str:
    """fp8 weights in the engine: half its copy."""
    return {"engine.quant": "fp8"} if _has_engine(job) else _NO_ENGINE


def kv_dtype(job: Resolved, answer: Forecast) -> Edits | str:
    """Keys and values in fp8: twice the tokens in the same pool."""
    return {"engine.kv_dtype": "fp8"} if _has_engine(job) else _NO_ENGINE


_NOTHING_TRAINS = "nothing trains"
_NO_ENGINE = "no engine generates on these GPUs"


def _trains(job: Resolved) -> bool:
    return learns(job.settings)


def _has_engine(job: Resolved) -> bool:
    settings = job.settings
    return is_grouped(settings) and settings.engine_kind == "vllm" and settings.engine_process != "server"
