"""A checkpoint on disk beside what its config.json makes us expect: where the bytes differ, by group of tensors.

Tensors of equal modules are one group, whatever their layer. Files spell names in older ways and keep experts apart;
both sides are brought to one spelling first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from vramcast.catalog.checkpoint import Checkpoint
from vramcast.models.layout import Layout
from vramcast.models.quant.quantisation import Quantisation
from vramcast.models.stored import tensors

_PARTS = re.compile(
    r"\.(weight(_packed|_scale(_inv|_2)?|_shape|_zero_point|_global_scale|_format)?|qweight|qzeros|scales|g_idx|SCB"
    r"|input_scale(_ub)?|input_global_scale|activation_scale|scale"
    r"|weight\.(absmax|quant_map|nested_absmax|nested_quant_map|quant_state\.\w+))$"
)
_BLOCKS = re.compile(r"_(blocks|scales|scale_inv|scale)$")
_EXPERT = re.compile(r"\.experts(?:\.\d+)?\.(gate_up_proj|gate_proj|up_proj|w1|w3|down_proj|w2)")


class Group(Struct, frozen=True):
    """Tensors of equal modules on both sides, in bytes."""

    name: str
    forecast: int
    folder: int

    @property
    def difference(self) -> int:
        """What the folder has more."""
        return self.folder - self.forecast


def compare(layout: Layout, quantisation: Quantisation | None, dtype: str, checkpoint: Checkpoint) -> list[Group]:
    """The groups that differ, the largest difference first; empty if every group has the bytes that we expect."""
    forecast = _sums(
        (tensor.name, int(tensor.bytes) * tensor.count)
        for block in layout.blocks
        for tensor in tensors(block, quantisation, dtype)
    )
    folder = _sums((name, entry.bytes) for name, entry in checkpoint.tensors.items())
    names = dict.fromkeys([*forecast, *folder])
    groups = [Group(name, forecast.get(name, 0), folder.get(name, 0)) for name in names]
    return sorted((one for one in groups if one.difference), key=lambda one: -abs(one.difference))


def _sums(sizes: Iterable[tuple[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, size in sizes:
        group = group_of(name)
        found[group] = found.get(group, 0) + size
    return found


def group_of(name: str) -> str:
    """The group of a tensor: its module without numbers, prefixes and the name of its part."""
    module = _PARTS.sub("", name) if not name.endswith(".bias") else name
    module = module.replace(".block_sparse_moe.", ".mlp.")
    if match := _EXPERT.search(module):
        leaf = "down_proj" if match[1] in ("down_proj", "w2") else "gate_up_proj"
        bias = "_bias" if module.endswith("bias") else ""
        module = f"{module[: match.start()]}.experts.{leaf}{bias}"
    else:
        module = _BLOCKS.sub("", module)
    module = re.sub(r"^(model\.|language_model\.)+", "", module)
    return re.sub(r"\.\d+(?=\.|$)", ".*", module)
