"""How far the attention of each layer sees: the config's list of layers, or the rule of its model type.

Source: the configuration classes of transformers 5.24 (`models/*/configuration_*.py`, `__post_init__`) and
`cache_utils.py`, `get_layer_types_and_kwargs`. vLLM 0.33 reads the same fields (`Attention`, `cache_config`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from vramcast.errors import Refused
from vramcast.models.fields import Fields, TypeDefaults
from vramcast.models.types import family_of
from vramcast.num import Size

Slides = Callable[[Fields, int], bool]


class Span(Struct, frozen=True):
    """What a layer's attention sees: `tokens` at most, all if 0; a chunk begins anew, a window moves."""

    name: str
    tokens: Size = 0


FULL = Span("full attention")


class Rule(Struct, frozen=True):
    """Which layers slide where the config does not list them, and the window that the type has if none is said."""

    slides: Slides
    window: int = 0
    """0: none unless the config says one"""
    switch: str = ""
    """the field that must be true"""
    word: str = "sliding_attention"
    """what its layers that do not see all are called"""
    listed: bool = True
    """`layer_types` says which layers slide"""
    before: str = ""
    """the field that counts the tokens before the query, and so one less"""
    halves: bool = False
    """attention both ways sees half of the window on each side"""


def _all(_: Fields, __: int) -> bool:
    return True


def _never(_: Fields, __: int) -> bool:
    return False


def _unless_every(period: int, field: str = "") -> Slides:
    """All layers but every n-th; `field` may say n."""

    def slides(c: Fields, layer: int) -> bool:
        return (layer + 1) % (c.count(field, period) if field else period) != 0

    return slides


def _from(first: int) -> Slides:
    """The layers from `max_window_layers` on."""
    return lambda c, layer: layer >= c.count("max_window_layers", first, 0)


def _qwen2_moe(c: Fields, layer: int) -> bool:
    return (layer + 1) % 2 != 0 and layer < c.count("max_window_layers", 28, 0)


def _rotates(c: Fields, layer: int) -> bool:
    """Layers with rotary positions: by the list, or all but every n-th."""
    said = c.given("no_rope_layers")
    listed = c.items("no_rope_layers", layer + 1) if said else None
    return bool(listed[layer]) if listed else (layer + 1) % c.count("no_rope_layer_interval", 4) != 0


def _mimo(c: Fields, layer: int) -> bool:
    pattern = c.items("hybrid_layer_pattern", layer + 1)
    return bool(pattern[layer]) if pattern else layer > 0 and (layer + 1) % 6 != 0


_QWEN = Rule(_from(28), 4096, "use_sliding_window")
_QWEN_VL = Rule(_from(80), 4096, "use_sliding_window")
_ANY = Rule(_all)
_PATTERN = "sliding_window_pattern"
RULES = {
    "mistral": Rule(_all, 4096),
    "ministral3": _ANY,
    "mixtral": _ANY,
    "phi3": _ANY,
    "phimoe": _ANY,
    "starcoder2": _ANY,
    "qwen2": _QWEN,
    "qwen3": _QWEN,
    "qwen2_moe": Rule(_qwen2_moe, 4096, "use_sliding_window"),
    "qwen3_moe": Rule(_all, 4096, "use_sliding_window"),
    "qwen2_vl": _QWEN_VL,
    "qwen2_5_vl": _QWEN_VL,
    "dots1": Rule(_from(62), 4096),
    "gemma2": Rule(_unless_every(2), 4096),
    "gemma3_text": Rule(_unless_every(6, _PATTERN), 4096, halves=True),
    "gemma3n": Rule(_unless_every(5), 512),
    "gemma4": Rule(_unless_every(6), 512, halves=True),
    "cohere2": Rule(_unless_every(4, _PATTERN), 4096),
    "exaone4": Rule(_unless_every(4, _PATTERN), 4096),
    "olmo3": Rule(_unless_every(4), 4096),
    "gpt_oss": Rule(_unless_every(2), 128),
    "smollm3": Rule(lambda c, layer: not _rotates(c, layer), 0, "use_sliding_window"),
    "llama4": Rule(_rotates, 8192, word="chunked_attention"),
    "mimo_v2_flash": Rule(_mimo, 129, before="sliding_window_size"),
    "deepseek_v4": Rule(_all, 128, listed=False),
}
"""model type → its rule."""
_SEES_ALL = Rule(_never, word="full_attention")
_OWN_LAYERS = ("mamba", "recurrent", "remote")
"""families whose classes have a list of their own, or a cache that knows no windows"""
_OWN_LISTS = ("deepseek_v32", "glm_moe_dsa", "minimax_m3_vl", "qwen3_5", "qwen3_5_moe", "zaya")
_SAME = {"gemma3": "gemma3_text", "gemma3n_text": "gemma3n", "gemma4_text": "gemma4", "llama4_text": "llama4",
         "qwen2_vl_text": "qwen2_vl", "qwen2_5_vl_text": "qwen2_5_vl"}  # fmt: skip
