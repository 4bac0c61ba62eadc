"""From the tensors of a layer to what it keeps: its key, value and state widths are those of its own projections.

Sources: the `update` calls of transformers' modeling files (5.24), compared with the shapes that its classes cache
(tests/models/caches.py); vLLM 0.33 `layers/mamba/mamba_utils.py`, `models/deepseek_v2.py`, `models/deepseek_v4/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from vramcast.models.cache.part import Part
from vramcast.models.cache.windows import Span
from vramcast.models.layout import Axis, Piece, Weight, axis
from vramcast.num import Size

Tensors: TypeAlias = Mapping[str, Weight]
_FUSED = ("qkv_proj", "query_key_value", "c_attn", "W_pack", "Wqkv", "wqkv")
NOTHING = "no attention"


def find(tensors: Tensors, *tails: str) -> Weight | None:
    """The first tensor whose name ends so; one of an indexer only if the tail says so."""
    for tail in tails:
        for name, weight in tensors.items():
            if f".{name}".endswith(f".{tail}") and ("indexer" in tail or "indexer" not in name):
                return weight
    return None


def attention_parts(tensors: Tensors, span: Span, holder: str) -> tuple[str, tuple[Part, ...]]:
    """(kind's name, what the attention of a layer keeps)."""
    if find(tensors, "forget_gate.A_log") or any(name.startswith("linear_attn.") for name in tensors):
        return "", ()  # its q, k and v go into a state
    latent = find(tensors, "kv_a_proj_with_mqa.weight")
    if latent:
        return _latent(tensors, latent, holder)
    if find(tensors, "self_attn.kv_proj.weight"):
        return _compressed(tensors, span, holder)
    sides = _sides(tensors)
    if sides is None:
        return ("attention on another layer's keys" if find(tensors, "q_proj.weight") else NOTHING), ()
    crosses = find(tensors, "cross_attn.k_proj.weight") is not None
    keeps = "encoder" if crosses else "token"
    parts = tuple(
        Part(name, side, keeps, 0 if crosses else span.tokens)
        for name, side in zip(("key", "value"), sides, strict=True)
    )
    index = find(tensors, "self_attn.indexer.k_proj.weight")
    if index:
        return "sparse attention", (*parts, Part("index key", _one(index), dtype="model"))
    return ("cross attention" if crosses else span.name), parts


def _sides(tensors: Tensors) -> tuple[Axis, Axis] | None:
    """(keys, values) in elements of a token; None where the layer makes none."""
    if find(tensors, "output_gate.weight"):
        return None  # lightning attention keeps their product
    key, value = find(tensors, "k_proj.weight"), find(tensors, "v_proj.weight")
    if key:
        return key.axes[0], _value(tensors, value or key)
    fused = find(tensors, *(f"{name}.weight" for name in _FUSED))
    for side in fused.axes if fused else ():
        if len(side.pieces) == 3:
            return Axis(side.pieces[1:2]), Axis(side.pieces[2:])
    return None


def _value(tensors: Tensors, weight: Weight) -> Axis:
    """Zaya makes a value of two halves, one of this token and one of the token before."""
    halves = find(tensors, "v_proj_current.weight"), find(tensors, "v_proj_delayed.weight")
    if halves[0] and halves[1]:
        (now,), (before,) = halves[0].axes[0].pieces, halves[1].axes[0].pieces
        return Axis((Piece(now.count, now.width + before.width, now.kind),))
    return weight.axes[0]


def _one(weight: Weight) -> Axis:
    """The outputs of a projection as one head, which every rank holds."""
    return axis(1, weight.axes[0].size, "")


def _latent(tensors: Tensors, weight: Weight, holder: str) -> tuple[str, tuple[Part, ...]]:
    """Multi-head latent attention: one latent and rotary key for all heads; transformers 4 caches all heads."""
    index = find(tensors, "self_attn.indexer.wk.weight")
    name = "sparse latent attention" if index else "latent attention"
    if holder == "transformers 4":
        query = find(tensors, "q_b_proj.weight", "q_proj.weight")
        output = find(tensors, "o_proj.weight")
        assert query is not None
        assert output is not None
        return "expanded latent attention", (Part("key", query.axes[0]), Part("value", output.axes[1]))
    parts = (Part("latent", _one(weight)),)
    if index is None:
        return name, parts
    dtype = "model" if holder == "transformers" else "index"
    return name, (*parts, Part("index key", _one(index), dtype=dtype))


def _compressed(tensors: Tensors, span: Span, holder: str) -> tuple[str, tuple[Part, ...]]:
    """DeepSeek V4: a window of keys that are the values too, and beside it an entry for every few tokens."""
    weight = find(tensors, "self_attn.kv_proj.weight")
    assert weight is not None
    parts = [Part("latent", _one(weight), span=span.tokens)]
    squeeze = find(tensors, "self_attn.compressor.position_bias")
    if squeeze is None:  # transformers uses its plain layer there, which holds the values beside the keys
        again = [Part("value", _one(weight), span=span.tokens)] if holder == "transformers" else []
        return span.name, (*parts, *again)
    parts += _squeezed(squeeze, weight.axes[0].size, "entry", "cache", holder)
    inner, width = find(tensors, "indexer.position_bias"), find(tensors, "indexer.kv_norm.weight")
    if inner is None or width is None:
        return "heavily compressed attention", tuple(parts)
    dtype = "model" if holder == "transformers" else "index"
    parts += _squeezed(inner, width.axes[0].size, "index entry", dtype, holder)
    return "compressed sparse attention", tuple(parts)


def _squeezed(bias: Weight, width: Size, name: str, dtype: str, holder: str) -> list[Part]:
    """Entries of a compressor and what it holds of tokens that have none yet: a content and a gate for each.

    transformers keeps the incomplete rest, and of two overlapping lanes one of the last complete group, its gates in
    fp32; vLLM a window of fp32.
    """
    rate, both = bias.shape
    lanes = both // width
    entry = Part(name, axis(1, width, ""), "entry", rate, dtype=dtype)
    if holder != "transformers":
        return [entry, Part(f"{name} state", axis(1, both, ""), "token", lanes * rate, 2, "fp32")]
    rest = Part(f"{name} rest", axis(1, both, ""), "rest", rate, 2, "model")
    if lanes == 1:
        return [entry, rest]
    last = [Part(f"{name} overlap", axis(1, width, ""), "once", rate, rate, dtype) for dtype in ("model", "fp32")]
    return [entry, rest, *last]


def state_parts(
    tensors: Tensors, taps: Callable[[Size], Size], conv: str, recurrent: Callable[[str], str]
) -> tuple[str, tuple[Part, ...]]:
    """(kind's name, what a layer keeps once for a sequence); taps and dtypes are the holder's."""
    kernel = find(tensors, "conv1d.weight", "conv.conv.weight", "conv_qk_depthwise.weight")
    gate = find(tensors, "output_gate.weight")
    if gate:  # heads × width × width
        (every,) = gate.axes[0].pieces
        return "lightning attention", (_state("state", Axis((every,)), every.width, recurrent("lightning attention")),)
    if kernel is None:
        return "", ()
    name, held, times = _recurrent(tensors)
    if name == "key convolution":
        late = find(tensors, "conv_qk_grouped.weight")
        assert late is not None
        width = kernel.axes[2].size + late.axes[2].size - 2
        return name, (
            _state("conv state", kernel.axes[0], width, conv),
            _state("delayed value", held, 1, recurrent(name)),
        )
    parts = (_state("conv state", kernel.axes[0], taps(kernel.axes[2].size), conv),)
    return name, parts if name == "short convolution" else (*parts, _state("state", held, times, recurrent(name)))


def _state(name: str, side: Axis, times: Size, dtype: str) -> Part:
    return Part(name, side, "sequence", 0, times, dtype)


def _recurrent(tensors: Tensors) -> tuple[str, Axis, Size]:
    """(kind, axis of the state, its other dimension)."""
    log = find(tensors, "A_log")
    kernel = find(tensors, "conv1d.weight")
    delayed = find(tensors, "v_proj_delayed.weight")
    if delayed:
        return "key convolution", delayed.axes[0], 1
    if log is None or kernel is None:
        return "short convolution", Axis(()), 0
    pieces = kernel.axes[0].pieces
    if find(tensors, "forget_gate.A_log"):
        return "kimi delta attention", Axis(pieces[2:]), pieces[0].width
    if any(name.startswith("linear_attn.") for name in tensors):
        return "gated delta attention", Axis(pieces[2:]), pieces[0].width
    if len(log.axes) == 2:
        return "state space", log.axes[0], log.axes[1].size
    return "state space", Axis(pieces[:1]), pieces[1].width
