"""Products of packed weights, one at a time: what they allocate, what they keep, what their backward needs at most."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs
from tests.memory.layers import product as layer
from tests.random_jobs import said

from vramcast.algorithms.table import POLICY
from vramcast.estimate.resolve import resolve
from vramcast.estimate.seats import Seats
from vramcast.memory.head import Model
from vramcast.memory.packing import Packing, Product
from vramcast.memory.passes import stack
from vramcast.memory.tape import Tape, Tensor
from vramcast.models.arch import build_arch
from vramcast.models.quant.formats import INT8_ROWS, four_bit

IN, OUT = 128, 192
ROWS = 200
"""two sequences of 100 tokens"""
WEIGHT = OUT * IN * 2
"""unpacked to 16 bits: 49,152"""
X, Y = ROWS * IN * 2, ROWS * OUT * 2
"""an input of 51,200 bytes and a result of 76,800, in 16 bits"""
SCALES = OUT * IN // 64 * 4
"""an fp32 number for 64 weights: 1,536"""

_BASE = Seats(resolve(said({"model": "Qwen/Qwen2.5-7B", "gpu": "a100-sxm-80gb"})), POLICY).base
_CONFIG = {
    "model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 512,
}  # fmt: skip
_ARCH = build_arch("small", _CONFIG, "here")


def packing(product: Product, compute_dtype: str = "bf16", *, nested: bool = False) -> Packing:
    """Of a layer alone, by its name, and of the model's."""
    form = INT8_ROWS if product == "int8" else four_bit(double=nested)
    (block,) = _ARCH.kinds
    names = [*_ARCH.linears, *(f"{block.prefix}.{name}" for name in block.linears())]
    formats = dict.fromkeys((f"{name}.weight" for name in names), form)
    return Packing(
        formats=formats, product=product, compute_dtype=compute_dtype, origin_dtype="bf16", nested=nested
    )  # fmt: skip


def operators(packed: Packing, *, records: bool = True, **modes: Any) -> Model:
    plain = {"arch": _ARCH, "sequences": 2, "seq_len": ROWS // 2, "state": "forward", "tuning": "lora",
             "lora_rank": 8, "targets": frozenset[str](), "weights_dtype": "bf16", "param_dtype": "bf16",
             "compute_dtype": "bf16", "autocast": False, "attention": "flash", "recompute": "none",
             "adapter_dropout": False}  # fmt: skip
    return Model(Tape(records=records), structs.replace(_BASE, packing=packed, memo={}, **{**plain, **modes}))


class Run:
    """`up_proj` on an input of `dtype`, forward and backward. Bytes are beside that input."""

    def __init__(self, packed: Packing, dtype: str = "bf16", *, rows: int = ROWS, **modes: Any) -> None:
        self.ops = operators(packed, **modes)
        self.tape = self.ops.tape
        self.x = self.tape.empty("x", rows, IN, dtype)
        self.x.requires_grad = self.tape.records
        self.start = len(self.tape.steps)
        self.out = layer(self.ops, "up_proj", self.x, IN, OUT, bias=False)

    @property
    def forward(self) -> int:
        return self.tape.peak(self.start)

    @property
    def kept(self) -> int:
        """Beside the result."""
        return self.tape.alive(since=self.start) - self.tape.size(self.out)

    def backward(self) -> int:
        """Most alive in backward, beside the input and the result; the gradient that comes in is counted."""
        start = len(self.tape.steps)
        self.tape.backward(self.out, self.tape.like(self.out, "given"))
        return self.tape.peak(self.start, start) - self.tape.size(self.out)


# --- 4 bits: unpacked for the product ---------------------------------------------------------------------------------


def test_a_4_bit_weight_is_unpacked_whole_for_its_product() -> None:
    run = Run(packing("unpack"))
    assert run.forward == WEIGHT + Y
    assert run.kept == 0  # no input, since the weight is frozen, and no unpacked weight
    assert run.tape.size(run.out) == Y


def test_and_again_in_backward_for_the_gradient_of_its_input() -> None:
    assert Run(packing("unpack")).backward() == Y + WEIGHT + X  # given, the weight, the input's gradient


def test_the_unpacked_weight_dies_before_anything_else_is_made() -> None:
    """No step lies between the birth of the result, or of the input's gradient, and the weight's death."""
    run = Run(packing("unpack"))
    run.backward()
    found = [(life, life.born, life.dies) for life in run.tape.lifetimes().lives if "unpacked weight" in life.name]
    assert len(found) == 2
    assert all(died == born + 2 for _, born, died in found)


