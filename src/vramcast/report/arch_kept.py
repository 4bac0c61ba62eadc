"""What a model keeps between decoding steps, by kind of layer: a part of `explain --arch`."""

from __future__ import annotations

from msgspec import Struct

from vramcast.models.arch import has_head
from vramcast.models.cache.formats import Formats, formats
from vramcast.models.cache.kinds import Holder, LayerKind, cache_kinds, text_config
from vramcast.models.cache.sizes import bytes_of_sequence, bytes_per_token, layer_bytes, state_per_sequence, unit_bytes
from vramcast.models.place import Cut
from vramcast.models.served import BATCHED
from vramcast.report.arch_subject import Subject


class KeptByLayers(Struct, frozen=True, kw_only=True):
    """Layers that keep the same. Bytes are of one rank and of all these layers together."""

    name: str
    layers: int
    window: int | None
    """tokens that attention sees at most"""
    bytes_per_token: int
    """of a token that every layer still sees: inside the window"""
    state_bytes: int
    """once for a sequence"""
    parts: dict[str, int]
    """key, value, latent, state ... -> bytes of one layer, kept once"""


class Kept(Struct, frozen=True, kw_only=True):
    """What one sequence keeps on one rank."""

    holder: str
    dtype: str
    bytes_per_token: int
    """that a further token adds however long the sequence is: without full windows and states"""
    state_bytes: int
    tokens: int
    """the longest sequence of the model, or seq_len"""
    sequence_bytes: int
    """of a sequence of `tokens`"""
    request_bytes: int | None
    """what vLLM's pool must have for it: whole blocks, what is in flight, the block that is never given out"""
    kinds: list[KeptByLayers]


def kept(subject: Subject, holder: Holder) -> Kept | None:
    """What the model keeps; None for one that generates nothing.

    Raises:
        Refused: a cache dtype that the holder does not have for this kind of attention, a wrong window.
    """
    kinds = cache_kinds(subject.layout, subject.row.config, subject.row.where, holder)
    if not any(kind.parts for kind in kinds) or not has_head(subject.row.config, subject.row.where):
        return None
    asked = subject.value("engine.kv_dtype")
    form = formats(kinds, holder, subject.dtype, str(asked or "auto"), subject.origin("engine.kv_dtype"))
    tokens = _longest(subject)
    cut = Cut(tp=subject.cut.tp)
    return Kept(
        holder=holder,
        dtype=form.cache.name,
        bytes_per_token=int(bytes_per_token(kinds, form, cut)),
        state_bytes=int(state_per_sequence(kinds, form, cut)),
        tokens=tokens,
        sequence_bytes=int(bytes_of_sequence(kinds, form, tokens, cut)) if tokens else 0,
        request_bytes=_request(subject, tokens) if tokens else None,
        kinds=[_by_layers(kind, form, cut) for kind in kinds],
    )


def _request(subject: Subject, tokens: int) -> int | None:
    served, batched = subject.served(), subject.value("engine.max_batched_tokens")
    if served is None or served.holder != "vllm" or subject.cut.pp > 1:
        return None
    return served.least_pool(tokens, batched if isinstance(batched, int) else BATCHED)


def _by_layers(kind: LayerKind, form: Formats, cut: Cut) -> KeptByLayers:
    count = len(kind.layers)
    once = count * sum(int(unit_bytes(part, form, cut)) for part in kind.parts if part.keeps == "sequence")
    first, second = (int(layer_bytes(kind, form, tokens, cut)) for tokens in _TWO)
    return KeptByLayers(
        name=kind.name,
        layers=count,
        window=kind.window,
        bytes_per_token=count * (second - first) // (_TWO[1] - _TWO[0]),
        state_bytes=once,
        parts={part.name: int(unit_bytes(part, form, cut)) for part in kind.parts},
    )


_TWO = (0, 128)
"""lengths whose difference gives the rate of a token; no window is shorter, and compressed layers have whole entries"""


def _longest(subject: Subject) -> int:
    """What was asked for, or the longest that the model was made for; 0 if nobody says."""
    known = text_config(subject.row.config).get("max_position_embeddings")
    return next((one for one in (subject.value("seq_len"), known) if isinstance(one, int)), 0)
