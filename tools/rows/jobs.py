"""A run as its source describes it -> our own paths. What is said in no path, or not at all, is a reason to skip."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, cast

from tools.rows.names import find_model

from vramcast.types.paths import Value
from vramcast.validation.reading import Skip

_DTYPES = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32", "f16": "fp16", "f32": "fp32"}
_CACHES = {"fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "int8": "int8", "fp16": "fp16", "bf16": "bf16"}
_ENGINES = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm", "hf-transformers": "hf"}
_QUANT: tuple[tuple[str, dict[str, Value]], ...] = (
    (r"experts_int8", {}),
    (r"nvfp4 mixed", {}),
    (r"nvfp4|\bfp4\b", {"quant.kind": "nvfp4"}),
    (r"mxfp4", {"quant.kind": "mxfp4"}),
    (r"fp8", {"quant.kind": "fp8"}),
    (r"awq", {"quant.kind": "awq"}),
    (r"gptq.*(int)?8|gptq 8", {"quant.kind": "gptq", "quant.bits": 8}),
    (r"gptq|wna16", {"quant.kind": "gptq", "quant.bits": 4}),
    (r"w8a16", {"quant.kind": "gptq", "quant.bits": 8}),
    (r"w4a16", {"quant.kind": "gptq", "quant.bits": 4}),
    (r"nf4|bitsandbytes", {"quant.kind": "nf4"}),
)
"""what a source calls a quantisation -> our paths; nothing where it says more than a kind"""
_CARDS = (("a100", "a100-sxm-80gb"), ("h20-", "h20-96gb"), ("h20 ", "h20-96gb"), ("h100", "h100-sxm-80gb"),
          ("h200", "h200-sxm-141gb"), ("tesla t4", "t4"), ("a800", "a800-sxm-80gb"), ("l40s", "l40s-48gb"))  # fmt: skip
_GROUP = re.compile(r"\bg(\d+)\b")


def job_of(row: Mapping[str, Any]) -> dict[str, Value]:
    """The paths of an inference run in the format of the public rows.

    Raises:
        Skip: what the source leaves open, or says in words that no path stands for.
    """
    job = _model(row)
    job["algorithm"] = "inference"
    job["engine.kind"] = _engine(str(row.get("stack") or ""))
    job |= _sizes(row)
    job |= _quantisation(row)
    if job["engine.kind"] == "hf":
        job |= _generation(row)
    return job


def _described(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the source says about the model."""
    model = row.get("model")
    return cast("dict[str, Any]", model) if isinstance(model, dict) else {}


def _model(row: Mapping[str, Any]) -> dict[str, Value]:
    model = _described(row)
    name, shape = str(model.get("name") or ""), model.get("config")
    found = find_model(name, cast("dict[str, Any]", shape) if isinstance(shape, dict) else {}, model.get("params_b"))
    if found is None:
        raise Skip(f"the catalogue has no model {name!r}")
    return {"model": found.id}


def _engine(stack: str) -> str:
    if stack not in _ENGINES:
        raise Skip(f"not modelled yet: {stack}")
    return _ENGINES[stack]


def _sizes(row: Mapping[str, Any]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    if str(row.get("dtype")) in _DTYPES:
        found["weights_dtype"] = _DTYPES[str(row["dtype"])]
    for name, path in (("tp", "engine.tp"), ("pp", "engine.pp"), ("dp", "engine.dp")):
        if isinstance(row.get(name), int):
            found[path] = row[name]
    if isinstance(row.get("engine_version"), str):
        found["engine.version"] = row["engine_version"]
    cache = row.get("kv_cache_dtype") or row.get("kv_dtype")
    if cache is not None and str(cache) not in _CACHES:
        raise Skip(f"not modelled yet: a cache in {cache}")
    if cache is not None:
        found["engine.kv_dtype"] = _CACHES[str(cache)]
    return found


def _generation(row: Mapping[str, Any]) -> dict[str, Value]:
    """Transformers' `generate`: its version, the card, the lengths."""
    version = re.search(r"transformers (\d+\.\d+(\.\d+)?)", str(row.get("engine_version") or ""))
    prompt, response, batch = (row.get(name) for name in ("input_len", "output_len", "batch"))
    if version is None or not isinstance(prompt, int) or not isinstance(response, int):
        raise Skip("the source does not say the version of Transformers, or the length of the prompt")
    found: dict[str, Value] = {
        "framework": f"transformers=={version[1]}",
        "micro_batch": batch if isinstance(batch, int) else 1,
        "prompt_len": prompt,
        "seq_len": prompt + response,
        "attention": "flash",
        **_card(str(row.get("gpu") or "")),
    }
    return found


def _card(name: str) -> dict[str, Value]:
    """A card decides the size of cuBLAS's workspace, not more; a row seldom says which of several it was."""
    for pattern, card in _CARDS:
        if re.match(pattern, name, re.IGNORECASE):
            return {"gpu": card}
    return {}


def counter_of(row: Mapping[str, Any]) -> Literal["peak", "current"]:
    """Which counter a row shows. Where the source's figures differ by the cache alone, prefill is not in them: it was
    read between steps."""
    unknown = row.get("unknown") or ()
    return "current" if any("differences match" in str(note) for note in unknown) else "peak"


def _quantisation(row: Mapping[str, Any]) -> dict[str, Value]:
    """By the field, or by what the model's name says."""
    said = row.get("quantization")
    name = str(_described(row).get("name") or "")
    text = str(said if said is not None else " ".join(re.findall(r"(?i)awq|gptq|fp8|nvfp4|bnb|4-?bit|8-?bit", name)))
    if not text or text.lower() == "none":
        return {}
    for pattern, paths in _QUANT:
        if re.search(pattern, text.lower()):
            group = _GROUP.search(text.lower())
            if not paths:
                raise Skip(f"not modelled yet: quantisation {text!r}")
            return {**paths, **({"quant.group": int(group[1])} if group else {})}
    raise Skip(f"{text!r} does not say which quantisation")


_BY_CHECKPOINT = re.compile(r"compressed-tensors|nvfp4")


def weights_known(row: Mapping[str, Any]) -> None:
    """Refuse a row whose weights depend on what it does not say.

    Raises:
        Skip: with what that is.
    """
    text = f"{row.get('quantization') or ''} {_described(row).get('name') or ''}".lower()
    if _BY_CHECKPOINT.search(text):
        raise Skip("the checkpoint chooses which modules are packed, and the source does not say")
    if row.get("lora"):
        raise Skip("slots for adapters are in the figure, and the source does not say their rank")
    if row.get("enable_dp_attention"):
        raise Skip("not modelled yet: data-parallel attention")