def test_without_a_graph_it_is_the_same_forward() -> None:
    run = Run(packing("unpack"), records=False)
    assert (run.forward, run.kept, run.tape.nodes) == (WEIGHT + Y, 0, [])


def test_nested_scales_are_unpacked_too() -> None:
    """Forward adds their offset in a second copy; backward in place, and lets go of them before the product."""
    run = Run(packing("unpack", nested=True))
    assert run.forward == 2 * SCALES + WEIGHT + Y
    assert run.kept == 0
    assert run.backward() == Y + max(SCALES + WEIGHT, WEIGHT + X)
    assert max(storage.size for storage in run.tape.lifetimes().lives if "scales" in storage.name) == SCALES


def test_a_part_of_a_block_of_scales_is_a_whole_one() -> None:
    """3 x 50 weights in blocks of 64: three scales, in two copies."""
    ops = operators(packing("unpack", nested=True), records=False)
    x = ops.tape.empty("x", 1, 50, "bf16")
    start = len(ops.tape.steps)
    layer(ops, "up_proj", x, 50, 3, bias=False)
    assert ops.tape.peak(start) == 2 * 3 * 4 + 3 * 50 * 2 + 3 * 2


def test_another_compute_dtype_copies_input_and_result() -> None:
    run = Run(packing("unpack", "fp16"))
    # the fp16 input, the weight and the fp16 result; then result and input beside the result in bf16
    assert run.forward == max(X + WEIGHT + Y, X + Y + Y)
    assert run.kept == 0
    # given and its fp16 copy is all that is there when the weight comes, in bf16 as it was packed, and is cast to fp16
    # beside it; then the fp16 gradient of the input, which is cast to bf16 once the weight is gone
    assert run.backward() == max(Y + Y, Y + 2 * WEIGHT, Y + WEIGHT + X, 2 * X)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_autocast_converts_what_the_compute_dtype_left_in_fp32(dtype: str) -> None:
    """fp32 activations, as PEFT's preparation leaves them. In bf16 the layer's own cast is the only one; in fp32 the
    weight is unpacked to fp32, and autocast copies both operands to bf16."""
    run = Run(packing("unpack", dtype), "fp32", autocast=True)
    result = 2 * Y  # in fp32 again
    if dtype == "bf16":
        assert run.forward == X + Y + result
    else:
        assert run.forward == 2 * WEIGHT + X + WEIGHT + Y
    assert run.kept == 0
    # given in fp32, cast to bf16; the weight; the input's gradient in bf16, and cast to fp32
    assert run.backward() == max(2 * Y + Y, Y + WEIGHT + X, X + 2 * X)


def test_backward_unpacks_to_what_the_weight_was_packed_from() -> None:
    """With few rows the weight is most of it. It comes in bf16 whatever the products' dtype, and is cast where the
    gradient has another one: to fp16 here, not to fp32 under autocast, whose products are bf16."""
    few = 10
    x, y = few * IN * 2, few * OUT * 2
    assert Run(packing("unpack"), rows=few).backward() == y + WEIGHT + x
    assert Run(packing("unpack", "fp16"), rows=few).backward() == y + 2 * WEIGHT
    assert Run(packing("unpack", "fp32"), "fp32", rows=few, autocast=True).backward() == y + WEIGHT + x


def test_a_bias_of_a_packed_layer_is_no_allocation() -> None:
    """The kernel's epilogue adds it; it is frozen and counted with the weights."""
    ops = operators(packing("unpack"), records=False)
    x = ops.tape.empty("x", ROWS, IN, "bf16")
    start = len(ops.tape.steps)
    layer(ops, "q_proj", x, IN, OUT, bias=True)
    assert ops.tape.peak(start) == WEIGHT + Y


# --- LLM.int8() -------------------------------------------------------------------------------------------------------

CODES, SUMS = ROWS * IN, ROWS * OUT * 4
"""the input in 8 bits, and the int32 sums of the product: 25,600 and 153,600"""
ROW_SCALES = ROWS * 4


def test_int8_quantises_its_input_and_sums_in_32_bits() -> None:
    """First fp16 input, magnitudes and a mask of outliers beside scales and codes; at last sums, fp16 and bf16."""
    run = Run(packing("int8"))
    assert run.forward == max(X + ROW_SCALES + CODES + X + CODES, ROW_SCALES + CODES + SUMS + Y + Y)
    assert run.tape.size(run.out) == Y


