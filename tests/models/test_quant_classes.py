"""Packed tensors beside those of transformers' own classes, built on the meta device (extra `trace`)."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from tests.models.classes import smallest_of_each_type

from vramcast.catalog.models import model_config
from vramcast.models.describe import build_layout
from vramcast.models.place import is_expert
from vramcast.models.quant.loadtime import load_time
from vramcast.models.quant.names import is_matrix
from vramcast.models.quant.read import read_quantisation
from vramcast.models.stored import tensors

ROUTERS = {"llama4": "router", "phimoe": "router"}
"""types whose routers are classes of their own that inherit from nn.Linear: no method packs them"""


def _need(*names: str) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            pytest.skip(f"not compared with transformers' classes: no {name} (extra `trace`)")


def _built(config: dict[str, Any]) -> Any:
    """The class of a model, without its quantisation."""
    import torch
    import transformers
    from transformers.models.auto import modeling_auto

    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    settings = transformers.CONFIG_MAPPING[plain["model_type"]].from_dict(plain)
    built: Any = getattr(transformers, (plain.get("architectures") or [""])[0], None)
    for name in ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING", "MODEL_FOR_CAUSAL_LM_MAPPING"):
        mapping = getattr(modeling_auto, name)
        if built is None and type(settings) in mapping:
            built = mapping[type(settings)]
    with torch.device("meta"):
        return built(settings)


@pytest.mark.trace
def test_matrices_are_the_linear_layers() -> None:
    _need("torch", "transformers")
    import torch
    from transformers.pytorch_utils import Conv1D

    differ: dict[str, list[str]] = {}
    compared = 0
    for row in smallest_of_each_type():
        try:
            model = _built(row.config)
        except (KeyError, ImportError, TypeError):
            continue
        compared += 1
        layout = build_layout(row.id, row.config, row.where)
        weights = {name: (weight, block.module(weight)) for block in layout.blocks for name, weight in block.names()}
        kinds = (torch.nn.Linear, Conv1D)
        theirs = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, kinds)}
        ours = {name for name, (weight, module) in weights.items()
                if is_matrix(name, weight, module) and not is_expert(weight)}  # fmt: skip
        allowed = ROUTERS.get(row.config["model_type"], "?")
        wrong = sorted(name for name in ours ^ (theirs & set(weights)) if allowed not in name)
        if wrong:
            differ[row.config["model_type"]] = wrong[:3]
    assert differ == {}
    assert compared >= 80


@pytest.mark.trace
@pytest.mark.parametrize(
    "name",
    [
        "deepseek-ai/DeepSeek-V3.2",
        "deepseek-ai/DeepSeek-V4-Flash",
        "MiniMaxAI/MiniMax-M2.7",
        "XiaomiMiMo/MiMo-V2-Flash",
    ],
)
def test_fp8_checkpoints(name: str) -> None:
    _need("torch", "transformers")
    from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer
    from transformers.utils.quantization_config import FineGrainedFP8Config

    row = model_config(name)
    model = _built(row.config)
    more = {"expert_dtype": row.config["expert_dtype"]} if row.config.get("expert_dtype") else {}
    config = FineGrainedFP8Config.from_dict({**row.config["quantization_config"], **more})
    FineGrainedFP8HfQuantizer(config, pre_quantized=True)._process_model_before_weight_loading(model)
    theirs = {key: value.numel() * value.element_size() for key, value in model.named_parameters()
              if value.element_size() == 1 or key.endswith("scale_inv")}  # fmt: skip
    ours: dict[str, int] = {}
    found = read_quantisation(row.config, row.where)
    for block in build_layout(row.id, row.config, row.where).blocks:
        for layer in block.layers or (None,):
            for tensor in tensors(
                block, found, "bf16", holder="transformers", layers=(layer,) if layer is not None else ()
            ):
                if "packed" in tensor.parts:
                    ours[tensor.name] = int(tensor.parts["packed"])
                    ours[f"{tensor.name}_scale_inv"] = int(tensor.parts["scales"])
    assert ours == theirs


@pytest.mark.trace
@pytest.mark.parametrize("kind", ["nf4", "int8"])
@pytest.mark.parametrize(
    "name", ["Qwen/Qwen2.5-0.5B", "Qwen/Qwen3-30B-A3B", "google/gemma-3-4b-it", "tiiuae/falcon-7b"]
)
def test_bitsandbytes_replaces_what_we_pack(name: str, kind: str) -> None:
    _need("torch", "transformers", "bitsandbytes")
    import bitsandbytes
    from transformers.integrations.bitsandbytes import replace_with_bnb_linear
    from transformers.quantizers.base import HfQuantizer
    from transformers.utils.quantization_config import BitsAndBytesConfig

    row = model_config(name)
    model = _built(row.config)
    kept = HfQuantizer.get_modules_to_not_convert(model, None, model._keep_in_fp32_modules)
    replace_with_bnb_linear(model, kept, BitsAndBytesConfig(load_in_4bit=kind == "nf4", load_in_8bit=kind == "int8"))
    kinds = (bitsandbytes.nn.Linear4bit, bitsandbytes.nn.Linear8bitLt)
    theirs = {f"{path}.weight" for path, module in model.named_modules() if isinstance(module, kinds)}
    layout = build_layout(row.id, row.config, row.where)
    found = load_time(kind, model_type=layout.model_type)
    assert found is not None
    ours = {full for block in layout.blocks for full, weight in block.names()
            if found.format_of(full, weight, block.module(weight))}  # fmt: skip
    assert ours == theirs


@pytest.mark.trace
@pytest.mark.parametrize("double", [False, True])
def test_bitsandbytes_tensors(double: bool) -> None:
    _need("torch", "bitsandbytes")
    import torch
    from bitsandbytes import functional

    found = load_time("nf4", double=double)
    assert found is not None
    weight = torch.randn(129, 321)
    packed, state = functional.quantize_4bit(weight, compress_statistics=double, quant_type="nf4")
    held = [packed, state.absmax, state.code]
    if double:
        held += [state.state2.absmax, state.state2.code, state.offset]
    assert found.rules[0].formats[0].size(129, 321) == sum(one.numel() * one.element_size() for one in held)
