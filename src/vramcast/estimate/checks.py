"""Contradictions between values: every one of a job at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from vramcast.algorithms import generates, is_apart, is_grouped, learns, serves
from vramcast.catalog.gpus import Gpu
from vramcast.errors import Mistake, Mistakes
from vramcast.estimate.lengths import prompt_len
from vramcast.memory.alloc_conf import parse
from vramcast.models.arch import Arch
from vramcast.models.cache.kinds import cache_kinds, text_config
from vramcast.models.cache.windows import spans
from vramcast.types.job import Fact
from vramcast.types.settings import ADAPTED, Settings
from vramcast.units import divisors, show_bytes

_DEFAULT = "vramcast default"


def check_model(
    settings: Settings, arch: Arch, facts: Mapping[str, Fact], warnings: list[str], mistakes: Mistakes
) -> set[str]:
    """Collect mistakes and warnings about values that do not go with the model; gives the paths with mistakes."""
    origin = _origins(facts)
    contradicted: set[str] = set()
    heads, _ = arch.heads
    for path, ranks in (("tp", settings.tp), ("engine.tp", settings.engine_tp)):
        if heads % ranks:
            _does_not_divide(path, ranks, "heads", heads, origin(path), f"{arch.name} config.json", mistakes)
            contradicted.add(path)
    _check_lora(settings, arch, origin, mistakes)
    _check_images(settings, arch, origin, mistakes)
    _check_window(settings, arch, origin, mistakes)
    contradicted |= _check_attention(settings, arch, origin, mistakes)
    if arch.max_len and settings.seq_len > arch.max_len:
        warnings.append(f"seq_len = {settings.seq_len:,} is longer than {arch.name} was made for ({arch.max_len:,})")
    return contradicted


def _check_attention(
    settings: Settings, arch: Arch, origin: Callable[[str], str], mistakes: Mistakes
) -> set[str]:
    """Eager attention where it is not modelled, or another where the model's class has none."""
    runs = settings.engine_kind == "hf" and generates(settings)
    if arch.ends.without and runs:
        mistakes.add(
            f"{arch.model_type} is modelled in training, and not yet where the model generates",
            **{"from": origin("algorithm"), "allowed": "sft"},
        )
    if settings.attention == "eager" and runs and arch.ends.kernel != "eager":
        mistakes.add(
            "attention = eager is modelled in training, and not yet where the model generates",
            **{"from": origin("attention"), "allowed": "flash, efficient"},
        )
        return {"attention"}
    other = settings.attention == "efficient" or (settings.attention == "flash" and arch.ends.alone)
    if other and arch.ends.kernel == "eager":
        mistakes.add(
            f"attention = {settings.attention} is not there for {arch.model_type}: Transformers has none for its class",
            **{"from": origin("attention"), "allowed": "eager" if arch.ends.alone else "eager, flash"},
        )
        return {"attention"}
    return set()


def check(
    settings: Settings, facts: Mapping[str, Fact], gpu: Gpu | None, warnings: list[str], mistakes: Mistakes
) -> None:
    """Collect mistakes and warnings about values that do not go together."""
    origin = _origins(facts)
    if settings.gpus > 1 and not learns(settings) and not serves(settings):
        mistakes.add(
            "inference on several GPUs is not modelled yet",
            **{"algorithm": origin("algorithm"), "gpus": origin("gpus"), "allowed": "1"},
        )
    _check_engines(settings, origin, mistakes)
    _check_offload(settings, origin, mistakes)
    _check_busy(settings, gpu, origin, mistakes)
    for path in ("shard_size", "reference.shard_size"):
        size = facts[path].value if path in facts else None
        if isinstance(size, int) and settings.gpus % size:
            _does_not_divide(path, size, "gpus", settings.gpus, origin(path), origin("gpus"), mistakes)
    _check_units(settings, origin, mistakes)
    if is_grouped(settings):
        _check_group(settings, origin, mistakes)
        warnings += _group_warnings(settings)
    warnings += _cut(settings)
    if learns(settings) and settings.tuning == "frozen":
        mistakes.add("tuning = frozen leaves nothing to train", **{"from": origin("tuning"), "allowed": "full, lora"})
    if not learns(settings):
        _check_lengths(settings, origin, mistakes)
    _check_cache(settings, origin, mistakes)
    with mistakes.collect():
        parse(settings.allocator, f"{origin('allocator')}  allocator")
    if gpu is not None and not gpu.has_bf16 and "bf16" in (settings.compute_dtype, settings.weights_dtype):
        warnings.append(f"{gpu.driver_name} has no bf16 units: frameworks refuse bf16 there; set compute_dtype=fp16")


