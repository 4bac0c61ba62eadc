"""Packed weights of a job: who says so, and the mode of a seat that holds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vramcast.memory.packing import Packing, Product, path_of
from vramcast.models.arch import Arch
from vramcast.models.quant.format import Format
from vramcast.models.quant.loadtime import load_time
from vramcast.models.quant.quantisation import Quantisation
from vramcast.types.job import Fact, Origin
from vramcast.types.recipe import Recipe
from vramcast.types.settings import Settings

_PRODUCTS: dict[str, Product] = {
    "nf4": "unpack", "fp4": "unpack", "int8": "int8", "fp8": "fp8", "fp8_block": "fp8", "awq": "long",
}  # fmt: skip
"""kind of quantisation -> how its products run; a kernel where nothing is said"""
TRAINED = ("nf4", "fp4", "int8")
"""kinds that adapters are trained on"""


def implied_facts(asked: Mapping[str, Fact], own: Quantisation | None, where: str) -> Iterator[Fact]:
    """`quant.kind` of a checkpoint that is quantised (`own`), or of QLoRA, where nobody says it."""
    if own is not None:
        yield Fact("quant.kind", own.kind, Origin(f"{where} quantization_config: {own.label}"))
    elif "tuning" in asked and asked["tuning"].value == "qlora":
        yield Fact("quant.kind", "nf4", Origin("what QLoRA packs its base into"))


def quantisation_of(settings: Settings, own: Quantisation | None, model_type: str = "") -> Quantisation | None:
    """The checkpoint's own quantisation, or the one that the settings ask for, of a model of that type."""
    if own is not None:
        return own
    return load_time(
        settings.quant_kind,
        double=settings.quant_double,
        storage=settings.quant_storage,
        bits=settings.quant_bits,
        group=settings.quant_group,
        model_type=model_type,
    )


def formats_of(quantisation: Quantisation, arch: Arch) -> dict[str, Format]:
    """Tensor by its path in a block -> its format, of those that are packed. Equal layers are packed alike."""
    found: dict[str, Format] = {}
    for block in arch.layout.blocks:
        lead = f"{block.prefix}.{block.layers[0]}" if block.layers else block.prefix
        for weight in block.weights:
            name = f"{lead}.{weight.name}" if lead else weight.name
            form = quantisation.format_of(name, weight, block.module(weight))
            if form is not None:
                found[path_of(block.prefix, weight.name)] = form
    return found


def packing_of(settings: Settings, arch: Arch, own: Quantisation | None, recipe: Recipe) -> Packing | None:
    """How the trainer, or Transformers in inference, holds the linear layers of blocks; None where they are plain."""
    quantisation = quantisation_of(settings, own, arch.model_type)
    if quantisation is None:
        return None
    formats = formats_of(quantisation, arch)
    return Packing(
        formats=formats,
        product=_PRODUCTS.get(quantisation.kind, "kernel"),
        compute_dtype=settings.quant_compute_dtype or settings.weights_dtype,
        origin_dtype=settings.weights_dtype,
        nested=any(form.name.endswith(" double") for form in formats.values()),
        buffers=recipe.gptq_buffers and quantisation.kind == "gptq" and _is_four_bit(formats),
        saved_untied=quantisation.kind == "awq",
    )


def _is_four_bit(formats: Mapping[str, Format]) -> bool:
    return any(form.name.startswith("int4") for form in formats.values())
