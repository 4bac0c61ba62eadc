"""The formats by name: one function a family, with the tensors of its layout and where they are written down.

A unit is `rows` outputs × `columns` inputs (`format.py`); 32-bit words hold 32 / bits values. Sources name the library
and the version that was read.
"""

from __future__ import annotations

from vramcast.models.quant.format import ENGINES, EVERYONE, WHOLE, Format, Holder, Part

_FILES: tuple[Holder, ...] = ("checkpoint", "transformers")
COMPRESSED = "compressed-tensors 0.20 quantization/lifecycle/initialize.py, compressors/naive_quantized/base.py"


def gptq(bits: int, group: int, sym: bool = True, desc_act: bool = False) -> Format:
    """Words along the inputs, fp16 scales, and zero points and a group index even where they say nothing.

    Marlin in vLLM drops both: zero points of a symmetric format, the index without `desc_act` (with it, it also keeps
    the order that sorts the index, and all groups on each rank).
    """
    ordered: tuple[Part, ...] = ()
    if desc_act:
        ordered = (Part("group_index", WHOLE, 1, 8, holders=ENGINES),)
    span = group if group > 0 else WHOLE
    return Format(
        _grouped(f"int{bits}", group),
        (
            Part("packed", 1, 32, 4 * bits),
            Part("scales", 1, span, 2, uncut=desc_act),
            Part("zeros", 32, span, 4 * bits, holders=_FILES if sym else EVERYONE, uncut=desc_act),
            Part("group_index", WHOLE, 1, 4, holders=_FILES),
            *ordered,
        ),
        "auto-gptq 0.7.1 nn_modules/qlinear/qlinear_cuda_old.py; vLLM 0.11 kernels/mixed_precision/marlin.py",
        max(group, 0),
        32,
    )


def awq(bits: int, group: int, zeros: bool = True) -> Format:
    """Words along the outputs, fp16 scales, zero points of as many bits as the weights."""
    per_word = 32 // bits
    span = group if group > 0 else WHOLE
    part = (Part("zeros", per_word, span, 4),) if zeros else ()
    source = "autoawq 0.2.9 modules/linear/gemm.py; vLLM 0.11 quantization/awq_marlin.py"
    grid = (Part("packed", per_word, 1, 4), Part("scales", 1, span, 2), *part)
    return Format(_grouped(f"int{bits}", group), grid, source, max(group, 0), per_word)


