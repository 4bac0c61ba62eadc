"""LoRA and its variants on a module, on a parameter, and on a tied pair of embedding and head.

Sources: peft 0.21 tuners/lora/layer.py (update_layer of each layer class, ParamWrapper), variants.py, dora.py,
monteclora.py, velora.py.
"""

from __future__ import annotations

from typing import Any

from vramcast.models.adapters.adapter import NAME, Adapter, Tensor, entry, held, layer, under
from vramcast.models.adapters.lowrank import rank
from vramcast.models.adapters.modules import TRANSPOSED, Module
from vramcast.models.adapters.notes import Unfit
from vramcast.num import Size, shard, whole

VARIANTS = ("use_dora", "use_bdlora", "alora_invocation_tokens", "velora_config", "monteclora_config", "kasa_config")
_OF_EMBEDDING = frozenset(["use_dora", "mica"])
_OF_CONVOLUTION = frozenset(["use_dora"])


def variants(a: Adapter) -> list[str]:
    """The variants of LoRA that are asked for; MiCA is an initialisation."""
    found = [name for name in VARIANTS if a[name] not in (None, False)]
    return [*found, *(["mica"] if a["init_lora_weights"] == "mica" else [])]


def lora(m: Module, a: Adapter) -> list[Tensor]:
    """A: r × inputs, B: outputs × r, and what the variant adds."""
    r, asked = rank(m, a), variants(a)
    if a["init_lora_weights"] == "orthogonal" and r % 2:
        raise Unfit(f"init_lora_weights = orthogonal needs an even rank, not {r}")
    if m.kind == "embedding":
        return _embedding(m, a, r, asked)
    if m.kind == "convolution":
        return _convolution(m, a, r, asked)
    found = [
        layer(m.name, "lora_A", r, m.inputs),
        layer(m.name, "lora_B", m.outputs, r, trains="mica" not in asked),
    ]
    if a.flag("lora_bias"):
        found.append(_bias(m))
    return _varied(m, a, r, found, asked[0]) if asked else found


def _bias(m: Module) -> Tensor:
    return Tensor(under(m.name, "lora_B", NAME, "bias"), (m.outputs,), m.name)


def _embedding(m: Module, a: Adapter, r: int, asked: list[str]) -> list[Tensor]:
    if a.flag("lora_bias"):
        raise Unfit("lora_bias does not work on an embedding")
    _only(asked, _OF_EMBEDDING, "an embedding")
    found = [
        entry(m.name, "lora_embedding_A", r, m.inputs),
        entry(m.name, "lora_embedding_B", m.outputs, r, trains="mica" not in asked),
    ]
    return [*found, layer(m.name, "lora_magnitude_vector", m.outputs)] if "use_dora" in asked else found


def _convolution(m: Module, a: Adapter, r: int, asked: list[str]) -> list[Tensor]:
    """A is a convolution of the same kernel without groups, B one of kernel 1 with the groups of the base layer."""
    _only(asked, _OF_CONVOLUTION, "a convolution")
    if r % m.groups:
        raise Unfit(f"the rank {r} is not divisible by the {int(m.groups)} groups of the convolution")
    ones = (1,) * (len(m.shape) - 2)
    found = [
        layer(m.name, "lora_A", r, m.inputs, *m.shape[2:]),
        layer(m.name, "lora_B", m.outputs, whole(r, m.groups), *ones),
    ]
    if a.flag("lora_bias"):
        found.append(_bias(m))
    return [*found, layer(m.name, "lora_magnitude_vector", 1, m.outputs, *ones)] if "use_dora" in asked else found


def _only(asked: list[str], known: frozenset[str], what: str) -> None:
    for name in asked:
        if name not in known:
            raise Unfit(f"{name} does not work on {what}")


