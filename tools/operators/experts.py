"""A layer of experts: Hugging Face's loop over experts, and Liger's grouped kernels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tools.operators.inputs import Inputs


def _tensors(inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """Hidden states, weights (scaled: the leaves stay beside them), indices and weights of the chosen experts."""
    kept = getattr(inputs, "expert_tensors", None)
    if kept is not None:
        return kept
    size, component = inputs, inputs.component
    tokens = component.sequences * component.length
    hidden = inputs.made(torch.empty(tokens, component.hidden, dtype=size.dtype), learns=True)
    shapes = (
        (component.experts, 2 * component.intermediate, component.hidden),
        (component.experts, component.hidden, component.intermediate),
    )
    leaves = [torch.empty(*shape, dtype=size.dtype) for shape in shapes]
    for leaf in leaves:
        inputs.tracker.track(leaf, "experts", "weight")
        inputs.made(leaf, learns=True)
    up, down = (leaf * 0.02 for leaf in leaves)
    index = inputs.made(torch.zeros(tokens, component.chosen, dtype=torch.int32), learns=False)
    share = inputs.made(torch.empty(tokens, component.chosen, dtype=size.dtype), learns=True)
    inputs.expert_tensors = hidden, up, down, index, share  # type: ignore[attr-defined]
    return hidden, up, down, index, share


def plain(inputs: Inputs) -> torch.Tensor:
    """Expert by expert, each with an even share of the tokens.

    Source: transformers/models/mixtral/modeling_mixtral.py, MixtralExperts.forward.
    """
    hidden, up, down, index, share = _tensors(inputs)
    component = inputs.component
    out = torch.zeros_like(hidden)
    with torch.no_grad():
        mask = F.one_hot(index.long(), num_classes=component.experts).permute(2, 1, 0)
    mine = index.numel() // component.experts
    for expert in range(component.experts):
        tokens = torch.zeros(mine, dtype=torch.long)
        places = torch.zeros(mine, dtype=torch.long)
        current = hidden[tokens]
        gate, value = F.linear(current, up[expert]).chunk(2, dim=-1)
        current = F.silu(gate) * value
        current = F.linear(current, down[expert])
        current = current * share[tokens, places, None]
        out.index_add_(0, tokens, current.to(out.dtype))
    del mask
    return out


def liger(inputs: Inputs) -> torch.Tensor:
    """Liger's function: routing, two grouped products, and the sum over experts."""
    from liger_kernel.ops.fused_moe import LigerFusedMoEFunction

    return LigerFusedMoEFunction.apply(*_tensors(inputs))
