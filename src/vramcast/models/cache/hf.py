"""The caches of transformers: grown by concatenation, allocated at once, quantised, kept on the host.

Sources: transformers 5.24 `cache_utils.py`. 4.57 has the same dynamic and static layers; 4.44's DynamicCache keeps
every token of every layer whatever its window (`windows=False`), and its HybridCache is the static one.
optimum-quanto 0.2.7 `tensor/optimizers/affine_optimizer.py`, `tensor/weights/qbits.py`; hqq 0.2.8 `core/quantize.py`,
`core/bitpack.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, structs

from vramcast.catalog.dtypes import BYTES
from vramcast.errors import Mistakes, near, refuse
from vramcast.models.cache.formats import Formats
from vramcast.models.cache.kinds import LayerKind
from vramcast.models.cache.part import Part
from vramcast.models.cache.sizes import bytes_of_sequence, unit_bytes
from vramcast.models.layout import axis
from vramcast.num import Size, stored, total, whole, worst


def dynamic_bytes(
    kinds: Iterable[LayerKind], formats: Formats, sequences: Size, tokens: Size,
    *, encoder: Size = 0, windows: bool = True,
) -> Size:  # fmt: skip
    """DynamicCache between two steps: what every sequence of a batch keeps, all padded to the same `tokens`.

    A sliding layer keeps a view of the last window - 1 tokens, and the memory behind it is the window. After a longer
    prompt it is the whole prompt until the first step: `windows=False` is that, and 4.44.
    """
    held = kinds if windows else [_unbounded(kind) for kind in kinds]
    return sequences * bytes_of_sequence(held, formats, tokens, encoder=encoder)


def growth_bytes(kinds: Iterable[LayerKind], formats: Formats, sequences: Size, tokens: Size) -> Size:
    """What a step of DynamicCache needs for a moment: the old keys or values of one layer beside the new ones.

    `tokens`: after the step. The largest tensor of a layer decides; layers grow one after the other.
    """
    old = [
        part.count(tokens - 1) * unit_bytes(part, formats)
        for kind in kinds for part in kind.parts if part.keeps == "token"
    ]  # fmt: skip
    return sequences * worst(0, *old)


def static_bytes(
    kinds: Iterable[LayerKind], formats: Formats, sequences: Size, longest: Size, *, encoder: Size = 0
) -> Size:
    """StaticCache: allocated at its longest length when the first token comes; windows are capped.

    Raises:
        Refused: compressed layers, which have no static layer.
    """
    kinds = tuple(kinds)
    _refuse_compressed(kinds, "StaticCache")
    return sequences * bytes_of_sequence(kinds, formats, longest, encoder=encoder)


def offloaded_bytes(
    kinds: Iterable[LayerKind], formats: Formats, sequences: Size, tokens: Size, *, only_full: bool = False
) -> Size:
    """An offloaded cache on the GPU: the largest two layers, the one at work and the next one on its way, and the
    states of layers that keep nothing of single tokens, which never leave (Cache.prefetch).

    `only_full`: `offload_only_non_sliding`, so that sliding layers stay.
    """
    kinds = tuple(kinds)
    states = [kind for kind in kinds if all(part.keeps == "sequence" for part in kind.parts)]
    stays = [kind for kind in kinds if (only_full and kind.window) or kind in states]
    moves = [kind for kind in kinds if kind not in stays]
    sizes = [_layer(kind, formats, tokens) for kind in moves for _ in range(min(len(kind.layers), 2))]
    most = sorted(sizes, key=int)[-2:]
    held = total(len(kind.layers) * _layer(kind, formats, tokens) for kind in stays)
    return sequences * (held + total(most))


class Quantised(Struct, frozen=True):
    """The options of a QuantizedCache; transformers' defaults."""

    backend: str = "quanto"
    bits: int = 4
    group: Size = 64
    residual: Size = 128


BITS = {"quanto": (2, 4), "hqq": (1, 2, 3, 4, 8), "fp8": (8,)}
_PACKED = {1: (8, 1), 2: (4, 1), 3: (10, 4), 4: (2, 1), 8: (1, 1)}
"""bits → (values, bytes of the word that holds them): hqq packs ten values of three bits into four bytes"""


