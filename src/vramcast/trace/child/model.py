"""The model of a question: the real Transformers class on the meta device, PEFT's adapters on it, then fakes."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from vramcast.errors import refuse
from vramcast.trace.child.fakes import to_fake
from vramcast.trace.child.head import put_head
from vramcast.trace.child.loading import load
from vramcast.trace.child.packed import pack, prepare
from vramcast.trace.child.recompute import checkpoint_kwargs
from vramcast.trace.child.tracker import Tracker
from vramcast.trace.question import Question

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Parts:
    """A model and its places: the backbone, its blocks, the head."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.plain = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.backbone: torch.nn.Module = self.plain.base_model
        self.blocks = longest_list(self.backbone)
        self.trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.reference: Any = None
        """a second model that scores beside this one"""


def longest_list(backbone: torch.nn.Module) -> list[torch.nn.Module]:
    """The longest list of modules: the layers of the language model."""
    lists = [module for module in backbone.modules() if isinstance(module, torch.nn.ModuleList)]
    return list(max(lists, key=len)) if lists else []


def build(question: Question, mode: FakeTensorMode, tracker: Tracker) -> Parts:
    """The model, ready to train: fakes that the tracker knows, adapters, casts.

    Raises:
        Refused: Transformers does not know the type, or it needs code of its own.
    """
    model = _from_config(question)
    put_head(model, question)
    if question.adapters is not None:
        model = _adapted(model, question)
    _load(model, question, mode, tracker)
    to_fake(model, mode)
    model.train()
    _know(model, tracker)
    _checkpoints(model, question)
    parts = Parts(model)
    if question.reference == "copy":
        parts.reference = _reference(question, mode, tracker)
    return parts


def _reference(question: Question, mode: FakeTensorMode, tracker: Tracker) -> Any:
    """The base model once more, as trainers load it: it scores only (trl/trainer/dpo_trainer.py: ref_model)."""
    model = _from_config(question)
    put_head(model, question, learns=False)
    _load(model, question, mode, tracker)
    to_fake(model, mode)
    model.eval()
    _know(model, tracker)
    return model


def _from_config(question: Question) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = {key: value for key, value in question.config.items() if key != "quantization_config"}
    kind = str(fields.pop("model_type"))
    if "auto_map" in fields and not question.trust_remote_code:
        raise refuse(f"{kind} brings its own code", use="--trust-remote-code, if you trust it")
    try:
        config = AutoConfig.for_model(kind, **fields)
    except ValueError:
        raise refuse(f"the installed Transformers does not know the model type {kind!r}") from None
    config.use_cache = False
    implementation = "eager" if question.attention == "eager" else "sdpa"
    dtype = DTYPES[question.weights_dtype]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=implementation)
    model.tie_weights()  # transformers 5.0 leaves that to from_pretrained
    if question.packed is not None:
        pack(model, question.packed, dtype, DTYPES[question.packed.compute_dtype])
    return model


def _load(model: Any, question: Question, mode: FakeTensorMode, tracker: Tracker) -> None:
    """What is read onto the card itself: packed bases. A plain model is made on the host and moved whole."""
    packed = question.packed
    if packed is not None:
        load(model, packed, mode, tracker)
        prepare(model, DTYPES[packed.rest_dtype], mode, tracker)


def _adapted(model: Any, question: Question) -> Any:
    from peft import LoraConfig, get_peft_model

    adapters = question.adapters
    assert adapters is not None
    targets = adapters.targets
    config = LoraConfig(
        r=adapters.rank,
        target_modules="all-linear" if targets and "all-linear" in targets else targets,
        lora_dropout=adapters.dropout,
        task_type="CAUSAL_LM",
    )
    with torch.device("meta"):
        adapted = get_peft_model(model, config)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(DTYPES[adapters.dtype])
    return adapted


def _know(model: Any, tracker: Tracker) -> None:
    """Parameters and buffers, in the order in which the model has them."""
    named = [*model.named_parameters(), *model.named_buffers()]
    for late in (False, True):  # adapters are made when all weights are there
        for name, tensor in named:
            adapter = "lora_" in name
            if adapter == late:
                tracker.track(tensor, "parameter", "adapter" if adapter else "weight", module=name.rpartition(".")[0])


def _checkpoints(model: Any, question: Question) -> None:
    if question.recompute == "none":
        return
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=checkpoint_kwargs(question))
    if question.adapters is not None:
        model.enable_input_require_grads()
