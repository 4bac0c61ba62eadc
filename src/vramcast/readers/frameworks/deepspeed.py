"""DeepSpeed's JSON: the stage of ZeRO, what rests on the host, and the sizes that it fixes.

It stands beside the configuration of a trainer, which fills in what is "auto". Read in DeepSpeed 0.19.8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramcast.readers.config import ConfigReader
from vramcast.readers.document import Document
from vramcast.readers.frameworks.trl.keys import flag, one_of
from vramcast.readers.hydra import flat
from vramcast.types.job import Understanding

SIGNS = frozenset("zero_optimization train_micro_batch_size_per_gpu zero_allow_untested_optimizer".split())
"""Keys that only DeepSpeed has."""
_ZERO = "zero_optimization."
_STAGES = {"1": "zero1", "2": "zero2", "3": "zero3"}
_HOMES = {"none": "none", "cpu": "cpu", "nvme": "nvme"}
_OPTIMIZERS = {"adamw": "adamw", "adam": "adamw", "adafactor": "adafactor", "lion": "lion", "sgd": "sgd"}
_CHOOSES = {
    "zero_optimization.zero_hpz_partition_size": "a second partition of the weights (ZeRO++)",
    "zero_optimization.mics_shard_size": "shards inside groups (MiCS)",
    "tensor_parallel": "tensor parallelism",
    "pipeline": "pipeline parallelism",
    "sequence_parallel_size": "sequence parallelism",
    "activation_checkpointing": "DeepSpeed's own checkpointing",
    "hybrid_engine": "an engine that generates",
    "compression_training": "compressed weights",
    "sparse_attention": "sparse attention",
    "amp": "apex' mixed precision",
    "data_types": "the dtype of gradients",
    "quantize_training": "quantised training",
}
_NO_EFFECT = frozenset(
    "steps_per_print wall_clock_breakdown gradient_clipping train_batch_size prescale_gradients dump_state "
    "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer gradient_predivide_factor".split()
)
_NO_EFFECT_TABLES = tuple(
    "scheduler. tensorboard. wandb. csv_monitor. flops_profiler. checkpoint. optimizer.params.".split()
)
_AUTO = "the trainer fills it in"


def is_deepspeed(content: Mapping[str, Any]) -> bool:
    """Whether a mapping is a DeepSpeed configuration."""
    return bool(SIGNS & set(content))


def read_deepspeed(document: Document, name: str) -> Understanding:
    """The facts of a DeepSpeed configuration; `name` is the file in origins.

    Raises:
        Refused: with every wrong value, or what is not modelled.
    """
    config = ConfigReader(Document(dict(flat(document.content)), document.lines), name)
    _stage(config)
    for part, path in (("optimizer", "offload.optimizer"), ("param", "offload.weights")):
        _home(config, f"{_ZERO}offload_{part}.device", path)
    for old, path in (("cpu_offload", "offload.optimizer"), ("cpu_offload_params", "offload.weights")):
        if config.get(f"{_ZERO}{old}") is not None:
            config.fact(path, "cpu" if config.flag(f"{_ZERO}{old}") else "none", f"{_ZERO}{old}")
    _size(config, "train_micro_batch_size_per_gpu", "micro_batch")
    _size(config, "gradient_accumulation_steps", "accumulation")
    for dtype in ("bf16", "fp16"):
        _dtype(config, dtype)
    kind = config.get("optimizer.type")
    if kind is not None:
        with config.reading("optimizer.type"):
            config.fact("optimizer", one_of(_OPTIMIZERS)(str(kind).lower()), "optimizer.type")
    _rest(config)
    return config.understanding()


def _stage(config: ConfigReader) -> None:
    """Without ZeRO, DeepSpeed still keeps fp32 copies of its own: that is not torch's DDP."""
    key = f"{_ZERO}stage"
    if config.get("zero_optimization") is True:
        config.fact("shard", "zero1", "zero_optimization")
    elif str(config.get(key)) in _STAGES:
        config.fact("shard", _STAGES[str(config.get(key))], key)
    elif config.get(key) in (None, 0, "0"):
        config.refuse(key, "DeepSpeed without ZeRO has master weights of its own", 0)
    else:
        with config.reading(key):
            raise ValueError(f"{config.get(key)!r} is not 0, 1, 2 or 3")


def _home(config: ConfigReader, key: str, path: str) -> None:
    if config.get(key) is not None:
        with config.reading(key):
            config.fact(path, one_of(_HOMES)(str(config.get(key)).lower()), key)


def _size(config: ConfigReader, key: str, path: str) -> None:
    if config.get(key) == "auto":
        config.rest(key, _AUTO)
    elif config.get(key) is not None:
        config.fact(path, config.get(key), key)


def _dtype(config: ConfigReader, dtype: str) -> None:
    key = f"{dtype}.enabled"
    if config.get(key) == "auto":
        config.rest(key, _AUTO)
    elif config.get(key) is not None:
        with config.reading(key):
            if flag(config.get(key)):
                config.fact("compute_dtype", dtype, key)
            else:
                config.rest(key, "off")


def _rest(config: ConfigReader) -> None:
    for key, value in config.said.items():
        chooses = next((why for name, why in _CHOOSES.items() if key == name or key.startswith(f"{name}.")), "")
        if key in config.settled:
            continue
        if value == "auto":
            config.rest(key, _AUTO)
        elif chooses and value not in (None, False, 0, 1, {}):
            config.refuse(key, chooses)
        elif chooses:
            config.rest(key, "off")
        elif key.startswith(_NO_EFFECT_TABLES):
            config.rest(key)
    config.settle(_NO_EFFECT)
