"""Contradictions between values: every one of a job at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from vramcast.catalog.gpus import Gpu
from vramcast.errors import Mistakes
from vramcast.memory.alloc_conf import parse
from vramcast.models.arch import Arch
from vramcast.types.job import Fact
from vramcast.types.settings import ADAPTED, Settings
from vramcast.units import divisors


def check(
    settings: Settings,
    arch: Arch,
    facts: Mapping[str, Fact],
    gpu: Gpu | None,
    warnings: list[str],
    mistakes: Mistakes,
) -> set[str]:
    """Collect mistakes and warnings about values that do not go together; gives the paths with mistakes."""

    def origin(path: str) -> str:
        return str(facts[path].origin) if path in facts else "vramcast default"

    contradicted: set[str] = set()
    heads = int(arch.dims.heads)
    for path, ranks in (("tp", settings.tp), ("engine.tp", settings.engine_tp)):
        if heads % ranks:
            _does_not_divide(path, ranks, "heads", heads, origin(path), f"{arch.name} config.json", mistakes)
            contradicted.add(path)
    if settings.gpus > 1 and settings.algorithm == "inference":
        mistakes.add("inference on several GPUs is not modelled yet", **{"from": origin("gpus"), "allowed": "1"})
    if settings.gpus % (settings.shard_size or 1):
        _does_not_divide("shard_size", settings.shard_size or 1, "gpus", settings.gpus, origin("shard_size"),
                         origin("gpus"), mistakes)  # fmt: skip
    _check_units(settings, origin, mistakes)
    if settings.algorithm == "grpo":
        _check_group(settings, origin, mistakes)
        warnings += _group_warnings(settings)
    _check_lora(settings, arch, origin, mistakes)
    if settings.algorithm in ("sft", "pretrain") and settings.tuning == "frozen":
        mistakes.add("tuning = frozen leaves nothing to train", **{"from": origin("tuning"), "allowed": "full, lora"})
    if settings.algorithm == "inference":
        _check_lengths(settings, origin, mistakes)
    _check_cache(settings, arch, origin, mistakes)
    if settings.attention == "eager" and (settings.algorithm == "inference" or settings.engine_kind == "hf"):
        mistakes.add(
            "attention = eager is modelled in training, and not yet where the model generates",
            **{"from": origin("attention"), "allowed": "flash, efficient"},
        )
        contradicted.add("attention")
    with mistakes.collect():
        parse(settings.allocator, origin("allocator"))
    if arch.max_len and settings.seq_len > arch.max_len:
        warnings.append(f"seq_len = {settings.seq_len:,} is longer than {arch.name} was made for ({arch.max_len:,})")
    if gpu is not None and not gpu.has_bf16 and "bf16" in (settings.compute_dtype, settings.weights_dtype):
        warnings.append(f"{gpu.driver_name} has no bf16 units: frameworks refuse bf16 there; set compute_dtype=fp16")
    return contradicted


def _does_not_divide(
    path: str, ranks: int, what: str, whole: int, origin: str, whole_origin: str, mistakes: Mistakes
) -> None:
    mistakes.add(
        f"{path} = {ranks} does not divide {what} = {whole}",
        **{path: origin, what: whole_origin, "allowed": ", ".join(map(str, divisors(whole)))},
    )


def _check_units(settings: Settings, origin: Callable[[str], str], mistakes: Mistakes) -> None:
    """What FSDP's units cannot be, and where what they leave gathered is not modelled."""
    if settings.gpus == 1 or settings.shard not in ("fsdp1", "fsdp2"):
        return
    if settings.algorithm == "grpo" and not settings.reshard:
        mistakes.add(
            "reshard = false is modelled in sft and pretrain: what stays gathered after a pass that only scores is not",
            **{"from": origin("reshard"), "allowed": "true"},
        )
    flat = settings.shard == "fsdp1" and settings.wrap == "none" and settings.tuning in ADAPTED
    if flat and settings.lora_dtype != settings.weights_dtype:
        mistakes.add(
            f"FSDP 1 makes one tensor of a unit, which has one dtype: weights are {settings.weights_dtype}, adapters "
            f"{settings.lora_dtype}",
            **{"weights_dtype": origin("weights_dtype"), "lora.dtype": origin("lora.dtype"), "wrap": origin("wrap"),
               "help": "wrap blocks, or use shard=fsdp2"},
        )  # fmt: skip


def _check_lora(settings: Settings, arch: Arch, origin: Callable[[str], str], mistakes: Mistakes) -> None:
    if settings.tuning not in ADAPTED:
        return
    if not settings.lora_targets:
        mistakes.add(
            f"lora.targets is not known: PEFT has none of its own for model type {arch.model_type}",
            help="--set lora.targets=q_proj,v_proj",
        )
    unknown = [name for name in settings.lora_targets or [] if name not in (*arch.linears, "all-linear")]
    if unknown:
        mistakes.add(
            f"lora.targets: {', '.join(unknown)} match no linear layer of {arch.name}",
            **{"from": origin("lora.targets"), "allowed": ", ".join((*arch.linears, "all-linear"))},
        )
    widest = min(int(arch.dims.hidden), int(arch.dims.kv))
    if settings.lora_rank > widest:
        mistakes.add(
            f"lora.rank = {settings.lora_rank} is above the width of a layer it adapts ({widest})",
            **{"from": origin("lora.rank"), "allowed": f"1 to {widest}"},
        )


