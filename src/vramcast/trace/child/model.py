"""The model of a question: the real Transformers class on the meta device, PEFT's adapters on it, then fakes."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from vramcast.errors import refuse
from vramcast.trace.child.fakes import to_fake
from vramcast.trace.child.head import put_head
from vramcast.trace.child.loading import adapters, load, move
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
        base = getattr(self.plain, "base_model", None)
        backbone: torch.nn.Module = base if isinstance(base, torch.nn.Module) else self.plain
        self.backbone: torch.nn.Module = getattr(backbone, "decoder", backbone)  # OPT calls that one itself
        self.blocks = longest_list(getattr(self.backbone, "language_model", self.backbone))
        self.trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.places = {parameter: name.rpartition(".")[0] for name, parameter in model.named_parameters()}
        """parameter → the module that has it"""
        self.reference: Any = None
        """a second model that scores beside this one"""


def longest_list(backbone: torch.nn.Module) -> list[torch.nn.Module]:
    """The longest list of modules: the layers of the language model. A list inside of one, of experts, is none."""
    lists = [module for module in backbone.modules() if isinstance(module, torch.nn.ModuleList)]
    inside = {part for each in lists if len(each) > 1 for part in each.modules() if part is not each}
    return list(max((each for each in lists if each not in inside), key=len, default=()))


def build(question: Question, mode: FakeTensorMode, tracker: Tracker) -> Parts:
    """The model, ready to train: fakes that the tracker knows, adapters, casts.

    Raises:
        Refused: Transformers does not know the type, or it needs code of its own.
    """
    model = _from_config(question, tracker)
    put_head(model, question)
    if question.adapters is not None:
        model = _adapted(model, question)
    _load(model, question, mode, tracker)
    _make_adapters(model, question, mode, tracker)
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
    model = _from_config(question, tracker)
    put_head(model, question, learns=False)
    _load(model, question, mode, tracker)
    to_fake(model, mode)
    model.eval()
    _know(model, tracker)
    return model


def _from_config(question: Question, tracker: Tracker) -> Any:
    config = _configuration(question)
    config.use_cache = question.outputs_kept  # a plain loop leaves it on; transformers/trainer.py turns it off
    implementation = _implementation(question, config, tracker)
    dtype = DTYPES[question.weights_dtype]
    own = {"trust_remote_code": True} if question.code else {}
    if _sees(config) and not question.image_tokens:
        tracker.assumed.setdefault("batches are text: towers for images and sound are loaded and do not run")
    with torch.device("meta"), _own_code(question):
        model = _auto(config).from_config(config, dtype=dtype, attn_implementation=implementation, **own)
    model.tie_weights()  # transformers 5.0 leaves that to from_pretrained
    _as_read(model, dtype)
    if question.packed is not None:
        pack(model, question.packed, dtype, DTYPES[question.packed.compute_dtype])
    return model


def _as_read(model: Any, dtype: torch.dtype) -> None:
    """Parameters in the dtype in which `from_pretrained` reads them, whatever their class makes them in.

    Source: transformers/modeling_utils.py, _get_dtype_plan.
    """
    kept = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    for name, parameter in model.named_parameters():
        last = torch.float32 if any(part in name for part in kept) else dtype
        if parameter.dtype != last and parameter.is_floating_point():
            parameter.data = parameter.data.to(last)


def _auto(config: Any) -> Any:
    """The table of classes that knows a model: of language models, or of those that see as well.

    Source: trl/trainer/utils.py create_model_from_path takes the class that config.json names.
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    return AutoModelForImageTextToText if _sees(config) else AutoModelForCausalLM


def _sees(config: Any) -> bool:
    return any(name.endswith("ForConditionalGeneration") for name in config.architectures or ())


def _configuration(question: Question) -> Any:
    """Transformers' own class of configurations, or that of the model's own code."""
    from transformers import AutoConfig

    if question.code:
        with _own_code(question):
            return AutoConfig.from_pretrained(question.code, trust_remote_code=True)
    return configuration(question.config)


def configuration(config: dict[str, Any]) -> Any:
    """A config in Transformers' own class.

    Raises:
        Refused: Transformers does not know the type.
    """
    from transformers import AutoConfig

    fields = {key: _number(value) for key, value in config.items() if key != "quantization_config"}
    kind, own = str(fields.pop("model_type")), fields.pop("auto_map", None)
    try:
        return AutoConfig.for_model(kind, **fields)
    except ValueError:
        known = f"the installed Transformers does not know the model type {kind!r}"
        raise refuse(known, use="--trust-remote-code: it brings its own code" if own else "") from None


def _number(value: Any) -> Any:
    """Numbers that JSON has no word for, as Transformers 5 writes them (configuration_utils.py: `__float__`)."""
    if isinstance(value, dict):
        if value.keys() == {"__float__"}:
            return float(value["__float__"])
        return {key: _number(one) for key, one in value.items()}
    return [_number(one) for one in value] if isinstance(value, list) else value


@contextmanager
def _own_code(question: Question) -> Generator[None]:
    try:
        yield
    except OSError as error:
        if not question.code:
            raise
        raise refuse("the model's own code is not beside its config.json", said=str(error).splitlines()[0]) from None


def _implementation(question: Question, config: Any, tracker: Tracker) -> str | None:
    """Eager where that is asked for; else Transformers takes torch's, part by part, where a class has it."""
    kind = _auto(config)._model_mapping.get(type(config), None)
    if question.attention == "eager":
        return "eager"
    if not getattr(kind, "_supports_sdpa", True):
        tracker.assumed.setdefault(f"attention is eager: {getattr(kind, '__name__', kind)} has no other")
    return None


def _load(model: Any, question: Question, mode: FakeTensorMode, tracker: Tracker) -> None:
    """The weights: read onto the card where they are packed or `device_map` says so; else made on the host and moved
    whole."""
    packed = question.packed
    if packed is None and not question.device_map:
        move(model, mode, tracker)
        return
    load(model, packed, mode, tracker)
    if packed is not None:
        prepare(model, packed, DTYPES[packed.rest_dtype], mode, tracker)


def _make_adapters(model: Any, question: Question, mode: FakeTensorMode, tracker: Tracker) -> None:
    if question.adapters is None:
        return
    last = DTYPES[question.adapters.dtype]
    if question.packed is not None:
        steps = [torch.float32, last]
    else:
        steps = [DTYPES[question.weights_dtype], last]
    adapters(model, list(dict.fromkeys(steps)), mode, tracker)


def _adapted(model: Any, question: Question) -> Any:
    from peft import LoraConfig, get_peft_model

    asked = question.adapters
    assert asked is not None
    targets = asked.targets
    config = LoraConfig(
        r=asked.rank,
        target_modules="all-linear" if targets and "all-linear" in targets else targets,
        lora_dropout=asked.dropout,
        task_type="CAUSAL_LM",
    )
    with torch.device("meta"):
        return get_peft_model(model, config)


def _know(model: Any, tracker: Tracker) -> None:
    """Buffers, and what nobody has made yet."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        kind = "adapter" if "lora_" in name else "weight"
        tracker.track(tensor, "parameter", kind, module=name.rpartition(".")[0])


def _checkpoints(model: Any, question: Question) -> None:
    if question.recompute == "none":
        return
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=checkpoint_kwargs(question))
    if question.adapters is not None:
        model.enable_input_require_grads()
