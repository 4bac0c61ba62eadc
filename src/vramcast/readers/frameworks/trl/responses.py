"""TRL keys that say how responses are made: how many at once, and what generates them. Read in trl 1.16.0."""

from __future__ import annotations

from vramcast.readers.config import ConfigReader
from vramcast.readers.frameworks.trl.keys import DTYPES
from vramcast.readers.keys import Key, named, whole

_GROUPS = {"grpo": 8, "rloo": 2}
"""num_generations of GRPOConfig and RLOOConfig, when the file does not say it."""
BATCH = 8
"""per_device_train_batch_size and per_device_eval_batch_size, when the file does not say them."""


def generation(config: ConfigReader) -> None:
    """`generation_batch_size` counts sequences over all GPUs; ours counts prompts."""
    key = "generation_batch_size"
    if config.get(key) is not None:
        with config.reading(key):
            sequences, group = whole(config.get(key)), _group(config)
            if sequences % group:
                raise ValueError(f"{sequences} is not divisible by num_generations = {group}")
            config.fact("prompts_per_step", sequences // group, key)
    _steps(config)
    if config.get("num_iterations") is not None:
        with config.reading("num_iterations"):
            whole(config.get("num_iterations"))
            config.rest("num_iterations", "the same responses are learned from again, one micro-batch at a time")


def _group(config: ConfigReader) -> int:
    return whole(config.get("num_generations") or _GROUPS.get(config.trainer, 8))


def _steps(config: ConfigReader) -> None:
    """How many micro-batches of responses are generated at once: those of an optimizer step, unless this says it."""
    key = "steps_per_generation"
    if config.get(key) is None:
        return
    with config.reading(key):
        steps, accumulation = whole(config.get(key)), whole(config.get("gradient_accumulation_steps") or 1)
        if config.get("generation_batch_size") is not None:
            raise ValueError("generation_batch_size says it already: TRL refuses both")
        micro = whole(config.get("per_device_train_batch_size") or BATCH)
        group = _group(config)
        if steps == accumulation:
            config.rest(key, "as many as gradient_accumulation_steps, the default")
        elif config.get("use_vllm") and config.get("vllm_mode") == "server" and micro * accumulation % group == 0:
            config.rest(key, "the server generates")
        else:
            text = f"generates {micro} × {steps} responses a GPU at once: this × GPUs / num_generations are the prompts"
            config.needs("prompts_per_step", key, text)


def engine(config: ConfigReader) -> None:
    """What generates beside `use_vllm` and its sizes."""
    vllm = bool(config.flag("use_vllm"))
    cache, model = config.get("cache_implementation"), config.get("vllm_model_impl")
    dtype, device = config.get("vllm_dtype"), config.get("vllm_device")
    if cache is not None and (vllm or cache == "dynamic"):
        config.rest("cache_implementation", "vLLM generates" if vllm else "the default")
    elif cache is not None:
        config.refuse("cache_implementation", "the cache of Transformers' own generation")
    if model is not None and (model == "vllm" or not vllm):
        config.rest("vllm_model_impl", "only with use_vllm" if not vllm else "the default")
    elif model is not None:
        config.refuse("vllm_model_impl", "vLLM runs Transformers' code")
    if dtype == "auto":
        config.rest("vllm_dtype", "the default")
    config.keys((Key("vllm_dtype", "engine.dtype", named(DTYPES)),) if dtype != "auto" else ())
    if device == "auto" or not vllm:
        config.rest_of("only with use_vllm" if not vllm else "the default", "vllm_device")
    elif device is not None:
        config.fact("engine.process", "trainer" if device in ("cuda", "cuda:0") else "server", "vllm_device")
    if config.flag("ds3_gather_for_generation") is not None:
        config.rest("ds3_gather_for_generation", "only with ZeRO-3")
    corrects = config.flag("vllm_importance_sampling_correction")
    if corrects is not None:
        why = "the default" if corrects else "the pass that it leaves out stays below the learning step"
        config.rest("vllm_importance_sampling_correction", why)
