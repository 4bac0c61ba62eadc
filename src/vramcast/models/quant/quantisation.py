"""A method of quantisation as a model has it: which of its tensors are packed, and how."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from msgspec import Struct

from vramcast.errors import Mistakes
from vramcast.models.layout import Layout, Weight
from vramcast.models.place import is_expert
from vramcast.models.quant.format import Format, Holder
from vramcast.models.quant.names import Matcher, is_matrix, listed, sides


class Rule(Struct, frozen=True):
    """Modules that a list names (all of them, if it names none) and their format; none: they stay as they are."""

    formats: tuple[Format, ...]
    """the first one that suits the layer's sizes"""
    names: tuple[str, ...] = ()
    matcher: Matcher = "start"


class Padding(Struct, frozen=True):
    """What a program pads the tensors of routed experts to."""

    holder: Holder
    whole: int
    """multiple of a dimension that nothing cuts (the hidden size)"""
    cut: int
    """multiple of a rank's share of a dimension that ranks cut (the intermediate size)"""


class Quantisation(Struct, frozen=True, kw_only=True):
    """Whose weights are packed how. Embeddings, norms, biases, convolutions and routers never are, unless named."""

    method: str
    """as the checkpoint or the library calls it"""
    kind: str
    """the value of the path `quant.kind`"""
    label: str
    """a few words: `gptq int4 g128`"""
    rules: tuple[Rule, ...] = ()
    """the first rule that names a module decides; a module that none names is not packed"""
    linears: bool = True
    experts: bool = True
    head: bool = False
    """the head is packed unless a rule keeps it"""
    vision: bool = True
    routers: bool = False
    """routers that are linear layers are packed"""
    blocks_only: bool = False
    """only what stands in the decoder's layers is packed"""
    strict: bool = True
    """a group that does not divide a layer's inputs is a mistake; if not, the layer stays as it is"""
    padding: tuple[Padding, ...] = ()
    source: str = ""

    def format_of(self, name: str, weight: Weight, module: str) -> Format | None:
        """The format of a parameter by its full name; None for one that keeps the model's dtype."""
        return next((one for one in self.formats_of(name, weight, module) if suits(one, name, weight)), None)

    def formats_of(self, name: str, weight: Weight, module: str) -> tuple[Format, ...]:
        """The formats that are meant for a parameter, whether its sizes suit them or not."""
        for rule in self.rules:
            if rule.names and not listed(name, rule.names, rule.matcher):
                continue
            if not rule.names and not self._by_default(name, weight, module):
                return ()
            return rule.formats if rule.formats == () or is_matrix(name, weight, module) else ()
        return ()

    def _by_default(self, name: str, weight: Weight, module: str) -> bool:
        """Whether a matrix that no list names is packed."""
        if module == "lm_head":
            return self.head
        if module == "vision" and not self.vision:
            return False
        if module == "router" and not self.routers and "per_layer_input_gate" not in name:
            return False
        if self.blocks_only and not any(word.isdigit() for word in name.split(".")):
            return False
        return self.experts if is_expert(weight) else self.linears

    def padded_to(self, holder: Holder) -> Padding | None:
        """What a program pads experts to; None if to nothing."""
        return next((one for one in self.padding if one.holder == holder), None)

    def check(self, layout: Layout, source: str = "") -> None:
        """Refuse a group size that does not divide the inputs of a layer it is for.

        Raises:
            Refused: with one layer for each width that does not divide, and the group sizes that would.
        """
        mistakes, seen = Mistakes(), set[tuple[int, int]]()
        for name, inputs, group in self._undivided(layout) if self.strict else ():
            if (inputs, group) not in seen:
                seen.add((inputs, group))
                mistakes.add(
                    f"group size {group} does not divide the {inputs} inputs of {name}",
                    **{"from": source or self.source, "allowed": _groups(layout, self)},
                )
        mistakes.done()

    def _undivided(self, layout: Layout) -> Iterator[tuple[str, int, int]]:
        for block in layout.blocks:
            for name, weight in block.names():
                formats = self.formats_of(name, weight, block.module(weight))
                if formats and not any(divides(one, name, weight) for one in formats):
                    yield name, int(sides(name, weight)[1].size), formats[0].group


def divides(form: Format, name: str, weight: Weight) -> bool:
    """A layer's inputs are whole groups."""
    return not form.group or int(sides(name, weight)[1].size) % form.group == 0


def suits(form: Format, name: str, weight: Weight) -> bool:
    """A layer's inputs are whole groups and its outputs whole words."""
    return divides(form, name, weight) and int(sides(name, weight)[0].size) % form.outputs == 0


def _groups(layout: Layout, quantisation: Quantisation) -> str:
    """The usual group sizes that divide every layer that is packed."""
    width = 0
    for block in layout.blocks:
        for name, weight in list(block.names())[: len(block.weights)]:
            if quantisation.formats_of(name, weight, block.module(weight)):
                width = gcd(width, int(sides(name, weight)[1].size))
    return ", ".join(str(size) for size in (16, 32, 64, 128, 256, 512, 1024) if width and width % size == 0) or "none"
