"""The modules of a layout as PEFT sees them: every name, and what class stands behind it.

A layout knows tensors by name; transformers' classes follow from names and shapes. `tests/models/peft_counts.py` holds
this against the classes themselves.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from vramcast.models.layout import Layout
from vramcast.num import Size

Kind: TypeAlias = Literal["linear", "conv1d", "embedding", "convolution", "attention", "norm", "other", "container"]
"""linear: nn.Linear. conv1d: GPT-2's Conv1D, a linear layer stored inputs first. attention: nn.MultiheadAttention.
norm: a scale over channels. other: a class of its own (routers, packed experts). container: holds modules only."""

EMBEDDINGS = frozenset(
    "embed_tokens embed_tokens_per_layer embed_positions embed_in embeddings word_embeddings tok_embeddings wte wpe"
    " embedding position_embedding pos_embed tile_embedding".split()
)
CONV1D = frozenset(["gpt2"])
"""model types made of Conv1D"""
ROUTERS = frozenset("gate router".split())
"""names of routers: beside experts a class with a bare weight, not nn.Linear"""
LINEAR_ROUTERS = frozenset("llama4 phimoe".split())
"""model types whose router derives from nn.Linear"""
TRANSPOSED = frozenset("gpt_oss".split())
"""model types whose packed experts say is_transposed: stored inputs first"""


class Module(Struct, frozen=True):
    """A module by its full name."""

    name: str
    kind: Kind
    shape: tuple[Size, ...] = ()
    """of its weight"""
    bias: bool = False
    model_type: str = ""

    @property
    def last(self) -> str:
        return self.name.rpartition(".")[2]

    @property
    def inputs(self) -> Size:
        """in_features as PEFT reads it (tuners_utils._get_in_out_features): rows of an embedding, channels."""
        if self.kind == "linear":
            return self.shape[1]
        return self.shape[1] * self.groups if self.kind == "convolution" else self.shape[0]

    @property
    def outputs(self) -> Size:
        return self.shape[0] if self.kind in ("linear", "convolution") else self.shape[1]

    @property
    def groups(self) -> Size:
        """Convolutions along tokens keep their channels and are cut in groups, those over pixels are whole."""
        return self.shape[0] // self.shape[1] if self.kind == "convolution" and len(self.shape) == 3 else 1


class Tree(Struct, frozen=True):
    """The modules and parameters of a model."""

    modules: dict[str, Module]
    tensors: dict[str, tuple[Size, ...]]
    embedding: str
    """name of the input embedding"""
    head: str
    """name of the output layer; "" if the model has none"""
    tied: bool
    """the output layer's weight is the embedding's"""
    model_type: str = ""

    def below(self, name: str) -> dict[str, tuple[Size, ...]]:
        """Parameters of a module, by their names below it; a tied head shows the embedding's weight."""
        found = {key[len(name) + 1 :]: shape for key, shape in self.tensors.items() if key.startswith(f"{name}.")}
        if self.tied and name == self.head:
            found = {"weight": self.modules[name].shape, **found}
        return found

    def linears(self) -> list[str]:
        """nn.Linear and Conv1D without the output layer: `all-linear` (_maybe_include_all_linear_layers)."""
        return [one.name for one in self.modules.values() if one.kind in ("linear", "conv1d") and one.name != self.head]


def tree(layout: Layout) -> Tree:
    """The modules of a layout."""
    tensors = layout.tensors()
    owners: dict[str, dict[str, tuple[Size, ...]]] = {}
    for name, shape in tensors.items():
        owner, _, leaf = name.rpartition(".")
        owners.setdefault(owner, {})[leaf] = shape
    modules: dict[str, Module] = {}
    for owner, leaves in owners.items():
        parts = owner.split(".")
        for depth in range(1, len(parts)):
            name = ".".join(parts[:depth])
            modules.setdefault(name, Module(name, "container"))
        kind = layout.kinds.get(owner) or _kind(owner, leaves, owners, layout.model_type)
        modules[owner] = Module(owner, kind, leaves.get("weight", ()), "bias" in leaves, layout.model_type)
    modules.pop("", None)
    return _with_head(layout, modules, tensors)


def _kind(
    owner: str, leaves: dict[str, tuple[Size, ...]], owners: dict[str, dict[str, tuple[Size, ...]]], model_type: str
) -> Kind:
    parent, _, last = owner.rpartition(".")
    if "in_proj_weight" in leaves:
        return "attention"
    shape = leaves.get("weight")
    if shape is None or leaves.keys() - {"weight", "bias"}:
        return "other"
    if len(shape) == 1:
        return "norm"
    if len(shape) > 2:
        return "convolution"
    if last in EMBEDDINGS:
        return "embedding"
    if last in ROUTERS and f"{parent}.experts" in owners and model_type not in LINEAR_ROUTERS:
        return "other"
    return "conv1d" if model_type in CONV1D and last != "lm_head" else "linear"


def _with_head(layout: Layout, modules: dict[str, Module], tensors: dict[str, tuple[Size, ...]]) -> Tree:
    """Find the input embedding and the output layer; a tied one is a module without a tensor of its own."""
    first = next((block for block in layout.blocks if block.name == "embedding"), None)
    names = [name.rpartition(".")[0] for name, _ in first.names()] if first else []
    embedding = next((name for name in names if name in modules and modules[name].kind == "embedding"), "")
    heads = [name.rpartition(".")[0] for block in layout.blocks if block.name == "head" for name, _ in block.names()]
    head = next(iter(heads), "")
    tied = layout.tied and bool(first and first.prefix) and bool(embedding)
    if tied:
        head = head or "lm_head"
        bias = f"{head}.bias" in tensors
        modules[head] = Module(head, "linear", modules[embedding].shape, bias, layout.model_type)
    return Tree(modules, tensors, embedding, head, tied, layout.model_type)
