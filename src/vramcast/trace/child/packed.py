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
    """Replace the linear layers by packed ones, in place and without weights: Transformers' own quantizer chooses them.

    Source: transformers/modeling_utils.py from_pretrained: replaced on the meta device, under the dtype of the weights.
    """
    from transformers import BitsAndBytesConfig
    from transformers.quantizers.auto import AutoHfQuantizer

    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it tells of every cast
    if packed.kind == "int8":
        config = BitsAndBytesConfig(load_in_8bit=True)
    else:
        config = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=packed.kind,
            bnb_4bit_compute_dtype=compute,
            bnb_4bit_use_double_quant=packed.double,
            bnb_4bit_quant_storage=_STORAGE[packed.storage],
        )
    quantizer = AutoHfQuantizer.from_config(config, pre_quantized=False)
    usual = torch.get_default_dtype()
    torch.set_default_dtype(loaded)
    try:
        with torch.device("meta"):
            quantizer.preprocess_model(model, dtype=loaded, device_map={"": 0})
        quantizer.postprocess_model(model)
    finally:
        torch.set_default_dtype(usual)


def is_packed(module: torch.nn.Module, name: str) -> bool:
    """Whether a parameter of a module is packed while it is loaded."""
    from bitsandbytes.nn import Linear4bit, Linear8bitLt

    return name == "weight" and isinstance(module, (Linear4bit, Linear8bitLt))


def packed_bytes(packed: Packed, count: int) -> int:
    """What so many weights are expected to take (transformers/quantizers/quantizer_bnb_*.py: param_element_size)."""
    return count if packed.kind == "int8" else count // 2


def packed_weight(module: Any, staged: torch.Tensor, packed: Packed, tracker: Tracker) -> torch.nn.Parameter:
    """The parameter of a packed layer, made of a weight in its own dtype. Run under the tracker: what bitsandbytes makes
    on the way is recorded.

    A fake tensor cannot be bitsandbytes' own class of parameters, so it is one of PyTorch's with the attributes that
    layers ask for.
    """
    if packed.kind == "int8":
        return _eight_bits(staged, tracker)
    return _four_bits(module, staged, tracker)


def _four_bits(module: Any, staged: torch.Tensor, tracker: Tracker) -> torch.nn.Parameter:
    """Source: bitsandbytes/nn/modules.py Params4bit._quantize; transformers/integrations/bitsandbytes.py
    Bnb4bitQuantize.convert."""
    from bitsandbytes import functional

    old = module.weight
    weight, state = functional.quantize_4bit(
        staged,
        blocksize=old.blocksize,
        compress_statistics=old.compress_statistics,
        quant_type=old.quant_type,
        quant_storage=old.quant_storage,
    )
    parameter: Any = torch.nn.Parameter(weight, requires_grad=False)
    parameter.quant_state = module.quant_state = state
    parameter.bnb_quantized = True
    parameter.blocksize, parameter.quant_type, parameter.quant_storage = old.blocksize, old.quant_type, old.quant_storage
    parameter.compress_statistics = old.compress_statistics
    parts = [weight, state.absmax, state.code]
    if state.nested:
        parts += [state.offset, state.state2.absmax, state.state2.code]
    for part in parts:
        tracker.relabel(part, "weight")
    return parameter


def _eight_bits(staged: torch.Tensor, tracker: Tracker) -> torch.nn.Parameter:
    """The weight goes to the host and comes back in fp16 to be quantised.

    Source: bitsandbytes/nn/modules.py Int8Params._quantize; transformers/integrations/bitsandbytes.py
    Bnb8bitQuantize.convert.
    """
    from bitsandbytes import functional

    half = torch.empty(staged.shape, dtype=torch.float16)
    codes, scales, _ = functional.int8_vectorwise_quant(half)
    parameter: Any = torch.nn.Parameter(codes, requires_grad=False)
    parameter.CB, parameter.SCB, parameter.has_fp16_weights = codes, scales, False
    for part in (codes, scales):
        tracker.relabel(part, "weight")
    return parameter


def prepare(model: Any, rest: torch.dtype, mode: FakeTensorMode, tracker: Tracker) -> None:
    """What is not packed becomes `rest`, one parameter after the other.

    Source: peft/utils/other.py prepare_model_for_kbit_training; from 0.20 on it also empties the cache.
    """
    from peft import prepare_model_for_kbit_training

    halves = [
        parameter
        for parameter in model.parameters()
        if parameter.dtype in _HALF and parameter.dtype != rest and not parameter.requires_grad
        and not hasattr(parameter, "quant_state")
    ]  # fmt: skip
    with mode, tracker:
        for parameter in halves:
            parameter.data = parameter.data.to(rest)
            tracker.relabel(parameter, "weight")
    if halves and "auto_clear_cache" in signature(prepare_model_for_kbit_training).parameters:
        tracker.empty_cache()
