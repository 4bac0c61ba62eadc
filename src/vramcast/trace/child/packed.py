"""Packed bases: bitsandbytes' own layers in the model, and what becomes of a weight that is packed."""

from __future__ import annotations

import logging
from inspect import signature
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from vramcast.trace.child.tracker import Tracker
from vramcast.trace.question import Packed

_STORAGE = {
    "uint8": torch.uint8, "int8": torch.int8, "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32,
    "bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32,
}  # fmt: skip
"""`quant.storage` -> dtype"""
_HALF = (torch.float16, torch.bfloat16)


def pack(model: Any, packed: Packed, loaded: torch.dtype, compute: torch.dtype) -> None:
    """Replace linear layers by packed ones, in place and without weights; Transformers' own quantizer chooses them.

    Source: transformers/modeling_utils.py from_pretrained: on the meta device, under the dtype of the weights.
    """
    from transformers.quantizers.auto import AutoHfQuantizer

    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it tells of every cast
    quantizer = AutoHfQuantizer.from_config(_config(packed, compute), pre_quantized=False)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(loaded)
    try:
        with torch.device("meta"):
            quantizer.preprocess_model(model, dtype=loaded, device_map={"": 0})
        quantizer.postprocess_model(model)
    finally:
        torch.set_default_dtype(usual)


def _config(packed: Packed, compute: torch.dtype) -> Any:
    from transformers import BitsAndBytesConfig

    if packed.kind == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=packed.kind,
        bnb_4bit_compute_dtype=compute,
        bnb_4bit_use_double_quant=packed.double,
        bnb_4bit_quant_storage=_STORAGE[packed.storage],
    )


def is_packed(module: torch.nn.Module, name: str) -> bool:
    """Whether a parameter of a module is packed."""
    from bitsandbytes.nn import Linear4bit, Linear8bitLt

    return name == "weight" and isinstance(module, (Linear4bit, Linear8bitLt))


def packed_bytes(packed: Packed, count: int) -> int:
    """What so many weights are expected to take (transformers/quantizers/quantizer_bnb_*.py: param_element_size)."""
    return count if packed.kind == "int8" else count // 2


def packed_weight(module: Any, staged: torch.Tensor, packed: Packed, tracker: Tracker) -> torch.nn.Parameter:
    """The parameter of a packed layer, made of a weight in its own dtype, and the statistics that it brings.

    What bitsandbytes makes on the way is recorded, unless the checkpoint was packed before. A fake tensor cannot be of
    bitsandbytes' own class of parameters: it is one of PyTorch's, with the attributes that layers ask for.
    """
    make = _eight_bits if packed.kind == "int8" else _four_bits
    if packed.ready:
        with tracker.paused():
            parameter, parts = make(module, staged)
    else:
        parameter, parts = make(module, staged)
    for part in parts:
        tracker.track(part, "packed weight", "weight")
    return parameter


def _four_bits(module: Any, staged: torch.Tensor) -> tuple[torch.nn.Parameter, list[torch.Tensor]]:
    """Source: bitsandbytes/nn/modules.py Params4bit._quantize; transformers/integrations/bitsandbytes.py
    Bnb4bitQuantize.convert."""
    from bitsandbytes import functional

    old = module.weight
    names = ("blocksize", "compress_statistics", "quant_type", "quant_storage")
    weight, state = functional.quantize_4bit(staged, **{name: getattr(old, name) for name in names})
    parameter: Any = torch.nn.Parameter(weight, requires_grad=False)
    for name in names:
        setattr(parameter, name, getattr(old, name))
    parameter.quant_state = module.quant_state = state
    parameter.bnb_quantized = True
    nested = [state.offset, state.state2.absmax, state.state2.code] if state.nested else []
    return parameter, [weight, state.absmax, state.code, *nested]


def _eight_bits(module: Any, staged: torch.Tensor) -> tuple[torch.nn.Parameter, list[torch.Tensor]]:
    """The weight goes to the host and comes back in fp16 to be quantised.

    Source: bitsandbytes/nn/modules.py Int8Params._quantize; transformers/integrations/bitsandbytes.py
    Bnb8bitQuantize.convert.
    """
    from bitsandbytes import functional

    half = torch.empty(staged.shape, dtype=torch.float16)
    codes, scales, _ = functional.int8_vectorwise_quant(half)
    parameter: Any = torch.nn.Parameter(codes, requires_grad=False)
    parameter.CB, parameter.SCB, parameter.has_fp16_weights = codes, scales, False
    return parameter, [codes, scales]


def prepare(model: Any, packed: Packed, rest: torch.dtype, mode: FakeTensorMode, tracker: Tracker) -> None:
    """What is not packed becomes `rest`, one parameter after the other.

    Source: peft/utils/other.py prepare_model_for_kbit_training; from 0.20 on it empties the cache then.
    """
    from peft import prepare_model_for_kbit_training

    halves = [
        parameter
        for parameter in model.parameters()
        if parameter.dtype in _HALF and parameter.dtype != rest and not hasattr(parameter, "quant_state")
        and not parameter.is_meta
    ]  # fmt: skip
    with mode, tracker:
        for parameter in halves:
            parameter.data = parameter.data.to(rest)
            tracker.relabel(parameter, "weight")
    clears = packed.clears_cache
    if clears is None:
        clears = "auto_clear_cache" in signature(prepare_model_for_kbit_training).parameters
    if halves and clears:
        tracker.empty_cache()
