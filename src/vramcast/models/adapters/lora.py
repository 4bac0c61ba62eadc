"""LoRA on a module, on a parameter, and on a tied pair of embedding and head.

Sources: peft 0.21 tuners/lora/layer.py (update_layer of each layer class, ParamWrapper), dora.py.
"""

from __future__ import annotations

from math import prod

from vramcast.models.adapters.adapter import Adapter, Tensor
from vramcast.models.adapters.match import pattern_value
from vramcast.models.adapters.modules import TRANSPOSED, Module
from vramcast.models.adapters.notes import Unfit
from vramcast.num import Size, whole

MAMBA = frozenset("falcon_h1 mamba mamba2 falcon_mamba nemotron_h".split())
"""model types whose out_proj and conv1d PEFT refuses to adapt (_check_lora_target_modules_mamba)"""
_ADAPTED = {
    "linear": "linear layers", "conv1d": "Conv1D layers", "embedding": "embeddings", "convolution": "convolutions",
}  # fmt: skip
_OTHER = {
    "attention": "nn.MultiheadAttention", "norm": "norms", "other": "modules of their own class",
    "container": "modules that hold others",
}  # fmt: skip


def rank(m: Module, a: Adapter) -> int:
    """The rank of a module's adapter: `r`, or what rank_pattern says.

    Raises:
        Unfit: a rank below 1, or above the width that goes in.
    """
    value = pattern_value(a.table("rank_pattern"), m.name, a["r"])
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise Unfit(f"the rank {a.path('r')} = {value!r} must be a whole number above 0")
    width = m.outputs if m.kind == "embedding" else m.inputs * prod(m.shape[2:])
    if value > width:
        raise Unfit(f"the rank {value} is above the width {int(width)}", "an adapter is narrower than its layer")
    return value


def lora(m: Module, a: Adapter) -> list[Tensor]:
    """A: r × inputs, B: outputs × r, and the magnitudes of DoRA.

    Of a convolution A has the same kernel without groups, and B kernel 1 with the groups of the base layer.

    Raises:
        Unfit: the module cannot be adapted.
    """
    if m.model_type in MAMBA and m.last in ("out_proj", "conv1d"):
        raise Unfit(f"PEFT refuses LORA on {m.last} of {m.model_type}")
    if m.kind in _OTHER:
        known = ", ".join(_ADAPTED[kind] for kind in sorted(_ADAPTED))
        raise Unfit(f"LORA adapts {known}, not {_OTHER[m.kind]}")
    r, convolution = rank(m, a), m.kind == "convolution"
    if a["init_lora_weights"] == "orthogonal" and r % 2:
        raise Unfit(f"init_lora_weights = orthogonal needs an even rank, not {r}")
    if m.kind == "embedding" and a.flag("lora_bias"):
        raise Unfit("lora_bias does not work on an embedding")
    if convolution and r % m.groups:
        raise Unfit(f"the rank {r} is not divisible by the {int(m.groups)} groups of the convolution")
    shapes = [(r, m.inputs, *m.shape[2:]), (m.outputs, whole(r, m.groups) if convolution else r)]
    shapes += [(m.outputs,)] * (a.flag("lora_bias") + a.flag("use_dora"))
    return [Tensor(m.name, shape) for shape in shapes]


def tied(m: Module, a: Adapter) -> list[Tensor]:
    """The head of a model whose head is its embedding, under ensure_weight_tying: views of the embedding's pair.

    Each view is a parameter of its own and is counted again (lora/layer.py update_layer, tied_adapter).
    """
    r = rank(m, a)
    return [Tensor(m.name, (r, m.shape[1])), Tensor(m.name, (m.shape[0], r))]


def on_parameter(owner: Module, leaf: str, shape: tuple[Size, ...], a: Adapter) -> list[Tensor]:
    """LoRA on a bare parameter (ParamWrapper): packed experts have a pair of rank r each, side by side.

    Args:
        owner: the module that holds the parameter.
        leaf: the parameter's name in it.
        shape: experts × outputs × inputs, inputs first where the module says is_transposed; or a matrix.
    """
    for name in ("lora_dropout", "fan_in_fan_out", "lora_bias", "use_dora"):
        if a[name]:
            raise Unfit(f"{name} does not work on a parameter (target_parameters): {leaf}")
    if len(shape) not in (2, 3):
        raise Unfit(f"target_parameters adapts tensors of 2 or 3 dimensions, {leaf} has {len(shape)}")
    experts, outputs, inputs = shape if len(shape) == 3 else (1, *shape)
    if len(shape) == 3 and owner.model_type in TRANSPOSED:
        outputs, inputs = inputs, outputs
    r = pattern_value(a.table("rank_pattern"), f"{owner.name}.{leaf}", a.whole("r"))
    if r > inputs:
        raise Unfit(f"the rank {r} is above the width {int(inputs)} of {leaf}", "an adapter is narrower than its layer")
    return [Tensor(owner.name, (r * experts, inputs)), Tensor(owner.name, (outputs, r * experts))]
