"""What a config.json says about quantisation: a `Quantisation`, or a refusal with all mistakes at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from msgspec import structs

from vramcast.errors import Mistakes, near
from vramcast.models.quant import compressed, methods
from vramcast.models.quant.quantisation import Quantisation
from vramcast.models.quant.section import Section

Reader = Callable[[Section, dict[str, Any]], Quantisation]

METHODS: dict[str, Reader] = {
    "gptq": methods.gptq,
    "gptq_marlin": methods.gptq,
    "awq": methods.awq,
    "awq_marlin": methods.awq,
    "bitsandbytes": methods.bitsandbytes,
    "fp8": methods.fp8,
    "fbgemm_fp8": methods.fbgemm,
    "mxfp4": methods.mxfp4,
    "modelopt": methods.modelopt,
    "modelopt_fp4": methods.modelopt,
    "hqq": methods.hqq,
    "torchao": methods.torchao,
    "quanto": methods.quanto,
    "experts_int8": methods.experts_int8,
    "compressed-tensors": lambda section, config: compressed.read(section, methods.dtype_bytes(config)),
}
REASONS = {
    "aqlm": "its codebooks are a size of their own for each checkpoint",
    "vptq": "its codebooks are a size of their own for each layer",
    "spqr": "the number of outliers depends on the values",
    "higgs": "its layout was not checked against the library",
    "quip": "its layout was not checked against the library",
    "quark": "its layout was not checked against the library",
    "bitnet": "its layout was not checked against the library",
    "eetq": "its layout was not checked against the library",
    "fp_quant": "its layout was not checked against the library",
    "fouroversix": "its layout was not checked against the library",
    "sinq": "its layout was not checked against the library",
    "metal": "it is for Apple's GPUs",
    "gemma": "its layout was not checked against the library",
    "auto-round": "its own packing was not checked; exported as GPTQ or AWQ it is read as such",
    "gguf": "a GGUF file names its own types; `vramcast.models.quant.gguf` knows them",
}


def read_quantisation(config: dict[str, Any], source: str) -> Quantisation | None:
    """The quantisation of a config.json; None if it has none. `source` names the file.

    It may stand at the top or in `text_config`, under `quantization_config` or the older `compression_config`.

    Raises:
        Refused: an unknown method, or settings that are missing or not known, all at once.
    """
    mistakes = Mistakes()
    section = _section(config, source, mistakes)
    if section is None:
        return None
    method = _method(section)
    if method not in METHODS:
        known = list(METHODS)
        section.wrong(
            f"quantisation method {method!r} is not known" if method else f"{section.place} names no quant_method",
            near=near(method, known),
            allowed=", ".join(known),
            reason=REASONS.get(method, ""),
        )
        mistakes.done()
        return None
    found = METHODS[method](section, config)
    mistakes.done()
    # A section of the language model says nothing about the tower beside it.
    return structs.replace(found, vision=False) if section.place.startswith("text_config") else found


def _section(config: dict[str, Any], source: str, mistakes: Mistakes) -> Section | None:
    nested = config.get("text_config")
    places = [("", config), ("text_config.", cast("dict[str, Any]", nested) if isinstance(nested, dict) else {})]
    for lead, place in places:
        for name in ("quantization_config", "compression_config"):
            value = place.get(name)
            if isinstance(value, dict) and value:
                return _inner(Section(cast("dict[str, Any]", value), source, f"{lead}{name}", mistakes))
            if value is not None and not isinstance(value, dict):
                mistakes.add(f"{lead}{name} must be an object, not {value!r}", **{"from": source})
                mistakes.done()
    return None


def _inner(section: Section) -> Section:
    """Older compressed-tensors configs hold the section once more inside; Model Optimizer's under `quantization`."""
    for name in ("quantization_config", "quantization"):
        if isinstance(section.config.get(name), dict):
            return section.sub(name) or section
    return section


def _method(section: Section) -> str:
    named = str(section.config.get("quant_method") or "").lower().replace("_", "-")
    if named in ("compressed-tensors",) or (not named and "config_groups" in section.config):
        return "modelopt" if section.config.get("quant_algo") else "compressed-tensors"
    if not named and section.config.get("quant_algo"):
        return "modelopt"
    if not named and (section.config.get("load_in_4bit") or section.config.get("load_in_8bit")):
        return "bitsandbytes"
    return next((known for known in (*METHODS, *REASONS) if known.replace("_", "-") == named), named)