def _varied(m: Module, a: Adapter, r: int, found: list[Tensor], variant: str) -> list[Tensor]:
    if variant == "use_dora":
        return [*found, layer(m.name, "lora_magnitude_vector", m.outputs)]
    if variant == "kasa_config":
        if m.kind == "conv1d":
            raise Unfit("KaSA does not work on Conv1D")
        return [*found, entry(m.name, "lora_diag", r)]
    if variant == "velora_config":
        groups = int(a.table("velora_config").get("num_groups", 64))
        return [*found, held(m.name, "lora_velora_embed", shard(m.inputs, groups))]
    if variant == "monteclora_config":
        return [*found, *_sampler(m, r, int(a.table("monteclora_config").get("num_samples", 8)))]
    return _blocks(m, r, found, a.table("use_bdlora")) if variant == "use_bdlora" else found


def _sampler(m: Module, r: int, samples: int) -> list[Tensor]:
    def own(leaf: str, *shape: Size, buffer: bool = False) -> Tensor:
        name = under(m.name, "lora_monteclora_sampler", NAME, leaf)
        return Tensor(name, shape, m.name, not buffer, "adapter" if not buffer else "base", buffer)

    return [
        own("std_prior", r),
        own("expert_weights_prior", samples),
        own("gaussian_var_prior", r, r, buffer=True),
        own("expert_weights", samples, buffer=True),
    ]


def _blocks(m: Module, r: int, found: list[Tensor], config: dict[str, Any]) -> list[Tensor]:
    """Block-diagonal A or B: a block sees its share of what comes in. Which one: a part of the module's name says."""
    blocks = int(config.get("nblocks", 1))
    inside = {
        side: any(str(part) in m.name for part in config.get(f"target_modules_bd_{side}") or ()) for side in ("a", "b")
    }
    if inside["a"] and inside["b"]:
        raise Unfit("use_bdlora: the module is in target_modules_bd_a and in target_modules_bd_b")
    if not inside["a"] and not inside["b"]:
        if config.get("match_strict", True):
            raise Unfit("use_bdlora: the module is neither in target_modules_bd_a nor in target_modules_bd_b")
        return found
    rows, columns = (r, m.inputs) if inside["a"] else (m.outputs, r)
    if rows % blocks or columns % blocks:
        raise Unfit(f"use_bdlora: nblocks = {blocks} does not divide {int(columns)} and {int(rows)}")
    side = "lora_A" if inside["a"] else "lora_B"
    block = layer(m.name, side, rows, whole(columns, blocks))
    return [block, found[1]] if inside["a"] else [found[0], block]


def tied(m: Module, a: Adapter) -> list[Tensor]:
    """The head of a model whose head is its embedding, under ensure_weight_tying: views of the embedding's pair.

    Each view is a parameter of its own and is counted again (lora/layer.py update_layer, tied_adapter).
    """
    r = rank(m, a)
    return [layer(m.name, "lora_A", r, m.shape[1]), layer(m.name, "lora_B", m.shape[0], r)]


def on_parameter(owner: Module, leaf: str, shape: tuple[Size, ...], depth: int, a: Adapter, r: int) -> list[Tensor]:
    """LoRA on a bare parameter (ParamWrapper): packed experts have a pair of rank r each, side by side.

    Args:
        owner: the module that holds the parameter.
        leaf: the parameter's name in it.
        shape: experts × outputs × inputs, inputs first where the module says is_transposed; or a matrix.
        depth: how many wrappers of other parameters of the module stand around this one.
    """
    refused = ("lora_dropout", "fan_in_fan_out", "lora_bias", "use_dora", "velora_config", "kasa_config")
    for name in refused:
        if a[name]:
            raise Unfit(f"{name} does not work on a parameter (target_parameters): {leaf}")
    if len(shape) not in (2, 3):
        raise Unfit(f"target_parameters adapts tensors of 2 or 3 dimensions, {leaf} has {len(shape)}")
    experts, outputs, inputs = shape if len(shape) == 3 else (1, *shape)
    if len(shape) == 3 and owner.model_type in TRANSPOSED:
        outputs, inputs = inputs, outputs
    if r > inputs:
        raise Unfit(f"the rank {r} is above the width {int(inputs)} of {leaf}", "an adapter is narrower than its layer")
    around = ["base_layer"] * depth
    sides = (("lora_A", (r * experts, inputs)), ("lora_B", (outputs, r * experts)))
    return [Tensor(under(owner.name, *around, side, NAME, "weight"), sizes, owner.name) for side, sizes in sides]