def test_int8_of_an_fp16_model_copies_neither_input_nor_result() -> None:
    run = Run(packing("int8"), "fp16", param_dtype="fp16", weights_dtype="fp16")
    assert run.forward == max(ROW_SCALES + CODES + X + CODES, ROW_SCALES + CODES + SUMS + Y)


def test_int8_holds_its_input_in_the_node_until_the_graph_goes() -> None:
    run = Run(packing("int8"))
    assert run.kept == 0  # the input is the caller's
    run.tape.drop(run.x)
    assert run.tape.alive() == X + Y
    run.backward()
    assert X in [storage.size for storage in run.tape.living()]  # still: backward does not let go of it
    assert [held.storage for held in run.ops.held_inputs] == [run.x.storage]
    run.tape.drop(*run.ops.held_inputs)
    assert run.x.storage is not None
    assert run.x.storage.holds == 0


def test_int8_unpacks_the_weight_in_backward() -> None:
    assert Run(packing("int8")).backward() == Y + WEIGHT + X


def test_int8_holds_nothing_without_a_graph_or_for_an_input_that_learns_nothing() -> None:
    assert Run(packing("int8"), records=False).ops.held_inputs == []
    ops = operators(packing("int8"))
    layer(ops, "up_proj", ops.tape.empty("x", ROWS, IN, "bf16"), IN, OUT, bias=False)
    assert ops.held_inputs == []


def _held(**modes: Any) -> int:
    return stack(operators(packing("int8"), **modes).seat).last.held


HIDDEN, FFN = ROWS * 64 * 2, ROWS * 96 * 2


def test_a_block_holds_every_input_of_its_int8_products_once() -> None:
    """q, k and v share one; o has attention's output, gate and up the second norm's, down the product."""
    assert _held() == 3 * HIDDEN + FFN


def test_recomputation_holds_none_of_its_own_beside_the_first_forwards() -> None:
    """The first forward's graph holds them all the time, also while the block is run again."""
    assert _held(recompute="full") == 3 * HIDDEN + FFN
    assert _held(recompute="full", reentrant=True) == 0  # that one makes no graph in the first forward


def test_what_nodes_hold_is_not_counted_as_saved() -> None:
    """The rest of what a block saves is less than in 4 bits, where each of these inputs that stays is saved."""
    held, saved = (stack(operators(packing(product)).seat).last for product in ("int8", "unpack"))
    assert held.held > 0 == saved.held
    assert held.saved <= saved.saved
    assert held.saved + held.held > saved.saved


# --- kernels that read packed weights, in inference -------------------------------------------------------------------


def test_a_kernel_allocates_its_result_alone() -> None:
    assert Run(packing("kernel"), records=False).forward == Y


def test_fp8_quantises_its_input_with_a_scale_for_128() -> None:
    assert Run(packing("fp8"), records=False).forward == ROWS * IN + ROWS * 1 * 4 + Y
    ops = operators(packing("fp8"), records=False)
    x = ops.tape.empty("x", ROWS, 130, "bf16")  # 128 and a rest
    start = len(ops.tape.steps)
    layer(ops, "up_proj", x, 130, OUT, bias=False)
    assert ops.tape.peak(start) == ROWS * 130 + ROWS * 2 * 4 + Y


@pytest.mark.parametrize(("rows", "weight"), [(1023, 0), (1024, WEIGHT), (5000, WEIGHT)])
def test_awq_unpacks_the_weight_from_1024_rows_on(rows: int, weight: int) -> None:
    run = Run(packing("long"), rows=rows, records=False)
    assert run.forward == weight + rows * OUT * 2
    assert run.kept == 0


# --- who is packed ----------------------------------------------------------------------------------------------------


def test_only_the_layers_that_have_a_format_are_packed() -> None:
    some = structs.replace(packing("unpack"), formats={"up_proj.weight": four_bit()})
    ops = operators(some)
    assert ops.packing_for("up_proj") is some
    assert ops.packing_for("down_proj") is None
    start = len(ops.tape.steps)
    x = ops.tape.empty("x", ROWS, IN, "bf16")
    layer(ops, "down_proj", x, IN, OUT, bias=False)
    assert ops.tape.peak(start) == X + Y


def test_the_head_is_never_packed() -> None:
    ops = operators(packing("unpack"), records=False)
    start = len(ops.tape.steps)
    layer(ops, "lm_head", ops.tape.empty("x", ROWS, IN, "bf16"), IN, OUT, bias=False)
    assert ops.tape.peak(start) == X + Y


