"""What trains beside the adapter itself: whole copies of modules, biases of the base model.

Source: peft 0.21 utils/other.py (set_additional_trainable_modules, _set_trainable, ModulesToSaveWrapper),
tuners/tuners_utils.py _mark_only_adapters_as_trainable.
"""

from __future__ import annotations

from collections.abc import Iterable

from vramcast.models.adapters.adapter import Adapter, Tensor
from vramcast.models.adapters.modules import Tree
from vramcast.models.adapters.notes import Notes


def saved(tree: Tree, adapter: Adapter, adapted: Iterable[str], notes: Notes) -> list[Tensor]:
    """Copies of the modules of `modules_to_save`; the originals stay and are frozen.

    A name is compared by its end alone, not by whole parts: `norm` means `q_norm` too. A tied head is copied apart from
    the embedding.
    """
    names = adapter.names("modules_to_save")
    for name in names:
        if not any(module.endswith(name) for module in tree.modules):
            path = adapter.path("modules_to_save")
            last = (module.rpartition(".")[2] for module in tree.modules)
            notes.unknown(f"{path}: {name} matches no module", name, (one for one in last if not one.isdigit()))
    homes = [module for module in tree.modules if any(module.endswith(name) for name in names)]
    _clashes(homes, set(adapted), adapter, notes)
    return [Tensor(home, shape) for home in homes for shape in tree.below(home).values()]


def _clashes(homes: list[str], adapted: set[str], adapter: Adapter, notes: Notes) -> None:
    path = adapter.path("modules_to_save")
    for home in homes:
        inside = next((one for one in homes if home.startswith(f"{one}.")), "")
        if inside:
            notes.wrong(f"{path} names {home} and {inside}, which holds it")
            return
        if home in adapted:
            notes.wrong(f"{path}: {home} is adapted as well: it trains whole or with an adapter")
            return


def biases(
    tree: Tree, adapter: Adapter, adapted: Iterable[str], copied: Iterable[str], notes: Notes
) -> list[Tensor]:
    """Biases of the base model that train: "all", or those of adapted modules ("lora_only")."""
    kind = adapter["bias"] if adapter["bias"] is not None else "none"
    frozen, names = tuple(f"{home}." for home in copied), list[str]()
    if kind == "all":
        found = [name for name in tree.tensors if name == "bias" or name.endswith(".bias")]
        names = [name for name in found if not name.startswith(frozen)]
    elif isinstance(kind, str) and kind.endswith("_only"):
        names = [name for home in adapted if (name := f"{home}.bias") in tree.tensors]
    elif kind != "none":
        notes.unknown(f"bias = {kind!r} is not known", str(kind), ["none", "all", "lora_only"])
    return [Tensor(name.rpartition(".")[0], tree.tensors[name], added=False) for name in names]
