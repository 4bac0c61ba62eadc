"""A Hugging Face `config.json` → an `Arch`. One row per model type says how it differs from the plain decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from vramcast.errors import Mistakes, Refused, refuse
from vramcast.models import decoder
from vramcast.models.arch import Arch, Block
from vramcast.models.fields import class_names, most, wrong_count
from vramcast.models.program import Dims
from vramcast.models.types import family_of, unknown_type


class Family(Struct, frozen=True):
    """How a model type is built: which biases and norms, and Hugging Face's defaults for fields a config may leave
    out."""

    qkv_bias: bool | str
    """True, False, or the config field that says so"""
    output_bias: bool | str
    qk_norm: bool = False
    mlp_bias: bool | str = False
    multiplies: bool = False
    default_targets: tuple[str, ...] = ("q_proj", "v_proj")
    """peft.utils.constants, TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING"""


FAMILIES = {
    "llama": Family(qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias"),
    "granite": Family(
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
        multiplies=True,
        default_targets=(),  # PEFT names none
    ),
    "mistral": Family(qkv_bias=False, output_bias=False),
    "qwen2": Family(qkv_bias=True, output_bias=False),
    "qwen3": Family(qkv_bias="attention_bias", output_bias="attention_bias", qk_norm=True),
}

HEADS = ("ForCausalLM", "LMHeadModel")
"""how the names of classes with a language-model head end"""
_REQUIRED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
_OPTIONAL = ("num_key_value_heads", "head_dim", "max_position_embeddings")
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def build_arch(name: str, config: dict[str, Any], source: str) -> Arch:
    """The architecture that `config` describes.

    Raises:
        Refused: an unknown model type, missing or contradictory fields; `source` says which file.
    """
    model_type = str(config.get("model_type", ""))
    if model_type not in FAMILIES:
        raise not_modelled(model_type, name, source)
    check_head(config, source)
    _check(config, source)
    family = FAMILIES[model_type]
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    flags = {flag: _flag(config, getattr(family, flag)) for flag in ("qkv_bias", "output_bias", "mlp_bias")}
    rows = decoder.rows(qk_norm=family.qk_norm, **flags)
    return Arch(
        name=name,
        model_type=model_type,
        dims=Dims(
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            ffn=config["intermediate_size"],
            vocab=config["vocab_size"],
        ),
        block=Block("decoder", rows, decoder.block),
        outer=decoder.OUTER,
        tied=bool(config.get("tie_word_embeddings", False)),
        dtype=_DTYPES.get(str(config.get("torch_dtype") or config.get("dtype")), "bf16"),
        max_len=int(config.get("max_position_embeddings") or 0),
        qk_norm=family.qk_norm,
        multiplies=family.multiplies,
        shares_keys=kv_heads != heads,
        small_heads=head_dim <= 128,
        default_targets=family.default_targets,
        **_sliding(config, model_type, source),
        **flags,
    )


def _sliding(config: dict[str, Any], model_type: str, source: str) -> dict[str, int]:
    """The window and how many layers have it. Llama has none; the others only where their config switches it on."""
    if model_type in ("llama", "granite") or (model_type != "mistral" and not config.get("use_sliding_window")):
        return {}
    from vramcast.models.cache.windows import spans

    windows = [span.tokens for span in spans(model_type, config, config["num_hidden_layers"], source) if span.tokens]
    return {"window": windows[0], "sliding_layers": len(windows)} if windows else {}


def not_modelled(model_type: str, name: str, source: str) -> Refused:
    """The refusal of a type without a program: its parameters may be known all the same."""
    if model_type not in family_of():
        return unknown_type(model_type, source)
    return refuse(
        f"the activations of model type {model_type} are not modelled yet",
        **{"from": source, "works": f"vramcast explain --arch --model {name}", "allowed": ", ".join(FAMILIES)},
    )


def _flag(config: dict[str, Any], rule: bool | str) -> bool:
    return bool(config.get(rule, False)) if isinstance(rule, str) else rule


_ANY_HEAD = (*HEADS, "ForConditionalGeneration")


def has_head(config: Mapping[str, Any], source: str, heads: tuple[str, ...] = _ANY_HEAD) -> bool:
    """Whether the class generates; a config that names none is taken to.

    Raises:
        Refused: the classes are no list of names.
    """
    classes = class_names(config, source)
    return not classes or any(name.endswith(heads) for name in classes)


def check_head(config: dict[str, Any], source: str, heads: tuple[str, ...] = HEADS) -> None:
    """A class such as MistralModel has no head: it embeds text, and nothing here is about that."""
    if not has_head(config, source, heads):
        raise refuse(
            f"{config['architectures'][0]} has no language-model head: what it does is not modelled yet",
            **{"from": source, "allowed": f"models of a class …{heads[0]}"},
        )


def _check(config: dict[str, Any], source: str) -> None:
    mistakes = Mistakes()
    for field in (*_REQUIRED, *_OPTIONAL):
        value = config.get(field)
        if value is None and field in _OPTIONAL:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most(field):
            mistakes.add(f"{field} {wrong_count(field, value)}", **{"from": source})
    mistakes.done()
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads") or config["num_attention_heads"]
    if heads % kv_heads:
        mistakes.add(
            f"num_key_value_heads = {kv_heads} does not divide num_attention_heads = {heads}", **{"from": source}
        )
    if not config.get("head_dim") and config["hidden_size"] % heads:
        mistakes.add(f"num_attention_heads = {heads} does not divide hidden_size = {config['hidden_size']}",
                     **{"from": source})  # fmt: skip
    mistakes.done()
