"""Packed dtypes are said twice: a row a person can read, and the format that weights are counted with. One truth."""

from __future__ import annotations

import pytest

from vramcast.catalog.dtypes import DTYPES
from vramcast.models.quant import formats
from vramcast.models.quant.format import Format, Holder

PACKED: dict[str, tuple[Format, Holder]] = {
    "fp8": (formats.fp8_linear(None), "vllm"),
    "fp8_block": (formats.fp8_linear((128, 128)), "vllm"),
    "nf4": (formats.four_bit("nf4"), "transformers"),
    "nf4_double": (formats.four_bit("nf4", double=True), "transformers"),
    "gptq_g128": (formats.gptq(4, 128), "vllm"),
    "awq_g128": (formats.awq(4, 128), "vllm"),
    "mxfp4": (formats.MXFP4, "checkpoint"),
    "mxfp8": (formats.MXFP8, "checkpoint"),
    "nvfp4": (formats.nvfp4(static=False), "vllm"),
}
"""row → the format, and who holds it as the row says"""
WEIGHTS = ((3584, 18944), (18944, 3584), (512, 3584), (152064, 3584))
"""outputs × inputs of Qwen2.5-7B: whole blocks of every row"""


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize(("outputs", "inputs"), WEIGHTS)
def test_a_row_is_its_format(name: str, outputs: int, inputs: int) -> None:
    form, holder = PACKED[name]
    assert DTYPES[name].size(outputs * inputs) == form.size(outputs, inputs, holder=holder)


def test_bytes_by_hand() -> None:
    """Of 3584 × 18944 = 67,895,296 weights: two a byte; absmax for 64, as fp32 or as a byte with an fp32 for 256."""
    count = 3584 * 18944
    assert count % (64 * 256) == 0
    assert DTYPES["nf4"].size(count) == count // 2 + count // 64 * 4 + 16 * 4 == 38_191_168
    codes = 16 * 4 + 256 * 4 + 4
    assert DTYPES["nf4_double"].size(count) == count // 2 + count // 64 + count // 64 // 256 * 4 + codes == 35_026_180


def test_a_started_block_is_whole_in_a_row_and_cut_in_a_format() -> None:
    """A row speaks of blocks; bitsandbytes packs two weights a byte to the end. Never more than a block apart."""
    for name in ("nf4", "nf4_double"):
        row, (form, holder) = DTYPES[name], PACKED[name]
        assert 0 < row.size(3 * 50) - form.size(3, 50, holder=holder) < row.bytes


def test_every_packed_row_has_its_format() -> None:
    plain = {row.id for row in DTYPES.values() if row.elements == 1 and not row.tensor_bytes} | {"int4"}
    assert set(DTYPES) - plain == set(PACKED)
