"""What a method of PEFT trains in a class of Transformers: PEFT itself adapts the model on the meta device."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from typing import Any

import torch

from vramcast.errors import Refused, refuse
from vramcast.models.adapters.adapter import AdapterCount
from vramcast.trace.child.classes import model_class
from vramcast.trace.child.model import DTYPES, configuration
from vramcast.trace.question import AdapterQuestion


def count(question: AdapterQuestion) -> AdapterCount:
    """Adapt the class that a config names, and count what trains.

    Raises:
        Refused: Transformers has no such class, or PEFT refuses the adapter, in its own words.
    """
    import peft
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    settings = configuration(question.config)
    settings.use_cache = False
    method = str(question.adapter["peft_type"])
    known = {field.name for field in dataclasses.fields(PEFT_TYPE_TO_CONFIG_MAPPING[method]) if field.init}
    empty: tuple[Any, ...] = (None, False, [], {}, "")
    fields = {name: value for name, value in question.adapter.items() if name in known or value not in empty}
    fields = {name: value for name, value in fields.items() if name not in ("peft_type", "inference_mode")}
    try:
        adapted = _adapted(settings, DTYPES[question.dtype], PEFT_TYPE_TO_CONFIG_MAPPING[method](**fields))
    except Refused:
        raise
    except Exception as error:  # whatever PEFT raises is its refusal
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise refuse(
            f"PEFT {peft.__version__} does not make {method} of this model on the meta device",
            said=lines[0] if lines else type(error).__name__,
            **{"from": question.source},
        ) from None
    trainable, total = adapted.get_nb_trainable_parameters()
    return AdapterCount(trainable, total, _by_module(adapted))


def _adapted(settings: Any, dtype: torch.dtype, adapter: Any) -> Any:
    """PEFT's model. Methods that compute on what they add have that on the CPU; the base has no values at all."""
    import peft

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for device in ("meta", "cpu"):
            with torch.device("meta"):
                model = model_class(settings)._from_config(settings, dtype=dtype)
                model.tie_weights()
            try:
                with torch.device(device):
                    return peft.get_peft_model(model, copy.deepcopy(adapter))
            except (NotImplementedError, RuntimeError):
                if device == "cpu":
                    raise
    return None


def _by_module(model: Any) -> dict[str, int]:
    """The last name of the base model's module that has them -> parameters that train; "" for those all share."""
    from peft.tuners.adaption_prompt.layer import _BaseAdaptedAttention
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    kinds = (BaseTunerLayer, AuxiliaryTrainingWrapper, _BaseAdaptedAttention)
    homes = {name for name, module in model.named_modules() if isinstance(module, kinds)}
    held: dict[int, tuple[int, set[str]]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            held.setdefault(id(parameter), (parameter.numel(), set()))[1].add(_home(name, homes))
    found: dict[str, int] = {}
    for size, where in held.values():
        home = next(iter(where)) if len(where) == 1 else ""
        found[home] = found.get(home, 0) + size
    return found


def _home(name: str, homes: set[str]) -> str:
    """An adapted module around a parameter, the outermost; a parameter of the base model's own: its module."""
    parts = name.split(".")
    for depth in range(1, len(parts)):
        if ".".join(parts[:depth]) in homes:
            return parts[depth - 1]
    own = "default" not in parts and name.startswith("base_model.model.")
    return parts[-2] if own else ""
