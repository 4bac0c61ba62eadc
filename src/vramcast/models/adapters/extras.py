"""What trains beside the adapter itself: whole copies of modules, single tokens, biases of the base model.

Source: peft 0.21 utils/other.py (set_additional_trainable_modules, _set_trainable, ModulesToSaveWrapper,
TrainableTokensWrapper), tuners/trainable_tokens/layer.py, tuners/tuners_utils.py _mark_only_adapters_as_trainable.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from vramcast.models.adapters.adapter import NAME, ROOT, Adapter, Tensor
from vramcast.models.adapters.modules import Tree
from vramcast.models.adapters.notes import Notes
from vramcast.num import Size


def saved(tree: Tree, adapter: Adapter, adapted: Iterable[str], notes: Notes, root: str = ROOT) -> list[Tensor]:
    """Copies of the modules of `modules_to_save`, in the dtype of the originals, which stay and are frozen.

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
    return [
        Tensor(f"{root}{home}.modules_to_save.{NAME}.{leaf}", shape, home, True, "base")
        for home in homes
        for leaf, shape in tree.below(home).items()
    ]


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


def tokens(tree: Tree, adapter: Adapter, notes: Notes, root: str = ROOT) -> list[Tensor]:
    """Rows of embeddings that train alone (`trainable_token_indices`); a tied head shares the embedding's."""
    asked = adapter["trainable_token_indices"]
    if asked is None:
        return []
    layers = cast("dict[str, Any]", asked) if isinstance(asked, dict) else {tree.embedding: asked}
    found: list[Tensor] = []
    for name, rows in layers.items():
        homes = [module for module in tree.modules if module.endswith(name)]
        if not homes:
            notes.unknown(f"trainable_token_indices: {name} matches no module", name, tree.modules)
        if name in adapter.names("modules_to_save"):
            notes.wrong(f"trainable_token_indices: {name} trains whole in modules_to_save")
        for home in homes:
            if home == tree.head and tree.tied and _follows(tree, layers, rows):
                continue
            found += _rows(tree, home, rows, f"{root}{home}.token_adapter", notes)
    return found


def _follows(tree: Tree, layers: dict[str, Any], rows: Any) -> bool:
    """Whether a tied head takes the embedding's rows: the same are asked for, or it is not asked for alone."""
    own = [value for name, value in layers.items() if tree.embedding.endswith(name)]
    return bool(own) and own[0] == rows


def _rows(tree: Tree, home: str, rows: Any, lead: str, notes: Notes) -> list[Tensor]:
    if not isinstance(rows, list) or not all(isinstance(one, int) for one in cast("list[Any]", rows)):
        notes.wrong(f"trainable_token_indices: {home} must be a list of whole numbers, not {rows!r}")
        return []
    indices = cast("list[int]", rows)
    shape = tree.modules[home].shape
    if len(shape) != 2:
        notes.wrong(f"trainable_token_indices: {home} is no embedding")
        return []
    beyond = [one for one in indices if not -shape[0] <= one < shape[0]]
    if beyond:
        notes.wrong(f"trainable_token_indices: {home} has no row {beyond[0]}", allowed=f"0 to {int(shape[0]) - 1}")
    sizes = (len(indices), shape[1])
    return [
        Tensor(f"{lead}.trainable_tokens_delta.{NAME}", sizes, home),
        Tensor(f"{lead}.trainable_tokens_original.{NAME}", sizes, home, False, "adapter", True),
    ]


def token_layers(tree: Tree, adapter: Adapter, homes: list[str], notes: Notes) -> list[Tensor]:
    """The method TRAINABLE_TOKENS: the same rows of every target; a tied head shares the embedding's."""
    shares = tree.tied and tree.embedding in homes
    kept = [home for home in homes if not (shares and home == tree.head)]
    return [one for home in kept for one in _rows(tree, home, adapter["token_indices"], f"{ROOT}{home}", notes)]


def biases(
    tree: Tree, adapter: Adapter, adapted: Iterable[str], copied: Iterable[str], notes: Notes
) -> list[tuple[str, tuple[Size, ...]]]:
    """Biases of the base model that train: "all", or those of adapted modules ("lora_only")."""
    kind = adapter["bias"] if adapter["bias"] is not None else "none"
    if kind == "none":
        return []
    frozen = tuple(f"{home}." for home in copied)
    if kind == "all":
        found = [name for name in tree.tensors if name == "bias" or name.endswith(".bias")]
        return [(name, tree.tensors[name]) for name in found if not name.startswith(frozen)]
    if isinstance(kind, str) and kind.endswith("_only"):
        names = [f"{home}.bias" for home in adapted]
        return [(name, tree.tensors[name]) for name in names if name in tree.tensors]
    notes.unknown(f"bias = {kind!r} is not known", str(kind), ["none", "all", f"{adapter.method.lower()}_only"])
    return []