def rests_on_said(mistake: Mistake) -> bool:
    """What does not go together are values that were said: no default is among them."""
    return bool(mistake.context) and _DEFAULT not in mistake.context.values()


def _origins(facts: Mapping[str, Fact]) -> Callable[[str], str]:
    """Path -> where its value is from."""
    return lambda path: str(facts[path].origin) if path in facts else _DEFAULT


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
    if is_grouped(settings) and not settings.reshard:
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
    from vramcast.models.adapters.methods import moved  # a large file, which few jobs need

    found = moved(arch.model_type, settings.lora_targets or [], arch.linears)
    unknown = [name for name in found.linears if name not in arch.linears]
    if unknown:
        mistakes.add(
            f"lora.targets: {', '.join(unknown)} match no linear layer of {arch.name}",
            **{"from": origin("lora.targets"), "allowed": ", ".join((*arch.linears, "all-linear"))},
        )
    if found.lacking:
        mistakes.add(
            f"lora.targets: {', '.join(found.lacking)} must be targeted too: packed experts have them in one parameter",
            **{"from": origin("lora.targets")},
        )
    if found.parameters and settings.lora_dropout:
        mistakes.add(
            f"lora.dropout = {settings.lora_dropout} with adapters on packed experts: PEFT has none there",
            **{"from": origin("lora.dropout"), "lora.targets": origin("lora.targets"), "allowed": "0"},
        )
    narrowest = _narrowest(arch, settings.lora_targets or [])
    if settings.lora_rank > narrowest:
        mistakes.add(
            f"lora.rank = {settings.lora_rank} is above the width of a layer it adapts ({narrowest})",
            **{"from": origin("lora.rank"), "allowed": f"1 to {narrowest}"},
        )


def _narrowest(arch: Arch, targets: list[str]) -> int:
    """The least width that goes into an adapted layer; what comes out may be narrower, as of a gate of one number."""
    linears = {name: weight for block in arch.kinds for weight in block.weights
               if (name := weight.name.removesuffix(".weight")) in block.linears()}  # fmt: skip
    widths = {name: int(weight.shape[-1]) for name, weight in linears.items()}
    adapted = [width for name, width in widths.items() if name.rpartition(".")[2] in targets]
    return min(adapted or widths.values(), default=1 << 30)


def _check_images(settings: Settings, arch: Arch, origin: Callable[[str], str], mistakes: Mistakes) -> None:
    tokens, sight = settings.image_tokens or 0, arch.ends.sight
    if not tokens:
        return
    said, size = {"from": origin("image_tokens")}, int(sight.image) if sight is not None else 0
    room = prompt_len(settings) if settings.algorithm in ("inference", "grpo") else settings.seq_len
    if not arch.sees:
        mistakes.add(f"image_tokens = {tokens}: {arch.name} has no vision tower", **said, allowed="0")
    elif sight is None:
        mistakes.add(f"images of model type {arch.model_type} are not modelled yet", **said, allowed="0")
    elif size and tokens % size:
        allowed = f"multiples of {size}, such as {-(-tokens // size) * size}"
        mistakes.add(f"image_tokens = {tokens}: an image of {arch.name} has {size}", **said, allowed=allowed)
    elif tokens > room:
        mistakes.add(f"image_tokens = {tokens} is more than a sequence or its prompt has ({room})", **said)


_CACHES = {"vllm": ("bf16", "fp16", "fp8"), "hf": ("int4", "int8")}
"""engine.kind -> what a cache may be kept in; vLLM's in fp32 with fp32 weights only, Transformers' where quantised"""


def _check_cache(settings: Settings, origin: Callable[[str], str], mistakes: Mistakes) -> None:
    kind, dtype = settings.engine_kind, settings.engine_kv_dtype
    quantised = kind == "hf" and settings.engine_cache == "quantised"
    own = kind == "vllm" and dtype == settings.engine_dtype
    if dtype is not None and (kind == "vllm" or quantised) and not own and dtype not in _CACHES[kind]:
        mistakes.add(
            f"engine.kv_dtype = {dtype} is no dtype of a cache with engine.kind = {kind}",
            **{"from": origin("engine.kv_dtype"), "allowed": ", ".join(_CACHES[kind])},
        )