def packed_int(bits: int, group: int, sym: bool, scale_bytes: int, block: tuple[int, int] | None = None) -> Format:
    """compressed-tensors `pack-quantized`: words along the inputs, the shape in two int64, packed zero points."""
    span = group if group > 0 else WHOLE
    word = (32 // bits, 4) if 32 % bits == 0 else (32, 4 * bits)
    zeros = () if sym else (Part("zeros", word[0], span, word[1]),)
    rows, columns = block or (1, span)
    grid = (Part("packed", 1, *word), Part("scales", rows, columns, scale_bytes), *zeros, SHAPE)
    source = "compressed-tensors 0.20 compressors/pack_quantized/base.py"
    return Format(_grouped(f"int{bits}", group), grid, source, max(group, 0))


SHAPE = Part("shape", WHOLE, WHOLE, 16)
"""the matrix's shape in two int64"""


def eight_bit(
    name: str,
    strategy: str,
    scale_bytes: int,
    *,
    block: tuple[int, int] = (128, 128),
    group: int = 0,
    static: bool = False,
    sym: bool = True,
    class_bytes: int = 0,
    source: str = "",
) -> Format:
    """One byte an element (int8 or fp8) and scales for the tensor, its channels (rows), groups or blocks.

    `scale_bytes` are the files', and transformers' too unless `class_bytes` says else; an engine holds fp32. `static`
    adds the scale of the inputs.
    """
    spans = {"tensor": (WHOLE, WHOLE), "channel": (1, WHOLE), "group": (1, group), "block": block}
    shown = {"group": f"g{group}", "block": f"{block[0]}×{block[1]}"}
    rows, columns = spans[strategy]
    grid = [
        Part("packed", 1, 1, 1),
        Part("scales", rows, columns, scale_bytes, holders=("checkpoint",)),
        Part("scales", rows, columns, class_bytes or scale_bytes, holders=("transformers",)),
        Part("scales", rows, columns, 4, holders=ENGINES),
    ]
    if not sym:
        grid.append(Part("zeros", rows, columns, 1))
    if static:
        grid += [Part("input_scale", WHOLE, WHOLE, scale_bytes, holders=_FILES)]
        grid += [Part("input_scale", WHOLE, WHOLE, 4, holders=ENGINES)]
    group_size = block[1] if strategy == "block" and source == COMPRESSED else group
    return Format(f"{name} {shown.get(strategy, strategy)}", tuple(grid), source, group_size)


def fp8_linear(
    block: tuple[int, int] | None, scale_bytes: int = 4, static: bool = False, class_bytes: int = 0
) -> Format:
    """DeepSeek's and AutoFP8's layout: e4m3, and an fp32 (or e8m0) scale for a block or for the tensor."""
    source = "transformers 5.24 integrations/finegrained_fp8.py FP8Linear; vLLM 0.11 quantization/fp8.py"
    strategy = "block" if block else "tensor"
    return eight_bit("fp8", strategy, scale_bytes, block=block or (128, 128), static=static, class_bytes=class_bytes,
                     source=source)  # fmt: skip


FBGEMM = Format(
    "fp8 channel",
    (Part("packed", 1, 1, 1), Part("scales", 1, WHOLE, 4), Part("input_scale", WHOLE, WHOLE, 4)),
    "transformers 5.24 integrations/fbgemm_fp8.py FbgemmFp8Linear: fp32 scales of rows, one bound of the inputs",
)
INT8_ROWS = Format(
    "int8 channel",
    (Part("packed", 1, 1, 1), Part("scales", 1, WHOLE, 4)),
    "bitsandbytes 0.50 nn/modules.py Int8Params: CB and an fp32 SCB for each row; vLLM 0.11 experts_int8.py",
)


def four_bit(kind: str = "nf4", double: bool = False, storage_bytes: int = 1, block: int = 64) -> Format:
    """bitsandbytes: two values a byte, an fp32 absmax for a block, a code of 16 fp32 values.

    `double` keeps absmax in 8 bits with an fp32 scale for 256 of them, a code of 256 values and an offset.
    `storage_bytes`: width of the dtype that the bytes are seen as (`quant_storage`); it pads the end, no more.
    """
    packed = Part("packed", WHOLE, 2 * storage_bytes, storage_bytes, flat=True)
    if double:
        scales = (
            Part("scales", WHOLE, block, 1, flat=True),
            Part("nested_scales", WHOLE, 256 * block, 4, flat=True),
            Part("codes", WHOLE, WHOLE, 64 + 1024 + 4),
        )
    else:
        scales = (Part("scales", WHOLE, block, 4, flat=True), Part("codes", WHOLE, WHOLE, 64))
    source = "bitsandbytes 0.50 functional.py quantize_4bit, quantize_blockwise"
    return Format(f"{kind}{' double' if double else ''}", (packed, *scales), source)


def hqq(bits: int, group: int, axis: int = 1) -> Format:
    """Groups of the flattened weight, with a scale and a zero point of 16 bits each. 3 bits: ten values an int32."""
    if bits == 3 and axis == 1:
        packed = Part("packed", WHOLE, 10 * group, 4 * group, flat=True)
    elif bits == 3:
        packed = Part("packed", WHOLE, group, 4 * -(-group // 10), flat=True)
    else:
        packed = Part("packed", WHOLE, 8 // bits, 1, flat=True)
    grid = (packed, Part("scales", WHOLE, group, 2, flat=True), Part("zeros", WHOLE, group, 2, flat=True))
    return Format(f"int{bits} g{group}", grid, "hqq 0.2.8 core/quantize.py Quantizer.quantize, core/bitpack.py")


def quanto(weights: str, scale_bytes: int, group: int = 128) -> Format:
    """A scale for each row; 4 and 2 bits: a scale and a shift for a group. And two scalars for activations."""
    source = "optimum-quanto 0.2.7 nn/qmodule.py, tensor/weights/qbits.py"
    scalars = Part("input_scale", WHOLE, WHOLE, 2 * scale_bytes)
    if weights in ("int8", "float8"):
        grid = (Part("packed", 1, 1, 1), Part("scales", 1, WHOLE, scale_bytes), scalars)
        return Format(f"{weights} channel", grid, source)
    bits = int(weights.removeprefix("int"))
    grid = (
        Part("packed", WHOLE, 8 // bits, 1, flat=True),
        Part("scales", 1, group, scale_bytes),
        Part("zeros", 1, group, scale_bytes),
        scalars,
    )
    return Format(f"{weights} g{group}", grid, source, group)


def torchao(weights: str, group: int, scale_bytes: int = 2, tiled: bool = False) -> Format:
    """torchao's tensors: int4 in groups (scale and zero point), int8 and float8 with an fp32 scale for each row.

    int8 has a zero point for each row as well, also where it is symmetric.

    `tiled`: int4 for tensor cores, padded to 8 outputs and 1024 inputs.
    """
    source = "torchao 0.18 quantization/quant_api.py and quantize_/workflows"
    if weights == "int4" and tiled:
        grid = (Part("packed", 8, 1024, 4096), Part("scales", 8, 1024, 8 * 2 * scale_bytes * 1024 // group))
        return Format(f"int4 g{group} tiled", grid, source, group)
    if weights == "int4":
        grid = (Part("packed", 1, 2, 1), Part("scales", 1, group, scale_bytes), Part("zeros", 1, group, scale_bytes))
        return Format(f"int4 g{group}", grid, source, group)
    row = (Part("scales", 1, WHOLE, 4), *((Part("zeros", 1, WHOLE, 1),) if weights == "int8" else ()))
    return Format(f"{weights} channel", (Part("packed", 1, 1, 1), *row), source)


MXFP4 = Format(
    "mxfp4",
    (Part("packed", 1, 2, 1), Part("scales", 1, 32, 1)),
    "OCP microscaling formats 1.0; transformers 5.24 integrations/mxfp4.py; vLLM 0.11 quantization/mxfp4.py",
    32,
)
MXFP8 = Format(
    "mxfp8",
    (Part("packed", 1, 1, 1), Part("scales", 1, 32, 1)),
    "OCP microscaling formats 1.0; compressed-tensors 0.20 compressors/mxfp8/base.py",
    32,
)


def nvfp4(static: bool) -> Format:
    """Two values a byte, an e4m3 scale for 16, an fp32 scale for the tensor, and one of the inputs if `static`."""
    once = 8 if static else 4
    grid = (Part("packed", 1, 2, 1), Part("scales", 1, 16, 1), Part("tensor_scale", WHOLE, WHOLE, once))
    source = "compressed-tensors 0.20 compressors/nvfp4/base.py; vLLM 0.11 quantization/modelopt.py"
    return Format("nvfp4", grid, source, 16)


def _grouped(name: str, group: int) -> str:
    return f"{name} g{group}" if group > 0 else f"{name} channel"
