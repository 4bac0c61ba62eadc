"""DeepSpeed's JSON: the stage of ZeRO, what rests on the host, and the sizes that it fixes.

It stands beside the configuration of a trainer, which fills in what is "auto". Read in DeepSpeed 0.19.8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramcast.readers.document import Document
from vramcast.readers.trl_keys import flag, one_of
from vramcast.readers.trl_sheet import Sheet
from vramcast.readers.verl_overrides import flat
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
    sheet = Sheet(Document(dict(flat(document.content)), document.lines), name)
    _stage(sheet)
    for part, path in (("optimizer", "offload.optimizer"), ("param", "offload.weights")):
        _home(sheet, f"{_ZERO}offload_{part}.device", path)
    for old, path in (("cpu_offload", "offload.optimizer"), ("cpu_offload_params", "offload.weights")):
        if sheet.get(f"{_ZERO}{old}") is not None:
            sheet.fact(path, "cpu" if sheet.flag(f"{_ZERO}{old}") else "none", f"{_ZERO}{old}")
    _size(sheet, "train_micro_batch_size_per_gpu", "micro_batch")
    _size(sheet, "gradient_accumulation_steps", "accumulation")
    for dtype in ("bf16", "fp16"):
        _dtype(sheet, dtype)
    kind = sheet.get("optimizer.type")
    if kind is not None:
        with sheet.reading("optimizer.type"):
            sheet.fact("optimizer", one_of(_OPTIMIZERS)(str(kind).lower()), "optimizer.type")
    _rest(sheet)
    return sheet.understanding()


def _stage(sheet: Sheet) -> None:
    """Without ZeRO, DeepSpeed still keeps fp32 copies of its own: that is not torch's DDP."""
    key = f"{_ZERO}stage"
    if sheet.get("zero_optimization") is True:
        sheet.fact("shard", "zero1", "zero_optimization")
    elif str(sheet.get(key)) in _STAGES:
        sheet.fact("shard", _STAGES[str(sheet.get(key))], key)
    elif sheet.get(key) in (None, 0, "0"):
        sheet.refuse(key, "DeepSpeed without ZeRO has master weights of its own", 0)
    else:
        with sheet.reading(key):
            raise ValueError(f"{sheet.get(key)!r} is not 0, 1, 2 or 3")


def _home(sheet: Sheet, key: str, path: str) -> None:
    if sheet.get(key) is not None:
        with sheet.reading(key):
            sheet.fact(path, one_of(_HOMES)(str(sheet.get(key)).lower()), key)


def _size(sheet: Sheet, key: str, path: str) -> None:
    if sheet.get(key) == "auto":
        sheet.rest(key, _AUTO)
    elif sheet.get(key) is not None:
        sheet.fact(path, sheet.get(key), key)


def _dtype(sheet: Sheet, dtype: str) -> None:
    key = f"{dtype}.enabled"
    if sheet.get(key) == "auto":
        sheet.rest(key, _AUTO)
    elif sheet.get(key) is not None:
        with sheet.reading(key):
            if flag(sheet.get(key)):
                sheet.fact("compute_dtype", dtype, key)
            else:
                sheet.rest(key, "off")


def _rest(sheet: Sheet) -> None:
    for key, value in sheet.said.items():
        chooses = next((why for name, why in _CHOOSES.items() if key == name or key.startswith(f"{name}.")), "")
        if key in sheet.settled:
            continue
        if value == "auto":
            sheet.rest(key, _AUTO)
        elif chooses and value not in (None, False, 0, 1, {}):
            sheet.refuse(key, chooses)
        elif chooses:
            sheet.rest(key, "off")
        elif key.startswith(_NO_EFFECT_TABLES):
            sheet.rest(key)
    sheet.settle(_NO_EFFECT)
