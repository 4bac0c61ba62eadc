"""The parameters of a class of Transformers, counted on the meta device: no weight is made."""

from __future__ import annotations

from typing import Any

import torch

from vramcast.errors import refuse
from vramcast.models.counted import ClassCount
from vramcast.trace.child.model import configuration, longest_list
from vramcast.trace.question import ClassQuestion

_USED = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k", "moe_k", "top_k",
         "num_selected_experts", "experts_per_token")  # fmt: skip
"""fields that say how many experts a token is routed to"""


def count(question: ClassQuestion) -> ClassCount:
    """Build the class that a config names, and name its parameters.

    Raises:
        Refused: Transformers has no such class.
    """
    import transformers

    settings = configuration(question.config)
    with torch.device("meta"):
        model = _class(settings)(settings)
    model.tie_weights()
    names = {id(module): name for name, module in model.named_modules()}
    embedding, head = (_module(model, which) for which in ("get_input_embeddings", "get_output_embeddings"))
    text = _text(settings)
    return ClassCount(
        class_name=type(model).__name__,
        version=transformers.__version__,
        tensors=[(name, tuple(weight.shape)) for name, weight in model.named_parameters()],
        kinds={name: _kind(module) for name, module in model.named_modules() if name and module._parameters},
        layers=_layers(model, names),
        embedding=names.get(id(embedding), ""),
        head=names.get(id(head), ""),
        tied=getattr(head, "weight", head) is getattr(embedding, "weight", None),
        experts=next((value for name in _USED if isinstance(value := getattr(text, name, None), int)), 0),
    )


def _class(settings: Any) -> Any:
    """The class that config.json names, or the one that Transformers takes for such a configuration: one that sees
    before one that only reads."""
    import transformers
    from transformers.models.auto import modeling_auto as auto

    for name in settings.architectures or ():
        found = getattr(transformers, name, None)
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
    for mapping in (auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, auto.MODEL_FOR_CAUSAL_LM_MAPPING):
        if type(settings) in mapping:
            return mapping[type(settings)]
    raise refuse(f"the installed Transformers has no language model of the type {settings.model_type!r}")


def _kind(module: Any) -> str:
    """What a module is to PEFT; a class derived from nn.Linear is one."""
    from transformers.pytorch_utils import Conv1D

    nn = torch.nn
    table = {
        "linear": nn.Linear, "conv1d": Conv1D, "embedding": nn.Embedding, "attention": nn.MultiheadAttention,
        "convolution": (nn.Conv1d, nn.Conv2d, nn.Conv3d),
    }  # fmt: skip
    alone = next(iter(module._parameters.values()))
    vector = alone is not None and alone.ndim == 1 and module._parameters.keys() <= {"weight", "bias"}
    return next((kind for kind, of in table.items() if isinstance(module, of)), "norm" if vector else "other")


def _text(settings: Any) -> Any:
    """The configuration of the language model; the whole where several have one."""
    try:
        return settings.get_text_config()
    except ValueError:
        return settings


def _module(model: Any, which: str) -> Any:
    """The module that embeds tokens, or that gives logits; None for a class that does not say."""
    try:
        return getattr(model, which)()
    except (NotImplementedError, AttributeError):
        return None


def _layers(model: Any, names: dict[int, str]) -> str:
    """The list of the language model's layers."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    found = longest_list(decoder if isinstance(decoder, torch.nn.Module) else model)
    return names[id(found[0])].rpartition(".")[0] if found else ""
