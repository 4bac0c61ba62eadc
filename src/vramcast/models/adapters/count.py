"""Count an adapter on a layout: every tensor it adds, what trains, and the two numbers that PEFT prints."""

from __future__ import annotations

from msgspec import structs

from vramcast.models.adapters import extras, lora, prompts, rotations
from vramcast.models.adapters.adapter import Adapter, AdapterCount, Tensor, upcast
from vramcast.models.adapters.match import pattern_value, valid
from vramcast.models.adapters.methods import METHODS
from vramcast.models.adapters.modules import Module, Tree, tree
from vramcast.models.adapters.notes import Notes, Unfit
from vramcast.models.adapters.targets import Targets, resolve
from vramcast.models.layout import Layout
from vramcast.num import total

MAMBA = frozenset("falcon_h1 mamba mamba2 falcon_mamba nemotron_h".split())
"""model types whose out_proj and conv1d PEFT refuses to adapt with LoRA's kin (_check_lora_target_modules_mamba)"""
_LORA_KIN = frozenset("LORA ADALORA RANDLORA".split())


def count(layout: Layout, adapter: Adapter, weights: str = "") -> AdapterCount:
    """What `get_peft_model` makes of a model, as if it is to be trained (`inference_mode` is not read).

    Args:
        layout: the model.
        adapter: of `read_adapter` or `lora_adapter`.
        weights: dtype of the weights as loaded, the checkpoint's if not said. It decides what PEFT upcasts, and with
            AdaLoRA and MiCA a frozen tensor that is upcast trains.

    `trainable` and `total` are those of PeftModel.get_nb_trainable_parameters, peft 0.21: a tied weight counts once, a
    copy of modules_to_save beside its original, a weight that bitsandbytes packs in 4 bits with its logical elements.
    Buffers are in no count. Weights that GPTQ or AWQ hold as buffers are here and not in PEFT's total.

    Raises:
        Refused: everything that PEFT would refuse or ignore: targets that match nothing, with what exists; a rank above
            the width; patterns that match nothing; values that do not divide. All at once.
    """
    notes = Notes(adapter.source)
    model = tree(layout)
    if not valid(adapter, notes):
        notes.done()
    thawed, made = [], list[Tensor]()
    if adapter.method in prompts.PROMPTS:
        made = _prompts(layout, model, adapter, notes)
        made += extras.saved(model, adapter, (), notes, root="base_model.")
    elif adapter.method == "ADAPTION_PROMPT":
        try:
            made = prompts.adaption(layout, model, adapter)
        except Unfit as reason:
            notes.wrong(reason.fact, help=reason.help)
    else:
        found = resolve(model, adapter, notes)
        if found:
            _patterns(found, notes)
            made = _tuner(model, found, notes)
            copies = extras.saved(model, found.adapter, found.modules, notes)
            thawed = extras.biases(model, adapter, found.modules, {one.home for one in copies}, notes)
            made += [*copies, *extras.tokens(model, found.adapter, notes)]
    notes.done()
    if upcast(weights or layout.dtype):
        made = [structs.replace(one, trains=True) if one.thaws else one for one in made]
    own = [one for one in made if not one.buffer]
    return AdapterCount(
        trainable=total([*(one.elements for one in own if one.trains), *(_elements(shape) for _, shape in thawed)]),
        total=total([layout.params, *(one.elements for one in own)]),
        base=layout.params,
        tensors=tuple(made),
        thawed=tuple(thawed),
    )


def _elements(shape: tuple[int, ...]) -> int:
    return Tensor("", shape).elements


def _prompts(layout: Layout, model: Tree, adapter: Adapter, notes: Notes) -> list[Tensor]:
    try:
        return prompts.PROMPTS[adapter.method](prompts.Widths(layout, model, adapter))
    except Unfit as reason:
        notes.wrong(reason.fact, help=reason.help)
        return []


