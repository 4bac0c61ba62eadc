"""Count LoRA on a layout: what trains, and the two numbers that PEFT prints."""

from __future__ import annotations

from vramcast.models.adapters import extras, lora
from vramcast.models.adapters.adapter import Adapter, AdapterCount, Tensor
from vramcast.models.adapters.match import matched, pattern_value, valid
from vramcast.models.adapters.modules import Tree, tree
from vramcast.models.adapters.notes import Notes, Unfit
from vramcast.models.adapters.targets import Targets, resolve
from vramcast.models.layout import Layout
from vramcast.num import Size, total


def count(layout: Layout, adapter: Adapter) -> AdapterCount:
    """What `get_peft_model` makes of a model, as if it is to be trained (`inference_mode` is not read).

    Args:
        layout: the model.
        adapter: of `read_adapter` or `lora_adapter`, one that `by_peft` leaves to us.

    `trainable` and `total` are those of PeftModel.get_nb_trainable_parameters, peft 0.21: a tied weight counts once, a
    copy of modules_to_save beside its original, a weight that bitsandbytes packs in 4 bits with its logical elements.
    Weights that GPTQ or AWQ hold as buffers are here and not in PEFT's total.

    Raises:
        Refused: everything that PEFT would refuse or ignore: targets that match nothing, with what exists; a rank above
            the width; patterns that match nothing. All at once.
    """
    notes, model = Notes(adapter.source), tree(layout)
    made: list[Tensor] = []
    found = resolve(model, adapter, notes) if valid(adapter, notes) else None
    if found:
        _patterns(found, notes)
        made = _pairs(model, found, notes)
        copies = extras.saved(model, found.adapter, found.modules, notes)
        biases = extras.biases(model, adapter, found.modules, {one.home for one in copies}, notes)
        made += [*copies, *biases]
    notes.done()
    modules: dict[str, Size] = {}
    for one in made:
        name = one.home.rpartition(".")[2]
        modules[name] = modules.get(name, 0) + one.elements
    trainable = total(one.elements for one in made)
    return AdapterCount(trainable, total([layout.params, *(one.elements for one in made if one.added)]), modules)


def readable(layout: Layout, adapter: Adapter) -> None:
    """Raises:
    Refused: an expression of the adapter is none, or takes too long: PEFT would not come back from it.
    """
    notes, targets = Notes(adapter.source), adapter["target_modules"]
    if valid(adapter, notes):
        matched(tree(layout), adapter, targets if isinstance(targets, str) else [])
    notes.done()


def _pairs(model: Tree, found: Targets, notes: Notes) -> list[Tensor]:
    """The adapters themselves, of modules layer by layer, and of parameters."""
    made: list[Tensor] = []
    for name in sorted(found.modules, key=_layer_first):
        with notes.fits(name):
            made += lora.lora(model.modules[name], found.adapter)
    if found.tied:
        made += lora.tied(model.modules[model.head], found.adapter)
    for name in found.parameters:
        owner, _, leaf = name.rpartition(".")
        with notes.fits(owner if owner in found.modules else name):
            if owner in found.modules:
                raise Unfit("target_parameters and target_modules name one layer")
            made += lora.on_parameter(model.modules[owner], leaf, model.tensors[name], found.adapter)
    return made


def _patterns(found: Targets, notes: Notes) -> None:
    """Note patterns that no adapted module answers to: PEFT warns and goes on without them."""
    adapter = found.adapter
    names = [*found.modules, *found.parameters]
    for field in ("rank_pattern", "alpha_pattern"):
        for key in adapter.table(field):
            if not any(pattern_value({key: True}, name, False) for name in names):
                ends = (name.rpartition(".")[2] for name in names)
                notes.unknown(f"{adapter.path(field)}: {key} matches no adapted module", key, ends)


def _layer_first(name: str) -> tuple[int, ...]:
    """Modules in the order of their layers, otherwise as the model has them."""
    return tuple(int(part) for part in name.split(".") if part.isdigit())
