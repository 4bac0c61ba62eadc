"""Values that follow from others: from the card, the model, and a framework's way of counting batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vramcast.algorithms import generates, is_grouped, serves
from vramcast.catalog.gpus import Gpu
from vramcast.models.arch import Arch
from vramcast.types.job import Fact, Origin, settings_of
from vramcast.types.paths import Value
from vramcast.types.settings import ADAPTED, Settings

_OLD_PROMPT_LIMIT = 512
"""GRPOConfig.max_prompt_length up to TRL 0.25"""
_SHARE = 0.92
"""of the card, that vLLM takes when nothing is said"""


def derived(facts: Mapping[str, Fact], arch: Arch | None, gpu: Gpu | None) -> dict[str, Fact]:
    """The facts, and those that follow from them."""
    result = dict(facts)
    for rule in (_attention, _targets, _images, _generator, _serving, _prompt, _accumulation, _sequence):
        settings = settings_of({path: fact.value for path, fact in result.items()})
        for path, value, why in rule(settings, arch, gpu):
            if path not in facts or facts[path].value is None or path == "seq_len":
                result[path] = Fact(path, value, Origin(why))
    return result


_Rule = Iterator[tuple[str, Value, str]]


def _attention(settings: Settings, arch: Arch | None, gpu: Gpu | None) -> _Rule:
    if settings.attention is None and arch is not None and arch.ends.kernel:
        yield "attention", arch.ends.kernel, f"the classes of {arch.model_type} have no other"
    elif settings.attention is None:
        flash = gpu is None or gpu.has_bf16
        why = "torch's choice on sm_80 and newer" if flash else "torch's choice before sm_80"
        yield "attention", "flash" if flash else "efficient", why


def _targets(settings: Settings, arch: Arch | None, gpu: Gpu | None) -> _Rule:
    if arch is not None and settings.tuning in ADAPTED and not settings.lora_targets:
        yield "lora.targets", list(arch.default_targets), f"PEFT's targets for {arch.model_type}"


def _images(settings: Settings, arch: Arch | None, gpu: Gpu | None) -> _Rule:
    if arch is not None and arch.sees and settings.image_tokens is None:
        yield "image_tokens", 0, "batches are text: towers are loaded and do not run"


def _generator(settings: Settings, arch: Arch | None, gpu: Gpu | None) -> _Rule:
    if generates(settings) and settings.engine_kind == "none":
        yield "engine.kind", "hf", "nobody names an engine: the model's own generate"


def _serving(settings: Settings, arch: Arch | None, gpu: Gpu | None) -> _Rule:
    """An engine that runs alone has its own defaults."""
    if not serves(settings):
        return
    if settings.engine_kv_bytes is None:
        yield "engine.fraction", _SHARE, "vLLM 0.33 gpu_memory_utilization"
    if arch is not None:
        yield "engine.max_len", int(arch.max_len) or None, f"vLLM's max_model_len: the limit of {arch.name}"
        if arch.dtype in ("bf16", "fp16"):
            yield "engine.dtype", arch.dtype, "vLLM's dtype auto: the checkpoint's"


def _prompt(settings: Settings, arch: Arch | None, gpu: Gpu | None) -> _Rule:
    if is_grouped(settings) and settings.prompt_len is None:
        yield "prompt_len", _OLD_PROMPT_LIMIT, "nobody limits prompts: the limit TRL had up to 0.25 is assumed"


def _accumulation(settings: Settings, arch: Arch | None, gpu: Gpu | None) -> _Rule:
    """A mini-batch of prompts, cut over GPUs and micro-batches."""
    if is_grouped(settings) and settings.mini_batch:
        length = (settings.prompt_len or 0) + (settings.response_len or settings.seq_len)
        micro = max((settings.token_budget or 0) // length, 1) if settings.token_budget else settings.micro_batch
        steps = -(-settings.mini_batch * settings.group // (settings.gpus * micro))
        yield "accumulation", max(steps, 1), "mini_batch × group ÷ (gpus × micro_batch)"


def _sequence(settings: Settings, arch: Arch | None, gpu: Gpu | None) -> _Rule:
    if is_grouped(settings) and settings.prompt_len and settings.response_len:
        yield "seq_len", settings.prompt_len + settings.response_len, "prompt_len + response_len"
