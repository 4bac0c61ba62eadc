"""An architecture: the layout of a model, its kinds of layers, and what of its config a forecast asks for beside."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field, structs

from vramcast.errors import Mistakes, Refused, refuse
from vramcast.models.cache.kinds import text_config
from vramcast.models.cache.windows import spans
from vramcast.models.describe import build_layout
from vramcast.models.fields import class_names, most, wrong_count
from vramcast.models.layout import Blocks, Ends, Layout, Weight
from vramcast.models.measured import Measurement
from vramcast.num import Named, Size

Computed = TypeVar("Computed")
HEADS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""how the names of classes that generate end"""
_LENGTHS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length")


class Arch(Struct, frozen=True, kw_only=True):
    """A language model: layers of one or several kinds between an embedding and a head."""

    layout: Layout
    config: dict[str, Any]
    source: str
    max_len: int
    default_targets: tuple[str, ...]
    """linear layers PEFT adapts when none are named"""
    measured: Measurement | None = None
    """what stands where forwards would: the rows of a trace"""
    hidden: Size
    vocab: Size
    layers: Size
    memo: dict[str, Any] = field(default_factory=dict[str, Any])

    def once(self, key: str, compute: Callable[[], Computed]) -> Computed:
        """Compute a value that every job of the model shares."""
        if key not in self.memo:
            self.memo[key] = compute()
        return self.memo[key]

    @property
    def name(self) -> str:
        return self.layout.name

    @property
    def model_type(self) -> str:
        return self.layout.model_type

    @property
    def dtype(self) -> str:
        """Dtype of the checkpoint."""
        return self.layout.dtype

    @property
    def tied(self) -> bool:
        """The head is the embedding: one tensor, one gradient."""
        return self.layout.tied

    @property
    def ends(self) -> Ends:
        return self.layout.ends

    @property
    def kinds(self) -> tuple[Blocks, ...]:
        """The kinds of layers, in the order in which they first come."""
        return self.once("kinds", lambda: tuple(block for block in self.layout.blocks if block.is_layer))

    @property
    def windows(self) -> frozenset[int]:
        """Tokens that layers with a window see."""

        def find() -> frozenset[int]:
            seen = spans(self.model_type, text_config(self.config), len(self.layout.layers()), self.source)
            return frozenset(int(span.tokens) for span in seen if span.tokens)

        return self.once("windows", find)

    @property
    def has_biases(self) -> bool:
        """Some linear layer of a layer has a bias."""

        def find() -> bool:
            names = [({weight.name for weight in block.weights}, block.linears()) for block in self.kinds]
            return any(f"{linear}.bias" in known for known, linears in names for linear in linears)

        return self.once("biases", find)

    @property
    def has_experts(self) -> bool:
        """A router sends tokens to some of several experts."""
        return self.once("experts", lambda: any(weight.used for block in self.kinds for weight in block.weights))

    @property
    def root(self) -> tuple[Blocks, ...]:
        """What is in no layer: embedding, final norm, head, and what is beside a tower's layers."""
        return self.once("root", lambda: tuple(block for block in self.layout.blocks if not block.layers))

    @property
    def sees(self) -> bool:
        """It has blocks that wait for images."""
        return any(block.needs.startswith("images") for block in self.layout.blocks)

    @property
    def embedding(self) -> Weight:
        """The table of tokens."""
        return next(block.weights[0] for block in self.layout.blocks if block.name == "embedding")

    @property
    def heads(self) -> tuple[int, int]:
        """(query heads, key heads) of the first layer that has both; one head where none has."""
        for block in self.kinds:
            found = {piece.kind: piece for weight in block.weights if block.module(weight) == "attention"
                     for axis in weight.axes for piece in axis.pieces if int(piece.width) > 1}  # fmt: skip
            if "tp" in found:
                return int(found["tp"].count), int(found.get("kv", found["tp"]).count)
        return 1, 1

    @property
    def linears(self) -> tuple[str, ...]:
        """Names of the linear layers of the model, towers too: what `all-linear` means."""
        found = (name.rpartition(".")[2] for block in self.layout.blocks for name in block.linears())
        return tuple(dict.fromkeys(found))

    def times(self, block: Blocks) -> Size:
        """How many of a block there are: with its symbol where all layers are of one kind."""
        if not block.is_layer:
            return block.count
        if len(self.kinds) == 1:
            return self.layers
        return Named(block.count, f"layers of {block.name}") if isinstance(self.layers, Named) else block.count

    def tensors(self) -> Iterable[tuple[Blocks, Weight, Size]]:
        """(block, tensor, how many of it), over the whole model; a tied head is no tensor of its own."""
        for block, count in self.counted():
            yield from ((block, weight, count) for weight in block.weights)

    def counted(self) -> list[tuple[Blocks, Size]]:
        """(block, how many of it), what is in no layer first."""
        root_first = sorted(self.layout.blocks, key=lambda block: bool(block.layers))
        return [(block, self.times(block)) for block in root_first]

    def named(self) -> Arch:
        """The same with sizes that carry the symbols that formulas show."""
        layout = self.layout
        if self.measured is None:
            layout = build_layout(self.name, self.config, self.source, names=True)
        symbols = {name: Named(int(getattr(self, name)), name) for name in ("hidden", "vocab", "layers")}
        return structs.replace(self, layout=layout, memo={}, **symbols)


