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
    del fields["peft_type"]
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
    """PEFT's model, its adapters made in the base's dtype, as PEFT moves them to that of a real base.

    Methods that compute on what they add have that in fp32 or on the CPU; the base has no values at all.
    """
    import peft

    if hasattr(adapter, "mask_fn"):
        adapter.mask_fn = None  # SHiRA: which elements train is a matter of values, how many is not
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for device, made in (("meta", dtype), ("meta", torch.float32), ("cpu", torch.float32)):
            with torch.device("meta"):
                model = model_class(settings)._from_config(settings, dtype=dtype)
                model.tie_weights()
            before = torch.get_default_dtype()
            torch.set_default_dtype(made)
            try:
                with torch.device(device):
                    return peft.get_peft_model(model, copy.deepcopy(adapter))
            except (NotImplementedError, RuntimeError):
                if device == "cpu":
                    raise
            finally:
                torch.set_default_dtype(before)
    return None


def _by_module(model: Any) -> dict[str, int]:
    """The last name of the base model's module that has them -> parameters that train; "" for those all share."""
    from peft.tuners.adaption_prompt.layer import _BaseAdaptedAttention
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    kinds = (BaseTunerLayer, AuxiliaryTrainingWrapper, _BaseAdaptedAttention)
    homes = {name for name, module in model.named_modules() if isinstance(module, kinds)}
    names = {id(module): name.rpartition(".")[2] for name, module in model.named_modules()}
    held: dict[int, tuple[int, dict[str, None]]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            held.setdefault(id(parameter), (parameter.numel(), {}))[1][_home(name, homes)] = None
    found: dict[str, int] = {}
    ends = {names[id(end)] for end in (model.get_input_embeddings(), model.get_output_embeddings()) if id(end) in names}
    for size, where in held.values():
        home = next(iter(where)) if len(where) == 1 or where.keys() == ends else ""
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
