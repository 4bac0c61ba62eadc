"""Which tensors of a layout are matrices that a method can pack, and what checkpoints call them.

The layout spells names as transformers 5 does. Lists in checkpoints were written for other spellings: one module for
each expert, and older prefixes of multimodal models. `spellings` gives them all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias

from vramcast.models import patterns
from vramcast.models.layout import Axis, Piece, Weight
from vramcast.models.place import is_expert

Matcher: TypeAlias = str
"""how a list names modules: one of the keys of `MATCHERS`"""

_UP = frozenset("gate_up_proj up_proj gate_proj c_attn c_fc".split())
_DOWN = frozenset("down_proj c_proj".split())
_NO_LINEAR = re.compile(
    r"(^|\.)(\w*norm\w*|norms\.\d+|ln_\w+|\w*embed(_in|_tokens\w*|_positions)?|\w*embeddings?|conv\w*|\w*_conv|wte|wpe)$"
)
_LINEAR_ROUTER = re.compile(r"per_layer_input_gate|\.gate\.(wg|down_proj|router_mlp\.)")
"""routers, by their module, whose class is `nn.Linear` all the same (Gemma 4, Hunyuan, Zaya)"""


def module_name(name: str) -> str:
    """The module of a parameter: its name without the last word if that is `weight`."""
    return name.removesuffix(".weight")


def is_matrix(name: str, weight: Weight, module: str) -> bool:
    """A linear layer's weight or a tensor of routed experts; no embedding, norm, convolution, router or bias."""
    if is_expert(weight):
        return len(weight.axes) == 3 and not name.endswith("bias")
    if len(weight.axes) != 2 or not name.endswith(".weight") or module in ("embedding", "norms"):
        return False
    if module == "router" and not _LINEAR_ROUTER.search(name):
        return False
    return not _NO_LINEAR.search(module_name(name))


def sides(name: str, weight: Weight) -> tuple[Axis, Axis]:
    """(outputs, inputs) of a matrix, also where the class stores it inputs first (GPT-2's Conv1D, GPT-OSS, Llama 4).

    A vector is one row.
    """
    if len(weight.axes) == 1:
        return Axis((Piece(1),)), weight.axes[0]
    first, second = weight.axes[-2:]
    leaf = module_name(name).rpartition(".")[2]
    turned = (leaf in _UP and _cut(second) and not _cut(first)) or (leaf in _DOWN and _cut(first) and not _cut(second))
    return (second, first) if turned else (first, second)


def is_turned(name: str, weight: Weight) -> bool:
    """Whether inputs come first."""
    return sides(name, weight)[0] is not weight.axes[-2]


def _cut(axis: Axis) -> bool:
    return any(piece.kind != "" for piece in axis.pieces)


def spellings(name: str) -> list[str]:
    """The module behind a parameter, by every name that a checkpoint may give it."""
    module = module_name(name)
    found = [module]
    if match := re.fullmatch(r"(.*\.experts)\.(gate_up_proj|up_proj|down_proj|gate_proj)", module):
        parent, leaf = match.groups()
        halves = ("gate_proj", "up_proj") if leaf == "gate_up_proj" else (leaf,)
        old = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
        found += [parent, *(f"{parent}.0.{half}" for half in halves)]
        sparse = parent.replace(".mlp.experts", ".block_sparse_moe.experts")
        found += [f"{sparse}.0.{old[half]}" for half in halves]
    return list(dict.fromkeys(other for one in found for other in _prefixes(one)))


def _prefixes(module: str) -> list[str]:
    """A module under the prefixes that multimodal checkpoints have had."""
    found = [module]
    if module.startswith("model.language_model."):
        below = module.removeprefix("model.language_model.")
        found += [f"language_model.model.{below}", f"model.{below}"]
    elif module.startswith("model.") and not module.startswith("model.layers."):
        found.append(module.removeprefix("model."))
    elif module.startswith("lm_head"):
        found.append(f"language_model.{module}")
    return found


def listed(name: str, texts: Iterable[str], matcher: Matcher) -> bool:
    """Whether a list of a checkpoint names the module of a parameter.

    `matcher` "start": transformers 5 `should_convert_module` (a pattern from the start of the name to the end of a
    word, or a suffix). "exact": compressed-tensors `match_name` (the whole name, or `re:` and a pattern). "wildcard":
    Model Optimizer (the whole name with `*`, or a word path inside it).
    """
    test = MATCHERS[matcher]
    known = list(texts)
    return any(test(one, pattern) for one in spellings(name) for pattern in known)


def _start(name: str, pattern: str) -> bool:
    boundary = r"(?:(?<=\.)|(?=\.|$))"
    if name.endswith(pattern):
        return True
    try:
        return patterns.match(rf"(?:{pattern}){boundary}", name) is not None
    except re.error:
        return False


def _exact(name: str, pattern: str) -> bool:
    if not pattern.startswith("re:"):
        return pattern == name
    try:
        return patterns.match(pattern.removeprefix("re:"), name) is not None
    except re.error:
        return False


def _wildcard(name: str, pattern: str) -> bool:
    whole = re.escape(pattern).replace(r"\*", ".*")
    return patterns.match(rf"{whole}(\.|$)", name) is not None or name.endswith(f".{pattern}")


def _word(name: str, pattern: str) -> bool:
    return pattern in name


MATCHERS = {"start": _start, "exact": _exact, "wildcard": _wildcard, "word": _word}
