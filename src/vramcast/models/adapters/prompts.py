"""Methods that train tokens in front of the input, or keys and values in front of the cache.

Sources: peft 0.21 utils/other.py _prepare_prompt_learning_config; tuners/prompt_tuning, multitask_prompt_tuning, cpt,
p_tuning, prefix_tuning, cartridge and adaption_prompt (model.py, layer.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from vramcast.models.adapters.adapter import ROOT, Adapter, Tensor
from vramcast.models.adapters.modules import Tree
from vramcast.models.adapters.notes import Unfit
from vramcast.models.layout import Layout, Piece
from vramcast.num import Size

WITHOUT_KEY_HEADS = frozenset("gptj gpt_neo gpt_neox bloom gpt2 gpt_bigcode opt mpt falcon".split())
"""model types whose configuration has no num_key_value_heads: a prefix is as wide as the hidden states"""
UNSAID = {"mpt": ("num_layers", "num_attention_heads"), "mamba": ("num_attention_heads",),
          "falcon_mamba": ("num_attention_heads",)}  # fmt: skip
"""model type → what PEFT cannot find in its configuration and asks for"""
ATTENTIONS = {"llama": "self_attn", "mistral": "self_attn", "gpt2": "attn"}
"""model type → its attention modules, for adaption prompts (adaption_prompt/config.py)"""
_ENCODER = "prompt_encoder.default"


class Widths:
    """Sizes that PEFT reads from the model's configuration where the adapter's leaves them open."""

    def __init__(self, layout: Layout, tree: Tree, a: Adapter) -> None:
        for field in UNSAID.get(layout.model_type, ()):
            if a[field] is None:
                raise Unfit(f"PEFT cannot read {field} from the configuration of {layout.model_type}: it must be said")
        self.layout, self.tree, self.adapter = layout, tree, a
        self.layers: Size = a.whole("num_layers") or len(layout.layers())
        self.hidden: Size = a.whole("token_dim") or self._hidden()
        self.tokens: Size = a.whole("num_virtual_tokens")
        if a["num_transformer_submodules"] not in (None, 1):
            raise Unfit("num_transformer_submodules above 1 is for encoder-decoder models, which have no layout")

    def _hidden(self) -> Size:
        into = [shape for name, shape in self.tree.tensors.items() if name.endswith("project_in.weight")]
        return into[0][0] if into else self.tree.modules[self.tree.embedding].outputs

    def keys(self) -> Size:
        """Width of the keys of a layer: what a prefix is made of (for grouped-query attention)."""
        if self.layout.model_type in WITHOUT_KEY_HEADS:
            return self.hidden
        if self.layout.model_type == "gemma4":
            raise Unfit("layers with key heads of several widths take a prefix in some layers only: not counted")
        found = [
            piece
            for block in self.layout.blocks
            for weight in block.weights
            if re.search(r"(k_proj|qkv_proj|Wqkv|W_pack|wqkv|query_key_value)\.weight$", weight.name)
            for piece in weight.axes[0].pieces
            if piece.kind == "kv"
        ]
        if not found:
            raise Unfit(f"attention of {self.layout.model_type} has no key heads of one width to prepend to")
        return max(found, key=_head).count * max(found, key=_head).width


def _head(piece: Piece) -> Size:
    return piece.width


def _own(leaf: str, *shape: Size, trains: bool = True) -> Tensor:
    return Tensor(f"{_ENCODER}.{leaf}", shape, "", trains, "fp32")


def prompt(w: Widths) -> list[Tensor]:
    """An embedding for each virtual token."""
    return [_own("embedding.weight", w.tokens, w.hidden)]


def multitask(w: Widths) -> list[Tensor]:
    """The same, and a low-rank matrix for each task."""
    tasks, ranks = w.adapter.whole("num_tasks") or 1, w.adapter.whole("num_ranks") or 1
    columns = _own("prefix_task_cols", tasks, w.tokens, ranks)
    return [*prompt(w), columns, _own("prefix_task_rows", tasks, ranks, w.hidden)]


def cpt(w: Widths) -> list[Tensor]:
    """The embeddings of given tokens, frozen, and what is added to them."""
    tokens = len(w.adapter["cpt_token_ids"] or [0])
    frozen = _own("embedding.weight", tokens, w.hidden, trains=False)
    return [frozen, _own("delta_embedding.weight", tokens, w.hidden)]


def p_tuning(w: Widths) -> list[Tensor]:
    """Embeddings and the network that they go through: an MLP, or an LSTM in both directions and an MLP."""
    inner: Size = w.adapter.whole("encoder_hidden_size") or w.hidden
    found = prompt(w)
    if w.adapter["encoder_reparameterization_type"] == "LSTM":
        for i in range(w.adapter.whole("encoder_num_layers")):
            for way in ("", "_reverse"):
                found += _lstm(f"l{i}{way}", w.hidden if i == 0 else 2 * inner, inner)
        sides = ((0, 2 * inner, 2 * inner), (2, w.hidden, 2 * inner))
    else:
        sides = ((0, inner, w.hidden), (2, inner, inner), (4, w.hidden, inner))
    for index, outputs, inputs in sides:
        found += [_own(f"mlp_head.{index}.weight", outputs, inputs), _own(f"mlp_head.{index}.bias", outputs)]
    return found


def _lstm(suffix: str, inputs: Size, inner: Size) -> list[Tensor]:
    """A direction of a layer: four gates over the input and the state (torch.nn.LSTM)."""
    shapes = {"weight_ih": (4 * inner, inputs), "weight_hh": (4 * inner, inner)}
    biases = [_own(f"lstm_head.{name}_{suffix}", 4 * inner) for name in ("bias_ih", "bias_hh")]
    return [*(_own(f"lstm_head.{name}_{suffix}", *shape) for name, shape in shapes.items()), *biases]


def prefix(w: Widths) -> list[Tensor]:
    """Keys and values of every layer for each virtual token, or a network that makes them."""
    keys = w.keys()
    if not w.adapter.flag("prefix_projection"):
        return [_own("embedding.weight", w.tokens, 2 * w.layers * keys)]
    inner: Size = w.adapter.whole("encoder_hidden_size") or keys
    return [
        _own("embedding.weight", w.tokens, keys),
        _own("transform.0.weight", inner, keys),
        _own("transform.0.bias", inner),
        _own("transform.2.weight", 2 * w.layers * keys, inner),
        _own("transform.2.bias", 2 * w.layers * keys),
    ]


def cartridge(w: Widths) -> list[Tensor]:
    """The same, the first tokens frozen."""
    frozen, width = w.adapter.whole("num_frozen_tokens"), 2 * w.layers * w.keys()
    if not 0 <= frozen <= w.tokens:
        raise Unfit(f"num_frozen_tokens = {frozen} is not between 0 and num_virtual_tokens = {int(w.tokens)}")
    found = [_own("frozen_embedding", frozen, width, trains=False)] if frozen else []
    return [*found, _own("trainable_embedding", w.tokens - frozen, width)]


def adaption(layout: Layout, tree: Tree, a: Adapter) -> list[Tensor]:
    """Tokens and a gate in the last attention modules, in the dtype of their weights."""
    if layout.model_type not in ATTENTIONS:
        known = ", ".join(ATTENTIONS)
        raise Unfit(f"PEFT has no adaption prompts for {layout.model_type}: it has them for {known}")
    target = str(a["target_modules"] or ATTENTIONS[layout.model_type])
    homes = [name for name in tree.modules if name.endswith(f".{target}")]
    layers, length = a.whole("adapter_layers"), a.whole("adapter_len")
    if not 1 <= layers <= len(homes):
        raise Unfit(f"adapter_layers = {layers} is not between 1 and the model's {len(homes)} modules {target}")
    hidden = tree.modules[tree.embedding].outputs
    return [
        tensor
        for home in homes[-layers:]
        for tensor in (
            Tensor(f"{ROOT}{home}.adaption_prompt", (1, length, hidden), home, True, "base"),
            Tensor(f"{ROOT}{home}.adaption_gate", (1,), home, True, "base"),
        )
    ]


PROMPTS: dict[str, Callable[[Widths], list[Tensor]]] = {
    "PROMPT_TUNING": prompt,
    "MULTITASK_PROMPT_TUNING": multitask,
    "CPT": cpt,
    "P_TUNING": p_tuning,
    "PREFIX_TUNING": prefix,
    "CARTRIDGE": cartridge,
}
