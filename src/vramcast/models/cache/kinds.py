"""The kinds of layer of a model by what they keep, from its tensors and the fields that tensors do not tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, cast

from msgspec import Struct, structs

from vramcast.errors import Mistakes, near, refuse
from vramcast.models.cache.keeps import attention_parts, state_parts
from vramcast.models.cache.part import Part
from vramcast.models.cache.windows import FULL, Span, spans
from vramcast.models.layout import Axis, Blocks, Layout
from vramcast.num import Size

Holder: TypeAlias = Literal["transformers", "transformers 4", "vllm", "sglang"]
HOLDERS: tuple[Holder, ...] = ("transformers", "transformers 4", "vllm", "sglang")
"""Who holds the cache, and so in what form: transformers 5.24, transformers 4.57, vLLM 0.33, SGLang 0.5.23."""
_OWN_CODE = frozenset({"kimi_k2"})
"""types whose checkpoints bring DeepSeek's first code, which caches latents expanded, as transformers 4 did"""
STATE_DTYPES = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "fp32": "fp32",
    "bf16": "bf16",
    "fp16": "fp16",
}
"""What an engine may be told to keep recurrent states in: vLLM `mamba_ssm_cache_dtype`, SGLang `mamba_ssm_dtype`."""


class LayerKind(Struct, frozen=True):
    """Layers that keep the same: `parts`, none where a layer reads another's keys or has no memory."""

    name: str
    layers: tuple[int, ...]
    parts: tuple[Part, ...]
    span: Span = FULL

    @property
    def window(self) -> Size | None:
        """Tokens that its attention sees at most; None if all."""
        return self.span.tokens or None

    @property
    def grows(self) -> bool:
        """Every further token adds to it, however long the sequence."""
        return any(part.grows for part in self.parts)

    @property
    def has_state(self) -> bool:
        return any(part.keeps == "sequence" for part in self.parts)


def cache_kinds(
    layout: Layout,
    config: Mapping[str, Any],
    source: str,
    holder: Holder = "transformers",
    *,
    drafted: Size = 0,
    state_dtype: str = "",
) -> tuple[LayerKind, ...]:
    """What each layer of a model keeps for a token and for a sequence; every layer is in one kind.

    Widths are those of the tensors that make the keys, windows and dtypes those of the config. `drafted`: tokens that
    speculative decoding proposes at once (vLLM widens the state of convolutions by them). `state_dtype`: what an
    engine was told to keep recurrent states in; "" is its own rule.

    Sources: transformers 5.24 `cache_utils.py` and each type's modeling file; vLLM 0.33 `v1/kv_cache_interface.py`,
    `layers/mamba/mamba_utils.py`, `models/config.py`; SGLang 0.5.23 `configs/mamba_utils.py`.

    Raises:
        Refused: unknown holder or dtype of states, wrong windows, a memory that this holder is not known to keep.
    """
    _check(holder, state_dtype, source)
    text = text_config(config)
    blocks = layout.layers()
    seen = spans(layout.model_type, text, len(blocks), source)
    states = _States(layout.model_type, text, holder, drafted, state_dtype)
    found: dict[tuple[str, tuple[Part, ...], Span], list[int]] = {}
    mistakes = Mistakes()
    for layer, block in enumerate(blocks):
        with mistakes.collect():
            found.setdefault(_layer(block, seen[layer], states, source), []).append(layer)
        if mistakes.found:
            break  # the other layers would say the same
    mistakes.done()
    return tuple(LayerKind(name, tuple(layers), parts, span) for (name, parts, span), layers in found.items())


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's section, where a config has one."""
    nested = config.get("text_config")
    return cast("dict[str, Any]", nested) if isinstance(nested, dict) else config