_CACHES = {"vllm": ("bf16", "fp16", "fp8"), "hf": ("int4", "int8")}
"""engine.kind -> what a cache may be kept in; vLLM's in fp32 with fp32 weights only, Transformers' where quantised"""


def _check_cache(settings: Settings, arch: Arch, origin: Callable[[str], str], mistakes: Mistakes) -> None:
    kind, dtype = settings.engine_kind, settings.engine_kv_dtype
    quantised = kind == "hf" and settings.engine_cache == "quantised"
    own = kind == "vllm" and dtype == settings.engine_dtype
    if dtype is not None and (kind == "vllm" or quantised) and not own and dtype not in _CACHES[kind]:
        mistakes.add(
            f"engine.kv_dtype = {dtype} is no dtype of a cache with engine.kind = {kind}",
            **{"from": origin("engine.kv_dtype"), "allowed": ", ".join(_CACHES[kind])},
        )
    if quantised and arch.sliding_layers:
        mistakes.add(
            f"engine.cache = quantised is for layers that see all tokens: {arch.name} has {arch.sliding_layers} that "
            f"see {arch.window}",
            **{"from": origin("engine.cache"), "allowed": "dynamic, static, offloaded"},
        )


def _check_lengths(settings: Settings, origin: Callable[[str], str], mistakes: Mistakes) -> None:
    if settings.prompt_len and not settings.response_len and settings.prompt_len > settings.seq_len:
        mistakes.add(
            f"prompt_len = {settings.prompt_len} is above seq_len = {settings.seq_len}",
            **{"prompt_len": origin("prompt_len"), "seq_len": origin("seq_len")},
        )


def _check_reference(settings: Settings, origin: Callable[[str], str], mistakes: Mistakes) -> None:
    if settings.reference_kind == "adapter_off" and settings.tuning == "full":
        mistakes.add(
            "reference.kind = adapter_off needs adapters, and all weights are trained",
            **{"reference.kind": origin("reference.kind"), "tuning": origin("tuning"), "allowed": "copy, none"},
        )


def _group_warnings(settings: Settings) -> Iterator[str]:
    tokens = settings.prompt_len + settings.response_len if settings.prompt_len and settings.response_len else 0
    if settings.engine_kind == "vllm" and settings.engine_process == "server":
        yield (
            "engine.process = server: the engine has GPUs of its own, which are not forecast here; the answer is about "
            f"{'the GPU that trains' if settings.gpus == 1 else f'the {settings.gpus} GPUs that train'}"
        )
    if settings.engine_max_len and settings.engine_max_len < tokens:
        yield (
            f"engine.max_len = {settings.engine_max_len:,} is below prompt_len + response_len = {tokens:,}: "
            "longer sequences are cut or refused"
        )
    prompts = settings.prompts_per_step
    if settings.mini_batch and prompts and settings.mini_batch > prompts:
        yield f"mini_batch = {settings.mini_batch:,} is above prompts_per_step = {prompts:,}: verl refuses that"
    if settings.group == 1 and settings.grpo_variant != "reinforce_pp":
        yield "group = 1: a group of one response has no advantage to learn from"


def _check_group(settings: Settings, origin: Callable[[str], str], mistakes: Mistakes) -> None:
    here = settings.engine_kind == "vllm" and settings.engine_process != "server"
    if here and settings.gpus % settings.engine_tp:
        _does_not_divide(
            "engine.tp", settings.engine_tp, "gpus", settings.gpus, origin("engine.tp"), origin("gpus"), mistakes
        )
    if here and settings.engine_fraction is None and settings.engine_kv_bytes is None:
        mistakes.add("engine.fraction is not known", help="--set engine.fraction=0.5")
    _check_reference(settings, origin, mistakes)
    if settings.prompts_per_step is None:
        batch = settings.micro_batch * settings.accumulation * settings.gpus
        if batch % settings.group:
            mistakes.add(
                f"group = {settings.group} does not divide the batch of {batch} responses",
                **{
                    "group": origin("group"),
                    "batch": f"micro_batch {settings.micro_batch} × accumulation {settings.accumulation} "
                    f"× gpus {settings.gpus}",
                    "help": "change one of the three so that their product is a multiple of the group",
                },
            )
    elif settings.prompts_per_step * settings.group % settings.gpus:
        responses = settings.prompts_per_step * settings.group
        mistakes.add(
            f"gpus = {settings.gpus} does not divide the {responses} responses of a rollout",
            **{
                "gpus": origin("gpus"),
                "batch": f"prompts_per_step {settings.prompts_per_step} × group {settings.group}",
                "help": "every GPU takes the same number of responses",
            },
        )
