"""compressed-tensors: groups of modules by name or class, each with its scheme; lists hold whole names or `re:`."""

from __future__ import annotations

from vramcast.models.quant import formats
from vramcast.models.quant.format import Format
from vramcast.models.quant.quantisation import Quantisation, Rule
from vramcast.models.quant.section import Section

_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "nvfp4-pack-quantized",
            "mxfp4-pack-quantized", "mxfp8-quantized")  # fmt: skip
_REASONS = {
    "marlin-24": "2:4 sparse weights are not modelled",
    "sparse-24-bitmask": "the size of a bitmask depends on the values",
    "sparse-bitmask": "the size of a bitmask depends on the values",
    "mxfp6-pack-quantized": "its packing was not checked against a checkpoint",
}
_STRATEGIES = ("tensor", "channel", "group", "block", "tensor_group")
_DTYPES = {"torch.uint8": 1, "torch.float8_e4m3fn": 1, "torch.bfloat16": 2, "torch.float16": 2, "torch.float32": 4}


def read(section: Section, dtype_bytes: int) -> Quantisation:
    """The groups of a `compressed-tensors` section; `dtype_bytes` of the model's dtype, in which scales are stored."""
    ignored = section.names("ignore") or ()
    rules = [Rule((), ignored, "exact")] if ignored else []
    groups = section.sub("config_groups")
    found: list[tuple[Format, str]] = []
    for _, group in groups.subs() if groups else []:
        form, kind = _scheme(section, group, dtype_bytes)
        found.append((form, kind))
        targets = group.names("targets") or ("Linear",)
        by_class = "Linear" in targets
        rules.append(Rule((form,), () if by_class else targets, "exact"))
    if not found:
        section.wrong(f"{section.place}.config_groups is missing")
        return Quantisation(method="compressed-tensors", kind="none", label="")
    names = list(dict.fromkeys(form.name for form, _ in found))
    return Quantisation(
        method="compressed-tensors",
        kind=found[0][1],
        label=f"compressed-tensors {' + '.join(names)}",
        rules=tuple(rules),
        head=True,
        source=section.source,
    )


def _scheme(section: Section, group: Section, dtype_bytes: int) -> tuple[Format, str]:
    """(format, kind) of one group."""
    form = group.config.get("format") or section.config.get("format")
    if form in _REASONS:
        section.wrong(f"the format {form!r} of compressed-tensors is not known", reason=_REASONS[str(form)])
        return formats.MXFP4, "none"
    if form not in _FORMATS and form not in ("mixed-precision", None, "dense"):
        (group if "format" in group.config else section).word("format", _FORMATS)
    weights = group.sub("weights")
    if weights is None:
        section.wrong(f"{group.place}.weights is missing")
        return formats.MXFP4, "none"
    return _packed(weights, group, form, dtype_bytes)


def _packed(weights: Section, group: Section, form: object, dtype_bytes: int) -> tuple[Format, str]:
    bits = weights.number("num_bits", None, (2, 3, 4, 8) if form == "pack-quantized" else (4, 8))
    strategy = weights.word("strategy", _STRATEGIES, "group" if weights.config.get("group_size") else "tensor")
    kind = weights.word("type", ("int", "float"), "int")
    sym = weights.flag("symmetric", True)
    size = weights.group() if strategy in ("group", "tensor_group") else -1
    scale_bytes = _DTYPES.get(str(weights.config.get("scale_dtype")), dtype_bytes)
    inputs = group.sub("input_activations")
    static = inputs is not None and not inputs.config.get("dynamic")
    if kind == "float" and bits == 4:
        return (formats.MXFP4, "mxfp4") if size == 32 else (formats.nvfp4(static or _local(inputs)), "nvfp4")
    if kind == "float" and size == 32:
        return formats.MXFP8, "fp8"
    block = _block(weights) if strategy == "block" else (128, 128)
    if kind == "int" and (bits != 8 or form == "pack-quantized"):
        tensor = (0, 0) if strategy == "tensor" else block if strategy == "block" else None
        return formats.packed_int(bits, size, sym, scale_bytes, tensor), "gptq"
    name = "fp8" if kind == "float" else "int8"
    made = formats.eight_bit(name, strategy, scale_bytes, block=block, group=max(size, 0), static=static, sym=sym,
                             source=formats.COMPRESSED)  # fmt: skip
    return made, "fp8_block" if name == "fp8" and strategy == "block" else name


def _local(inputs: Section | None) -> bool:
    """Inputs are scaled on the fly within a stored global scale."""
    return inputs is not None and inputs.config.get("dynamic") == "local"


def _block(weights: Section) -> tuple[int, int]:
    value = weights.config.get("block_structure")
    if isinstance(value, list) and len(value) == 2 and all(isinstance(one, int) and one > 0 for one in value):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        return int(value[0]), int(value[1])  # pyright: ignore[reportUnknownArgumentType]
    weights.wrong(f"{weights.place}.block_structure must be two whole numbers above 0, not {value!r}")
    return 128, 128