def build_arch(name: str, config: dict[str, Any], source: str) -> Arch:
    """The architecture that `config` describes.

    Raises:
        Refused: an unknown model type, missing or contradictory fields, a class without a language-model head; `source`
            says which file.
    """
    return _build(name, msgspec.json.encode(config), source)


@lru_cache(32)
def _build(name: str, config: bytes, source: str) -> Arch:
    """Built once: every lever asks about the same model again."""
    content = msgspec.json.decode(config)
    check_head(content, source)
    return arch_of(build_layout(name, content, source), content, source)


def arch_of(layout: Layout, config: dict[str, Any], source: str, measured: Measurement | None = None) -> Arch:
    """The architecture with a layout."""
    from vramcast.models.adapters.methods import facts

    embedding = next((block for block in layout.blocks if block.name == "embedding"), layout.blocks[0])
    vocab, hidden = (*embedding.weights[0].shape, 1)[:2]
    return Arch(
        layout=layout,
        config=config,
        source=source,
        max_len=_longest(config, source),
        default_targets=tuple(facts()["LORA"].targets.get(layout.model_type) or ()),
        measured=measured,
        hidden=hidden,
        vocab=vocab,
        layers=len(layout.layers()),
    )


def _longest(config: dict[str, Any], source: str) -> int:
    """Tokens that the model was made for; 0 where its config does not say.

    Raises:
        Refused: what it says is no number.
    """
    text = config.get("text_config")
    places: list[dict[str, Any]] = [text, config] if isinstance(text, dict) else [config]
    said = [(name, place[name]) for place in places for name in _LENGTHS if place.get(name) is not None]
    mistakes = Mistakes()
    for name, value in said:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= most(name):
            mistakes.add(f"{name} {wrong_count(name, value)}", **{"from": source})
    mistakes.done()
    return said[0][1] if said else 0


def has_forward(arch: Arch) -> bool:
    """Whether every layer's forward is written."""
    return all(block.forward is not None for block in arch.kinds)


def no_forward(arch: Arch) -> Refused:
    """The refusal of a type of which a part has no forward: its parameters are known all the same."""
    return refuse(
        f"the activations of model type {arch.model_type} are not modelled yet",
        **{
            "from": arch.source,
            "works": f"vramcast explain --arch --model {arch.name}",
            "help": "vramcast trace --model NAME --gpu CARD --save-arch FILE measures them",
        },
    )


def has_head(config: dict[str, Any], source: str, heads: tuple[str, ...] = HEADS) -> bool:
    """Whether the class generates; a config that names none is taken to.

    Raises:
        Refused: the classes are no list of names.
    """
    classes = class_names(config, source)
    return not classes or any(name.endswith(heads) for name in classes)


def check_head(config: dict[str, Any], source: str) -> None:
    """A class such as MistralModel has no head: it embeds text, and nothing here is about that."""
    if not has_head(config, source):
        raise refuse(
            f"{config['architectures'][0]} has no language-model head: what it does is not modelled yet",
            **{"from": source, "allowed": f"models of a class …{HEADS[0]}"},
        )