def _check(holder: str, state_dtype: str, source: str) -> None:
    mistakes = Mistakes()
    if holder not in HOLDERS:
        known = ", ".join(HOLDERS)
        mistakes.add(f"unknown holder of a cache {holder!r}", near=near(holder, HOLDERS), allowed=known)
    if state_dtype and state_dtype not in STATE_DTYPES:
        mistakes.add(
            f"states cannot be kept in {state_dtype!r}",
            **{"from": source, "near": near(state_dtype, STATE_DTYPES), "allowed": ", ".join(STATE_DTYPES)},
        )
    mistakes.done()


class _States(Struct, frozen=True):
    """How a holder keeps the states of recurrent layers and convolutions."""

    model_type: str
    text: Mapping[str, Any]
    holder: Holder
    drafted: Size
    asked: str

    def taps(self, kernel: Size) -> Size:
        """Inputs that a convolution keeps: transformers all of its kernel, the engines those before the next one."""
        if self.holder.startswith("transformers"):
            return kernel
        return kernel - 1 + self.drafted if self.holder == "vllm" else kernel - 1

    @property
    def every_head(self) -> bool:
        """Falcon's new decoder makes keys and values for every query head before it caches them
        (transformers/models/falcon/modeling_falcon.py, FalconAttention._split_heads)."""
        new = self.model_type == "falcon" and bool(self.text.get("new_decoder_architecture"))
        return new and self.holder.startswith("transformers")

    @property
    def conv(self) -> str:
        """SGLang: `SGLANG_MAMBA_CONV_DTYPE`, bfloat16 unless set, whatever the model's dtype."""
        return "bf16" if self.holder == "sglang" else "model"

    def recurrent(self, kind: str) -> str:
        """The dtype of a recurrent state; "model" is the model's."""
        if self.asked and self.holder != "transformers":
            return STATE_DTYPES[self.asked]
        if self.holder == "sglang":
            return self._said("mamba_ssm_dtype", "fp32")
        if self.holder == "vllm":
            return self._vllm(kind)
        return "model" if kind in ("lightning attention", "key convolution") else "fp32"

    def _vllm(self, kind: str) -> str:
        """vLLM: that of the convolution, which is the model's, except where its model says otherwise."""
        if kind == "kimi delta attention":
            return "fp32"
        if self.model_type == "nemotron_h":
            return self._said("mamba_ssm_cache_dtype", "fp32")
        if self.model_type in ("qwen3_5", "qwen3_5_moe"):  # published configs all say float32
            return self._said("mamba_ssm_dtype", "fp32")
        return "model"

    def _said(self, field: str, otherwise: str) -> str:
        return STATE_DTYPES.get(str(self.text.get(field)), otherwise)


def _layer(block: Blocks, span: Span, states: _States, source: str) -> tuple[str, tuple[Part, ...], Span]:
    """(kind's name, parts, span) of one layer."""
    tensors = {weight.name: weight for weight in block.weights}
    name, state = state_parts(tensors, states.taps, states.conv, states.recurrent)
    if state and states.holder == "transformers 4":
        raise refuse(
            f"what transformers 4 keeps for {name} is not known",
            **{"from": source, "help": "transformers 5 is: its caches are compared with its own classes"},
        )
    if name == "key convolution" and states.holder != "transformers":
        raise refuse(f"what {states.holder} keeps for compressed convolutional attention is not known",
                     **{"from": source})  # fmt: skip
    expands = states.holder == "transformers" and states.model_type in _OWN_CODE
    attends, keys = attention_parts(tensors, span, "transformers 4" if expands else states.holder)
    if states.holder in ("sglang", "transformers 4") and any(part.keeps == "entry" for part in keys):
        raise refuse(f"what {states.holder} keeps for {attends} is not modelled", **{"from": source})
    if states.every_head:
        query = next(one for name, one in tensors.items() if name.endswith("query_key_value.weight")).axes[0].pieces[0]
        keys = tuple(structs.replace(part, axis=Axis((query,))) for part in keys)
    own = span if keys else FULL
    if name and keys:
        return f"{attends} + {name}", (*keys, *state), own
    return name or attends, (*keys, *state), own
