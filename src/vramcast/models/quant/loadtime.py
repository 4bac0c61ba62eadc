"""Quantisation that the user asks for by the path `quant.kind`: while loading, or as a usual checkpoint."""

from __future__ import annotations

from vramcast.errors import Mistakes, near, refuse
from vramcast.models.quant import formats
from vramcast.models.quant.format import Format
from vramcast.models.quant.quantisation import Padding, Quantisation, Rule

KINDS = ("none", "int8", "nf4", "fp4", "gptq", "awq", "fp8", "fp8_block", "mxfp4", "nvfp4", "torchao", "hqq")
STORAGE = {"uint8": 1, "int8": 1, "bf16": 2, "fp16": 2, "fp32": 4, "bfloat16": 2, "float16": 2, "float32": 4}
"""`quant.storage` → bytes"""
MXFP4_PADDING = (Padding("vllm", 256, 128),)
"""vLLM 0.11 quantization/mxfp4.py, Marlin: hidden to 256, a rank's intermediate size to 128"""
TORCHAO = ("int4", "int8", "float8")
BITS = {
    "int8": (8,), "nf4": (4,), "fp4": (4,), "gptq": (4, 2, 3, 8), "awq": (4,), "fp8": (8,), "fp8_block": (8,),
    "mxfp4": (4,), "nvfp4": (4,), "torchao": (4, 8), "hqq": (4, 8, 3, 2, 1),
}  # fmt: skip
"""kind → the bits that it has, the usual ones first"""
GROUPS = {"gptq": 128, "awq": 128, "torchao": 128, "hqq": 64}
"""kind → the usual group, for kinds whose group can be chosen"""
_BITSANDBYTES = ("int8", "nf4", "fp4")
_CHECKPOINTS = ("gptq", "awq", "fp8_block", "mxfp4")
"""kinds that mean a checkpoint of the usual layout, not something that is done while loading"""


def load_time(
    kind: str,
    *,
    double: bool = False,
    storage: str | None = None,
    bits: int | None = None,
    group: int | None = None,
    weights: str | None = None,
    experts: bool | None = None,
    model_type: str = "",
) -> Quantisation | None:
    """The quantisation that a kind stands for; None for "none".

    Args:
        double: nf4 and fp4 quantise their scales once more.
        storage: nf4 and fp4: the dtype that the packed bytes are seen as.
        bits: of a packed weight; the kind's usual ones if not said.
        group: inputs that share a scale, where the kind has groups; the usual ones if not said.
        weights: torchao: `int4`, `int8` or `float8`; `bits` says the first two as well.
        experts: whether routed experts are packed. transformers 5 keeps them in one tensor that is no linear layer, so
            bitsandbytes, torchao and HQQ leave them as they are; vLLM and transformers 4 pack them.
        model_type: of the model, if known: transformers 5 lets bitsandbytes replace `nn.Linear` itself, and Falcon has
            a class of its own.

    Raises:
        Refused: an unknown kind, or a storage, bits, a group or a format that the kind does not have; all at once.
    """
    if kind == "none":
        return None
    if kind not in KINDS:
        raise refuse(f"quant.kind = {kind!r} is not known", near=near(kind, KINDS), allowed=", ".join(KINDS))
    _check(kind, storage, bits, group, weights)
    form = _format(
        kind, double, STORAGE[storage or "uint8"], bits or BITS[kind][0], group or GROUPS.get(kind, 0), weights
    )
    packs_experts = kind in (*_CHECKPOINTS, "fp8", "nvfp4") if experts is None else experts
    only = kind == "mxfp4"  # gpt-oss packs its experts and nothing else
    return Quantisation(
        method=kind,
        kind=kind,
        label=form.name if form.name.startswith(kind) else f"{kind} {form.name}",
        rules=(Rule((form,)),),
        linears=not only and not (model_type == "falcon" and kind in _BITSANDBYTES),
        experts=packs_experts,
        vision=kind not in ("gptq", "awq"),
        routers=kind in (*_BITSANDBYTES, "torchao", "hqq"),
        blocks_only=kind in ("gptq", "awq"),
        strict=kind not in ("torchao", "hqq"),
        padding=MXFP4_PADDING if only else (),
        source="quant.kind",
    )


def _check(kind: str, storage: str | None, bits: int | None, group: int | None, weights: str | None) -> None:
    """Refuse what a kind does not have."""
    mistakes = Mistakes()
    if storage is not None and storage not in STORAGE:
        mistakes.add(
            f"quant.storage = {storage!r} is not known", near=near(storage, STORAGE), allowed=", ".join(STORAGE)
        )
    if bits is not None and bits not in BITS[kind]:
        mistakes.add(
            f"quant.bits = {bits}: {kind} has no such weights", allowed=", ".join(map(str, sorted(BITS[kind])))
        )
    if group is not None and kind not in GROUPS:
        mistakes.add(f"quant.group = {group}: the groups of {kind} are fixed", allowed=f"for {', '.join(GROUPS)}")
    if weights is not None and weights not in TORCHAO:
        mistakes.add(f"torchao's {weights!r} is not known", near=near(weights, TORCHAO), allowed=", ".join(TORCHAO))
    mistakes.done()


def _format(kind: str, double: bool, storage_bytes: int, bits: int, group: int, weights: str | None) -> Format:
    if kind in ("nf4", "fp4"):
        return formats.four_bit(kind, double, storage_bytes)
    if kind == "gptq":
        return formats.gptq(bits, group)
    if kind == "awq":
        return formats.awq(bits, group)
    if kind == "hqq":
        return formats.hqq(bits, group)
    if kind == "torchao":
        return formats.torchao(weights or f"int{bits}", group)
    fixed = {
        "int8": formats.INT8_ROWS,
        "fp8": formats.fp8_linear(None),
        "fp8_block": formats.fp8_linear((128, 128)),
        "mxfp4": formats.MXFP4,
        "nvfp4": formats.nvfp4(static=False),
    }
    return fixed[kind]


def experts_int8() -> Quantisation:
    """vLLM's `experts_int8`: routed experts in 8 bits while loading, everything else as it is."""
    return Quantisation(
        method="experts_int8",
        kind="int8",
        label="experts int8",
        rules=(Rule((formats.INT8_ROWS,)),),
        linears=False,
        source="vLLM 0.11 quantization/experts_int8.py",
    )