def quantised_bytes(
    kinds: Iterable[LayerKind], formats: Formats, sequences: Size, prompt: Size, tokens: Size, options: Quantised,
    source: str = "",
) -> Size:  # fmt: skip
    """QuantizedCache after a prompt and steps up to `tokens`: the prompt packed, then steps in full until there are
    `residual` of them, when all is packed anew.

    A group of `group` elements of a layer's keys or values has a scale and a shift in the model's dtype. "fp8" packs
    every token, with one fp32 scale a tensor.

    Raises:
        Refused: layers that do not see all tokens, unknown backend or bits, a group that does not divide a layer.
    """
    kinds = tuple(kinds)
    _check(kinds, formats, sequences, options, source)
    return quantised_size(kinds, formats, sequences, prompt, tokens, options)


def quantised_size(
    kinds: Iterable[LayerKind], formats: Formats, sequences: Size, prompt: Size, tokens: Size, options: Quantised
) -> Size:
    """The bytes of `quantised_bytes`, of layers that were checked."""
    flushed = whole(tokens - prompt, options.residual) * options.residual
    packed = tokens if options.backend == "fp8" else prompt + flushed
    found: list[Size] = []
    for kind in kinds:
        for part in kind.parts:
            elements = sequences * part.axis.size * part.times
            rest = elements * (tokens - packed) * BYTES[formats.model]
            found.append(len(kind.layers) * (_packed(elements * packed, formats, options) + rest))
    return total(found)


def _packed(elements: Size, formats: Formats, options: Quantised) -> Size:
    if options.backend == "fp8":
        return elements + BYTES["fp32"]
    values, word = _PACKED[options.bits]
    return stored(elements, values, word) + 2 * whole(elements, options.group) * BYTES[formats.model]


def _check(kinds: Iterable[LayerKind], formats: Formats, sequences: Size, options: Quantised, source: str) -> None:
    known = BITS.get(options.backend)
    if known is None:
        raise refuse(
            f"unknown backend {options.backend!r} of a quantised cache",
            **{"from": source, "near": near(options.backend, BITS), "allowed": ", ".join(BITS)},
        )
    mistakes = Mistakes()
    if options.bits not in known and options.backend != "fp8":
        mistakes.add(f"{options.backend} has no cache of {options.bits} bits",
                     **{"from": source, "allowed": ", ".join(map(str, known))})  # fmt: skip
    for kind in kinds:
        if any(part.keeps != "token" or part.span or part.dtype != "cache" for part in kind.parts):
            mistakes.add(f"a QuantizedCache is for layers that see all tokens, not for {kind.name}", **{"from": source})
            continue
        for part in kind.parts:
            if options.backend != "fp8" and sequences * part.axis.size % options.group:
                mistakes.add(
                    f"a group of {options.group} does not divide the {sequences * part.axis.size} elements that a token"
                    f" of {part.name} has in a batch of {sequences}",
                    **{"from": source},
                )
    mistakes.done()


def encoder_decoder_kinds(layers: int, heads: Size, width: Size) -> tuple[LayerKind, ...]:
    """T5, BART, Whisper and their like: each decoder layer keeps its own keys and those of the encoder's output.

    `layers` of the decoder, `heads` of its attention, `width` of a head. transformers: EncoderDecoderCache.
    """
    every = tuple(range(layers))
    side = axis(heads, width)
    own, cross = (
        tuple(Part(name, side, keeps) for name in ("key", "value")) for keeps in ("token", "encoder")
    )  # fmt: skip
    return (LayerKind("self and cross attention", every, (*own, *cross)),)


def _layer(kind: LayerKind, formats: Formats, tokens: Size) -> Size:
    return total(part.count(tokens) * unit_bytes(part, formats) for part in kind.parts)


def _unbounded(kind: LayerKind) -> LayerKind:
    parts = [structs.replace(part, span=0) if part.keeps == "token" else part for part in kind.parts]
    return structs.replace(kind, parts=tuple(parts))


def _refuse_compressed(kinds: Iterable[LayerKind], cache: str) -> None:
    for kind in kinds:
        if any(part.keeps in ("entry", "rest", "once") for part in kind.parts):
            raise refuse(f"{cache} has no layer for {kind.name}")