@pytest.mark.parametrize(
    ("product", "loads"),
    [("unpack", True), ("int8", True), ("fp8", False), ("long", False), ("kernel", False)],
)
def test_bitsandbytes_packs_while_loading(product: Product, loads: bool) -> None:
    assert packing(product).while_loading is loads


# --- adapters beside packed weights -----------------------------------------------------------------------------------

ADAPTED = {"targets": frozenset({"up_proj"}), "adapter_dtype": "bf16", "adapter_param_dtype": "bf16"}
RANK = ROWS * 8 * 2


def names(run: Run) -> list[str]:
    return [storage.name.removeprefix("up_proj.") for storage in run.tape.lifetimes().lives]


def test_an_adapter_on_4_bits_adds_to_a_copy_of_the_product() -> None:
    """The copy takes the product's place. An 8-bit layer is added to as it is."""
    run = Run(packing("unpack"), **ADAPTED)
    assert names(run)[:4] == ["x", "unpacked weight", "output", "copy of the product"]
    assert run.kept == RANK  # B's input; A's is the caller's, since nothing is cast or dropped out
    # product and copy; then the copy, B's input, B's output and the scaled one; the sum comes where B's output was
    assert run.forward == max(WEIGHT + Y, Y + Y, Y + RANK + Y + Y)
    assert "copy of the product" not in names(Run(packing("int8"), **ADAPTED))


def test_an_fp32_adapter_beside_packed_weights_is_brought_back_to_16_bits_before_the_sum() -> None:
    """Beside plain weights the sum is fp32 (see test_tape); PEFT's packed layers convert the adapter's part first."""
    run = Run(packing("unpack"), **{**ADAPTED, "adapter_dtype": "fp32", "adapter_param_dtype": "fp32"})
    sums = [storage for storage in run.tape.lifetimes().lives if storage.name == "sum"]
    assert [storage.size for storage in sums] == [Y]
    # A's input in fp32, and B's input
    assert run.kept == 2 * X + 2 * RANK


def test_under_autocast_a_packed_layer_leaves_its_input_to_autocast() -> None:
    """An fp32 adapter gets the bf16 input as it is: no fp32 copy, and so none back."""
    run = Run(packing("unpack"), autocast=True, **{**ADAPTED, "adapter_dtype": "fp32", "adapter_param_dtype": "fp32"})
    assert not [name for name in names(run) if "adapter input" in name]
    plain = Run(structs.replace(packing("unpack"), formats={}), autocast=True,
                **{**ADAPTED, "adapter_dtype": "fp32", "adapter_param_dtype": "fp32"})  # fmt: skip
    assert "up_proj adapter input" in names(plain)


def test_what_a_packed_product_makes_is_named_after_its_layer() -> None:
    found = [storage.name for storage in Run(packing("unpack")).tape.lifetimes().lives]
    assert found == ["x", "up_proj.unpacked weight", "up_proj.output"]


def _learning(ops: Model) -> Tensor:
    x = ops.tape.empty("x", ROWS, 64, "bf16")
    x.requires_grad = True
    return x


def test_inputs_of_the_first_forward_come_again_before_a_recomputation() -> None:
    """Each storage once, however many products held it."""
    first = operators(packing("int8"))
    x = _learning(first)
    layer(first, "q_proj", x, 64, 64, bias=False)
    layer(first, "k_proj", first.tape.view(x), 64, 64, bias=False)
    assert len(first.held_inputs) == 2
    again = operators(packing("int8"))
    assert again.hold_again(first.held_inputs) == [HIDDEN]
    assert again.tape.alive() == HIDDEN


@pytest.mark.parametrize("recomputes", [False, True])
def test_a_recomputation_lets_go_of_its_own_inputs_when_it_is_over(recomputes: bool) -> None:
    """Its graph goes, the first forward's stays."""
    ops = operators(packing("int8"))
    if recomputes:
        ops.hold_again([ops.tape.empty("input of the first forward", ROWS, 64, "bf16")])
    start = len(ops.tape.steps)
    x = _learning(ops)
    out = layer(ops, "q_proj", x, 64, 64, bias=False)
    ops.drop(x, out)
    assert ops.tape.alive(since=start) == HIDDEN
    ops.forget_recomputation()
    assert ops.tape.alive(since=start) == (0 if recomputes else HIDDEN)
