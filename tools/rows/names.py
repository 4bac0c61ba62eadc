"""The model that a row means: rows spell names freely, and give shapes beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple, cast

from vramcast.catalog.models import ModelRow, model_config, model_names
from vramcast.errors import Refused

_SHAPE = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "vocab": "vocab_size",
    "kv_lora_rank": "kv_lora_rank",
    "qk_rope": "qk_rope_head_dim",
}
"""a row's word -> the config's field"""
_NOISE = re.compile(
    r"[-_ ]*(instruct|chat|hf|it|base|awq|gptq|fp8|fp4|nvfp4|mxfp4|int4|int8|bf16|4-?bit|8-?bit|w4a16|w8a8|dynamic|bnb"
    r"|nf4|quantized|unsloth|gguf|exl3|\d{4})$"
)
_LEADS = re.compile(r"^(meta|qwen|google|nvidia|redhatai|neuralmagic|unsloth)[-_/]+")


class Known(NamedTuple):
    """A model of the catalogue, reduced to what a row can be compared with."""

    id: str
    plain: str
    shape: dict[str, int]
    params: int | None


def find_model(name: str, shape: Mapping[str, Any], params_b: float | None = None) -> ModelRow | None:
    """The catalogue's model with the row's name, written in its way, and the row's shape; None if there is none.

    A fine-tune under a name of its own is found by its shape and its number of parameters in billions, if every model
    that has both has as many parameters. A name that is found with another shape is another model.
    """
    spellings = _spellings(name)
    found = [known for known in _catalogue() if known.plain in spellings and _fits(known, shape)]
    if not found and params_b is not None:
        found = [known for known in _catalogue() if _same(known, shape, params_b)]
        if len({known.params for known in found}) != 1:
            return None
    return _config(min(found, key=lambda known: (not _is_called(known, name), len(known.id))).id) if found else None


def _is_called(known: Known, name: str) -> bool:
    """The same name, training included: Qwen2.5-7B and its Instruct have other tables of positions."""
    called = r"([\w.-]+/)?" + re.escape(known.id.rpartition("/")[2].lower()) + r"($|[-_ ](?!instruct|chat))"
    return bool(re.match(called, name.lower()))


def _same(known: Known, shape: Mapping[str, Any], params_b: float) -> bool:
    """At least three sizes and the printed number of parameters are the same."""
    if known.params is None or len(_compared(known, shape)) < 3 or not _fits(known, shape):
        return False
    digits = len(str(params_b).partition(".")[2])
    return round(known.params / 1e9, digits) == params_b


def _config(name: str) -> ModelRow | None:
    try:
        return model_config(name)
    except Refused:
        return None


def _spellings(name: str) -> set[str]:
    """The name without its notes, and a name that a note gives: `X (Llama-2-70B arch)`."""
    outer = re.sub(r"\(.*?\)", "", name)
    inner = re.findall(r"\((.*?) arch\)", name)
    either = outer.split("/") if outer.count("/") == 1 else []
    return {plain(one) for part in (outer, *inner, *either) for one in (part, part.strip().partition(" ")[0])}


def plain(name: str) -> str:
    """A name without owner, quantisation, training and spelling: `meta-llama/Llama-3.1-8B-Instruct` -> `llama318b`."""
    text = name.strip().lower().rpartition("/")[2]
    while True:
        shorter = _LEADS.sub("", _NOISE.sub("", text))
        if shorter == text or not shorter:
            break
        text = shorter
    return re.sub(r"[^a-z0-9]", "", text)


def _fits(known: Known, shape: Mapping[str, Any]) -> bool:
    return all(known.shape[word] == shape[word] for word in _compared(known, shape))


def _compared(known: Known, shape: Mapping[str, Any]) -> list[str]:
    return [word for word in _SHAPE if isinstance(shape.get(word), int) and word in known.shape]


@cache
def _catalogue() -> tuple[Known, ...]:
    return tuple(_known())


def _known() -> Iterator[Known]:
    for name in model_names():
        row = model_config(name)
        nested = row.config.get("text_config")
        config = {**row.config, **(cast("dict[str, Any]", nested) if isinstance(nested, dict) else {})}
        shape = {word: config[field] for word, field in _SHAPE.items() if isinstance(config.get(field), int)}
        if "heads" in shape:
            shape.setdefault("kv_heads", shape["heads"])
            if "hidden" in shape and shape["hidden"] % shape["heads"] == 0:
                shape.setdefault("head_dim", shape["hidden"] // shape["heads"])
        yield Known(name, plain(name), shape, row.params)
