"""What a packed matrix takes, beside the tensors of the libraries' own classes, and laws of cutting it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.models.quant import formats
from vramcast.models.quant.format import Format
from vramcast.models.quant.gguf import BLOCKS, block_format
from vramcast.num import Named

OUT, IN = 768, 1152
WEIGHTS = OUT * IN
"""884,736"""

OF_THE_CLASSES: list[tuple[Format, dict[str, int]]] = [
    # auto-gptq 0.7.1 QuantLinear(bits, group, 1152, 768): qweight, qzeros, scales, g_idx
    (formats.gptq(2, -1), {"packed": 221184, "zeros": 192, "scales": 1536, "group_index": 4608}),
    (formats.gptq(3, 32), {"packed": 331776, "zeros": 10368, "scales": 55296, "group_index": 4608}),
    (formats.gptq(4, 128), {"packed": 442368, "zeros": 3456, "scales": 13824, "group_index": 4608}),
    (formats.gptq(8, 128), {"packed": 884736, "zeros": 6912, "scales": 13824, "group_index": 4608}),
    # autoawq 0.2.9 WQLinear_GEMM(4, 128, 1152, 768)
    (formats.awq(4, 128), {"packed": 442368, "zeros": 3456, "scales": 13824}),
    # compressed-tensors 0.20, pack-quantized, group 128, not symmetric
    (formats.packed_int(4, 128, False, 2), {"packed": 442368, "zeros": 3456, "scales": 13824, "shape": 16}),
    (formats.packed_int(8, 128, False, 2), {"packed": 884736, "zeros": 6912, "scales": 13824, "shape": 16}),
    (formats.packed_int(3, 128, False, 2), {"packed": 331776, "zeros": 2592, "scales": 13824, "shape": 16}),
    # bitsandbytes 0.50 quantize_4bit, int8_vectorwise_quant
    (formats.four_bit(), {"packed": 442368, "scales": 55296, "codes": 64}),
    (formats.four_bit(double=True), {"packed": 442368, "scales": 13824, "nested_scales": 216, "codes": 1092}),
    (formats.INT8_ROWS, {"packed": 884736, "scales": 3072}),
    # hqq 0.2.8 Quantizer.quantize
    (formats.hqq(8, 64), {"packed": 884736, "scales": 27648, "zeros": 27648}),
    (formats.hqq(4, 64), {"packed": 442368, "scales": 27648, "zeros": 27648}),
    (formats.hqq(3, 64), {"packed": 354048, "scales": 27648, "zeros": 27648}),
    (formats.hqq(3, 64, axis=0), {"packed": 387072, "scales": 27648, "zeros": 27648}),
    (formats.hqq(2, 128), {"packed": 221184, "scales": 13824, "zeros": 13824}),
    (formats.hqq(1, 128), {"packed": 110592, "scales": 13824, "zeros": 13824}),
    # optimum-quanto 0.2.7 QLinear of half precision
    (formats.quanto("int8", 2), {"packed": 884736, "scales": 1536, "input_scale": 4}),
    (formats.quanto("int4", 2), {"packed": 442368, "scales": 13824, "zeros": 13824, "input_scale": 4}),
    (formats.quanto("int2", 2), {"packed": 221184, "scales": 13824, "zeros": 13824, "input_scale": 4}),
    # torchao 0.18 Int8WeightOnlyConfig, Float8WeightOnlyConfig of a bf16 layer
    (formats.torchao("int8", 128), {"packed": 884736, "scales": 3072, "zeros": 768}),
    (formats.torchao("float8", 128), {"packed": 884736, "scales": 3072}),
]


@pytest.mark.parametrize(
    ("form", "expected"), OF_THE_CLASSES, ids=lambda one: one.name if isinstance(one, Format) else ""
)
def test_the_tensors_of_the_class(form: Format, expected: dict[str, int]) -> None:
    assert form.parts(OUT, IN) == expected
    assert form.size(OUT, IN) == sum(expected.values())


def test_the_last_block_is_padded() -> None:
    """33 × 65 = 2145 values: 1073 bytes, ⌈2145 ÷ 64⌉ = 34 scales of 4 bytes (bitsandbytes 0.50)."""
    assert formats.four_bit().parts(33, 65) == {"packed": 1073, "scales": 136, "codes": 64}
    # 100 × 100: ⌈10,000 ÷ 64⌉ = 157 scales of a byte, of which one fp32 scale stands for 256.
    parts = formats.four_bit(double=True).parts(100, 100)
    assert parts == {"packed": 5000, "scales": 157, "nested_scales": 4, "codes": 1092}
    # Seen as bf16, two bytes are one element, and the odd byte is padded.
    assert formats.four_bit(storage_bytes=2).parts(33, 65)["packed"] == 1074


def test_fp8_blocks() -> None:
    """600 × 300 in blocks of 128 × 128: 5 × 3 scales; fp32 in every program, e8m0 where the class has it so."""
    form = formats.fp8_linear((128, 128))
    assert form.parts(600, 300) == {"packed": 180_000, "scales": 60}
    e8m0 = formats.fp8_linear((128, 128), 4, class_bytes=1)
    assert [e8m0.parts(600, 300, 1, holder)["scales"] for holder in ("checkpoint", "transformers", "vllm")] == [
        60,
        15,
        60,
    ]
    assert formats.fp8_linear(None, static=True).parts(600, 300) == {"packed": 180_000, "scales": 4, "input_scale": 4}
    assert formats.FBGEMM.parts(600, 300) == {"packed": 180_000, "scales": 2400, "input_scale": 4}


def test_four_bit_floats() -> None:
    """Half a byte, and a byte for 32 (MXFP4) or for 16 (NVFP4), which has one or two fp32 scales beside."""
    assert formats.MXFP4.size(OUT, IN) == WEIGHTS // 2 + WEIGHTS // 32
    assert formats.nvfp4(static=False).size(OUT, IN) == WEIGHTS // 2 + WEIGHTS // 16 + 4
    assert formats.nvfp4(static=True).parts(OUT, IN)["tensor_scale"] == 8


def test_marlin_drops_what_says_nothing() -> None:
    """Symmetric, in order: words and scales alone. Not symmetric: zero points. desc_act: the index and its order."""
    kept = {"packed": 442368, "scales": 13824}
    assert formats.gptq(4, 128).parts(OUT, IN, 1, "vllm") == kept
    assert formats.gptq(4, 128, sym=False).parts(OUT, IN, 1, "vllm") == {**kept, "zeros": 3456}
    assert formats.gptq(4, 128, desc_act=True).parts(OUT, IN, 1, "sglang") == {**kept, "group_index": 2 * 4 * IN}
    assert formats.gptq(4, 128).parts(OUT, IN, 1, "transformers") == formats.gptq(4, 128).parts(OUT, IN)


def test_with_desc_act_a_rank_holds_the_groups_of_all_inputs() -> None:
    """768 × 1024 over two ranks: 8 groups of fp16 scales with desc_act, 4 without."""
    cut = formats.gptq(4, 128, desc_act=True).parts(OUT, 512, 1, "vllm", 1024)
    assert cut == {"packed": OUT * 512 // 2, "scales": 2 * 8 * OUT, "group_index": 8 * 512}
    assert formats.gptq(4, 128).parts(OUT, 512, 1, "vllm", 1024)["scales"] == 2 * 4 * OUT


def test_channel_scales_are_fp32_in_an_engine() -> None:
    form = formats.eight_bit("int8", "channel", 2)
    assert [form.parts(OUT, IN, 1, holder)["scales"] for holder in ("checkpoint", "vllm")] == [2 * OUT, 4 * OUT]


def test_torchao_for_tensor_cores_is_padded() -> None:
    """1152 inputs → 2048, 770 outputs → 776: half a byte each, and four bytes for 128."""
    padded = 776 * 2048
    assert formats.torchao("int4", 128, tiled=True).size(770, IN) == padded // 2 + 4 * padded // 128


def test_ggml_blocks() -> None:
    assert block_format("Q4_K").size(OUT, 1280) == OUT * 5 * 144
    assert block_format("Q8_0").size(OUT, IN) == OUT * IN // 32 * 34
    assert block_format("F32").size(1, IN) == 4 * IN
    assert all(size * 8 <= 32 * elements for elements, size in BLOCKS.values())


ALL = [form for form, _ in OF_THE_CLASSES] + [formats.MXFP4, formats.nvfp4(True), formats.fp8_linear((128, 128))]
SIZES = st.integers(1, 40).map(lambda units: 128 * units)


@given(st.sampled_from(ALL), SIZES, SIZES, st.integers(1, 300))
def test_every_tensor_counts_for_every_expert(form: Format, outputs: int, inputs: int, experts: int) -> None:
    one = form.parts(outputs, inputs)
    assert form.parts(outputs, inputs, experts) == {name: experts * size for name, size in one.items()}
    assert form.size(outputs, inputs, experts) == experts * sum(one.values())


@given(st.sampled_from(ALL), SIZES, SIZES)
def test_more_weights_never_take_less(form: Format, outputs: int, inputs: int) -> None:
    size = form.size(outputs, inputs)
    assert size <= form.size(outputs + 1, inputs)
    assert size <= form.size(outputs, inputs + 1)
    assert size * 8 >= outputs * inputs * 1


@given(st.sampled_from(ALL), SIZES, SIZES, st.sampled_from([2, 4]))
def test_ranks_hold_at_least_the_whole(form: Format, outputs: int, inputs: int, ranks: int) -> None:
    """What a layer has once is there on each rank; everything else adds up where groups and words stay whole."""
    whole = form.size(outputs, inputs)
    assert ranks * form.size(-(-outputs // ranks), inputs) >= whole
    assert ranks * form.size(outputs, -(-inputs // ranks)) >= whole


def test_names_give_a_formula() -> None:
    size = formats.awq(4, 128).size(Named(OUT, "out"), Named(IN, "in"))
    assert isinstance(size, Named)
    assert int(size) == 442368 + 13824 + 3456
    assert "⌈out ÷ 8⌉" in size.formula