def _tuner(model: Tree, found: Targets, notes: Notes) -> list[Tensor]:
    """The tensors of a method that adapts modules."""
    adapter = found.adapter
    modules = [model.modules[name] for name in sorted(found.modules, key=_layer_first)]
    if adapter.method == "TRAINABLE_TOKENS":
        return extras.token_layers(model, adapter, found.modules, notes)
    if adapter.method == "LN_TUNING":
        return [one for module in modules for one in rotations.ln_tuning(model, module)]
    method = METHODS[adapter.method]
    fits = [module for module in modules if _accepts(module, adapter, notes)]
    made: list[Tensor] = []
    for module in fits:
        if method.each:
            try:
                made += method.each(module, adapter)
            except Unfit as reason:
                notes.at(module.name, reason)
    if method.whole and fits and not notes.unfit:
        try:
            made += method.whole(fits, adapter)
        except Unfit as reason:
            notes.at(fits[0].name, reason)
    if found.tied:
        made += lora.tied(model.modules[model.head], adapter)
    return [*made, *_on_parameters(model, found, notes)]


def _accepts(module: Module, adapter: Adapter, notes: Notes) -> bool:
    """Whether the method can adapt a module; OSF passes over what it cannot, the others stop."""
    method = METHODS[adapter.method]
    convolution = module.kind == "convolution" and len(module.shape) not in method.dims
    if adapter.method in _LORA_KIN and module.model_type in MAMBA and module.last in ("out_proj", "conv1d"):
        notes.at(module.name, Unfit(f"PEFT refuses {adapter.method} on {module.last} of {module.model_type}"))
    elif module.kind in method.kinds and not convolution:
        return True
    elif adapter.method != "OSF":
        known = ", ".join(_NAMES[one] for one in sorted(method.kinds))
        notes.at(module.name, Unfit(f"{adapter.method} adapts {known}, not {_NAMES[module.kind]}"))
    return False


_NAMES = {
    "linear": "linear layers", "conv1d": "Conv1D layers", "embedding": "embeddings", "convolution": "convolutions",
    "attention": "nn.MultiheadAttention", "norm": "norms", "other": "modules of their own class",
    "container": "modules that hold others",
}  # fmt: skip


def _on_parameters(model: Tree, found: Targets, notes: Notes) -> list[Tensor]:
    """LoRA on bare parameters; wrappers of one module nest, the first inside."""
    owners: dict[str, list[str]] = {}
    for name in found.parameters:
        owners.setdefault(name.rpartition(".")[0], []).append(name)
    made: list[Tensor] = []
    for owner, names in owners.items():
        if owner in found.modules:
            notes.at(owner, Unfit("target_parameters and target_modules name one layer"))
            continue
        for i, name in enumerate(names):
            r = pattern_value(found.adapter.table("rank_pattern"), name, found.adapter.whole("r"))
            try:
                leaf, depth = name.rpartition(".")[2], len(names) - 1 - i
                made += lora.on_parameter(model.modules[owner], leaf, model.tensors[name], depth, found.adapter, r)
            except Unfit as reason:
                notes.at(name, reason)
    return made


def _patterns(found: Targets, notes: Notes) -> None:
    """Note patterns that no adapted module answers to: PEFT warns and goes on without them."""
    adapter = found.adapter
    names = [*found.modules, *found.parameters]
    for field in ("rank_pattern", "alpha_pattern", "lambda_pattern"):
        if adapter.method in ("OSF", "ADALORA"):
            continue
        for key in adapter.table(field):
            if not any(pattern_value({key: True}, name, False) for name in names):
                ends = (name.rpartition(".")[2] for name in names)
                notes.unknown(f"{adapter.path(field)}: {key} matches no adapted module", key, ends)


def _layer_first(name: str) -> tuple[int, ...]:
    """Modules in the order of their layers, otherwise as the model has them."""
    return tuple(int(part) for part in name.split(".") if part.isdigit())