def _check_window(settings: Settings, arch: Arch, origin: Callable[[str], str], mistakes: Mistakes) -> None:
    if settings.engine_kind != "hf" or settings.engine_cache != "quantised":
        return
    seen = spans(arch.model_type, text_config(arch.config), len(arch.layout.layers()), arch.source)
    windows = [span.tokens for span in seen if span.tokens]
    kept = cache_kinds(arch.layout, arch.config, arch.source)
    other = [kind for kind in kept if any(part.keeps != "token" or part.dtype != "cache" for part in kind.parts)]
    if other and not windows:
        mistakes.add(
            f"engine.cache = quantised is for layers that keep keys and values: {arch.name} has "
            f"{len(other[0].layers)} of {other[0].name}",
            **{"from": origin("engine.cache"), "allowed": "dynamic, static, offloaded"},
        )
    if windows:
        mistakes.add(
            f"engine.cache = quantised is for layers that see all tokens: {arch.name} has {len(windows)} that "
            f"see {windows[0]}",
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


def _cut(settings: Settings) -> Iterator[str]:
    tokens = settings.prompt_len + settings.response_len if settings.prompt_len and settings.response_len else 0
    if settings.engine_max_len and settings.engine_max_len < tokens:
        yield (
            f"engine.max_len = {settings.engine_max_len:,} is below prompt_len + response_len = {tokens:,}: "
            "longer sequences are cut or refused"
        )


def _group_warnings(settings: Settings) -> Iterator[str]:
    if settings.engine_kind == "vllm" and settings.engine_process == "server":
        yield (
            "engine.process = server: the engine has GPUs of its own, which are not forecast here; the answer is about "
            f"{'the GPU that trains' if settings.gpus == 1 else f'the {settings.gpus} GPUs that train'}"
        )
    prompts = settings.prompts_per_step
    if settings.mini_batch and prompts and settings.mini_batch > prompts:
        yield f"mini_batch = {settings.mini_batch:,} is above prompts_per_step = {prompts:,}: verl refuses that"
    if settings.group == 1 and settings.grpo_variant != "reinforce_pp":
        yield "group = 1: a group of one response has no advantage to learn from"


def _check_engines(settings: Settings, origin: Callable[[str], str], mistakes: Mistakes) -> None:
    """Who generates, and on how many GPUs."""
    tp, count, kind = settings.engine_tp, settings.engine_count, settings.engine_kind
    if not learns(settings) and kind == "none":
        mistakes.add(
            "engine.kind = none: nothing would generate",
            **{"engine.kind": origin("engine.kind"), "algorithm": origin("algorithm"), "allowed": "hf, vllm"},
        )
    if not generates(settings) or kind != "vllm" or is_apart(settings):
        return
    if settings.gpus % tp:
        _does_not_divide("engine.tp", tp, "gpus", settings.gpus, origin("engine.tp"), origin("gpus"), mistakes)
    elif count is not None and count * tp > settings.gpus:
        mistakes.add(
            f"engine.count = {count} engines of {tp} GPUs each are more than gpus = {settings.gpus}",
            **{"engine.count": origin("engine.count"), "engine.tp": origin("engine.tp"), "gpus": origin("gpus"),
               "allowed": f"at most {settings.gpus // tp}"},
        )  # fmt: skip
    if not learns(settings) and settings.engine_sleep != "none":
        mistakes.add(
            f"engine.sleep = {settings.engine_sleep} is modelled beside a trainer, and not yet where nothing trains",
            **{"engine.sleep": origin("engine.sleep"), "algorithm": origin("algorithm"), "modelled": "none"},
        )


def _check_offload(settings: Settings, origin: Callable[[str], str], mistakes: Mistakes) -> None:
    """What waits on the host does so between phases: a step on the host, or weights streamed from it, is another
    thing."""
    homes = {"offload.weights": settings.offload_weights}
    if learns(settings):
        homes["offload.optimizer"] = settings.offload_optimizer
    for path, home in homes.items():
        if home == "cpu" and not is_grouped(settings):
            mistakes.add(
                f"{path} = {home} is not modelled yet",
                **{"from": origin(path), "modelled": "none; cpu with algorithm = grpo, between its phases"},
            )


def _check_busy(settings: Settings, gpu: Gpu | None, origin: Callable[[str], str], mistakes: Mistakes) -> None:
    if gpu is not None and settings.busy_bytes >= gpu.total_bytes.value:
        mistakes.add(
            f"busy_bytes = {show_bytes(settings.busy_bytes)}: other processes cannot hold that much of {gpu.id}",
            **{"busy_bytes": origin("busy_bytes"), "allowed": f"less than {show_bytes(gpu.total_bytes.value)}"},
        )


def _check_group(settings: Settings, origin: Callable[[str], str], mistakes: Mistakes) -> None:
    here = settings.engine_kind == "vllm" and not is_apart(settings)
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
