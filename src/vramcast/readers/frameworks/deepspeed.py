"""DeepSpeed's JSON: the stage of ZeRO, what rests on the host, and the sizes that it fixes.

It stands beside the configuration of a trainer, which fills in what is "auto". Read in DeepSpeed 0.19.8.
"""

from __future__ import annotations

from vramcast.readers.config import ConfigReader
from vramcast.readers.document import Document
from vramcast.readers.framework import Framework, Known, known_names
from vramcast.readers.hydra import flat
from vramcast.readers.keys import HOMES, Codec, Key, flag, spelled, switch
from vramcast.types.job import Understanding

_SIGNS = frozenset("zero_optimization train_micro_batch_size_per_gpu zero_allow_untested_optimizer".split())
"""Keys that only DeepSpeed has."""


def _dtype(dtype: str) -> Codec:
    return Codec(lambda value: dtype if flag(value) else None, lambda ours: ours == dtype)


_ZERO = "zero_optimization."
_STAGES = {"1": "zero1", "2": "zero2", "3": "zero3"}
_OPTIMIZERS = {"adamw": "adamw", "adam": "adamw", "adafactor": "adafactor", "lion": "lion", "sgd": "sgd"}
_ON_HOST = switch("cpu", "none")
KEYS = (
    Key(f"{_ZERO}offload_optimizer.device", "offload.optimizer", HOMES),
    Key(f"{_ZERO}offload_param.device", "offload.weights", HOMES),
    Key(f"{_ZERO}cpu_offload", "offload.optimizer", _ON_HOST),
    Key(f"{_ZERO}cpu_offload_params", "offload.weights", _ON_HOST),
    Key("optimizer.type", "optimizer", spelled(_OPTIMIZERS, str.lower)),
)
FILLED = (
    Key("train_micro_batch_size_per_gpu", "micro_batch"),
    Key("gradient_accumulation_steps", "accumulation"),
    Key("bf16.enabled", "compute_dtype", _dtype("bf16")),
    Key("fp16.enabled", "compute_dtype", _dtype("fp16")),
)
"""Keys that the trainer fills in where they are "auto"."""
_AUTO = "the trainer fills it in"


def known() -> Known:
    """Keys that set no path."""
    return known_names(__file__, "deepspeed.json")


def read_deepspeed(document: Document, name: str) -> Understanding:
    """The facts of a DeepSpeed configuration; `name` is the file in origins.

    Raises:
        Refused: with every wrong value, or what is not modelled.
    """
    config = ConfigReader(Document(dict(flat(document.content)), document.lines), name)
    _stage(config)
    config.keys(KEYS)
    for key in FILLED:
        if config.get(key.native) == "auto":
            config.rest(key.native, _AUTO)
        else:
            config.keys((key,))
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


def _rest(config: ConfigReader) -> None:
    names = known()
    for key, value in config.said.items():
        starts = (name for name in names.unmodelled if key == name or key.startswith(f"{name}."))
        chooses = next((names.unmodelled[name][1] for name in starts), "")
        if key in config.settled:
            continue
        if value == "auto":
            config.rest(key, _AUTO)
        elif chooses and value not in (None, False, 0, 1, {}):
            config.refuse(key, chooses)
        elif chooses:
            config.rest(key, "off")
        elif key.startswith(tuple(names.more["starts"].split())):
            config.rest(key)
    config.settle(names.no_effect)


FRAMEWORK = Framework(
    "deepspeed",
    "DeepSpeed",
    lambda document, name: bool(_SIGNS & set(document.content)),
    (*KEYS, *FILLED),
    read=lambda document, name, folder: read_deepspeed(document, name),
    knows=lambda key: False,  # of `--set`: a trainer has keys of the same names
)