_FIELDS = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
_WORDS = {"hybrid_sliding": "sliding_attention"}


def spans(model_type: str, text: Mapping[str, Any], layers: int, source: str) -> list[Span]:
    """What each layer sees. `text`: the fields of the language model.

    Raises:
        Refused: a window or list that is not one, or listed layers whose window is not said.
    """
    rule = _rule(model_type, str(text.get("model_type") or ""))
    c = Fields(text, source, TypeDefaults(model_type))
    listed = c.items("layer_types", layers) if rule.listed else None
    word = "chunked_attention" if _chunks_instead(c, rule) else rule.word
    words = [_word(str(listed[layer])) if listed else word for layer in range(layers)]
    shorts = {word: _short(c, rule, word) for word in dict.fromkeys(words) if word in _FIELDS}
    slides = [word in shorts and bool(listed or rule.slides(c, layer)) for layer, word in enumerate(words)]
    found = [shorts[word] if slides[layer] else FULL for layer, word in enumerate(words)]
    if _same(model_type) == "gemma4" and found:
        found[-1] = FULL  # its configuration makes the last layer see all
    c.mistakes.done()
    return found


def window_of(c: Fields, layer: int) -> Size:
    """Tokens that a layer's attention sees at most; 0 if all."""
    if "spans" not in c.memo:
        try:
            c.memo["spans"] = spans(c.known.type, c.config, c.count("num_hidden_layers", 0, 0), c.source)
        except Refused:  # `cache_kinds` says what is wrong
            c.memo["spans"] = []
    found = c.memo["spans"]
    return found[layer].tokens if layer < len(found) else 0


def _chunks_instead(c: Fields, rule: Rule) -> bool:
    """A class without a list of layers has chunks in all of them where it has no window."""
    fits = rule.slides is _all and rule.listed
    return fits and not _short(c, rule, rule.word).tokens and c.given("attention_chunk_size") is not None


def _word(said: str) -> str:
    return _WORDS.get(said, said)


def _same(model_type: str) -> str:
    return _SAME.get(model_type, model_type)


def _rule(model_type: str, text_type: str) -> Rule:
    """That of the type or of its language model; without one every layer has the window that the config says."""
    found = RULES.get(_same(model_type)) or RULES.get(_same(text_type))
    own = model_type in _OWN_LISTS or family_of().get(model_type) in _OWN_LAYERS
    return found or (_SEES_ALL if own else _ANY)


def _short(c: Fields, rule: Rule, word: str) -> Span:
    """The span of layers that do not see all. A null says that they do; so does a switch that is off."""
    field = _FIELDS[word]
    if (rule.switch and word == rule.word and not c.flag(rule.switch)) or (c.cleared(field) and c.given(field) is None):
        return FULL
    window = rule.window if c.given(field) is None else c.count(field, least=0)
    if rule.before and c.given(rule.before) is not None:
        window = c.count(rule.before) + 1
    if not window and c.given("layer_types") and word in map(_word, map(str, c.given("layer_types"))):
        c.wrong(f"{c.path('layer_types')} has {word}, and {c.path(field)} says no window")
    if rule.halves and c.get("use_bidirectional_attention") in (True, "all"):
        window = window // 2 + 1
    return Span(word.replace("_", " "), window) if window else FULL
