"""Methods that add a product of narrow matrices to a weight: one function each, from a module to its tensors.

Sources: peft 0.21, `update_layer` or `create_adapter_parameters` of tuners/<method>/layer.py.
"""

from __future__ import annotations

from math import prod

from vramcast.models.adapters.adapter import NAME, Adapter, Tensor, entry, held, layer, under
from vramcast.models.adapters.match import pattern_value
from vramcast.models.adapters.modules import Module
from vramcast.models.adapters.notes import Unfit
from vramcast.num import Size, at_most, whole
from vramcast.units import divisors


def rank(m: Module, a: Adapter, field: str = "r", patterns: bool = True) -> int:
    """The rank of a module's adapter: `field`, or what rank_pattern says.

    Raises:
        Unfit: a rank below 1, or above the width that goes in.
    """
    value = pattern_value(a.table("rank_pattern"), m.name, a[field]) if patterns else a[field]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise Unfit(f"the rank {a.path(field)} = {value!r} must be a whole number above 0")
    width = m.outputs if m.kind == "embedding" else m.inputs * prod(m.shape[2:])
    if value > width:
        raise Unfit(f"the rank {value} is above the width {int(width)}", "an adapter is narrower than its layer")
    return value


def adalora(m: Module, a: Adapter) -> list[Tensor]:
    """A, B and a vector of singular values of rank init_r, and the current rank as a parameter.

    The current rank is made frozen; where PEFT upcasts it, it is made anew and trains.
    """
    r = rank(m, a, "init_r", patterns=False)
    return [
        entry(m.name, "lora_A", r, m.inputs),
        entry(m.name, "lora_B", m.outputs, r),
        entry(m.name, "lora_E", r, 1),
        entry(m.name, "ranknum", 1, trains=False),
    ]


def hira(m: Module, a: Adapter) -> list[Tensor]:
    """Like LoRA's. rank_pattern is read and not used: dispatch_default of peft 0.21 takes `r`."""
    r = rank(m, a, patterns=False)
    if m.kind == "embedding":
        return [entry(m.name, "hira_embedding_A", r, m.inputs), entry(m.name, "hira_embedding_B", m.outputs, r)]
    if m.kind == "convolution":
        if m.groups > 1:
            raise Unfit("HiRA adapts no convolution with groups")
        ones = (1,) * (len(m.shape) - 2)
        return [entry(m.name, "hira_A", r, m.inputs, *m.shape[2:]), entry(m.name, "hira_B", m.outputs, r, *ones)]
    return [entry(m.name, "hira_A", r, m.inputs), entry(m.name, "hira_B", m.outputs, r)]


def loha(m: Module, a: Adapter) -> list[Tensor]:
    """The product of two low-rank matrices, element by element; a convolution is flattened or has a core."""
    r = rank(m, a)
    if m.kind == "convolution" and a.flag("use_effective_conv2d") and prod(m.shape[2:]) > 1:
        kernel = (*m.shape[2:], 1)[:2]
        return [
            tensor
            for i in (1, 2)
            for tensor in (
                entry(m.name, f"hada_t{i}", r, r, *kernel),
                entry(m.name, f"hada_w{i}_a", r, m.outputs),
                entry(m.name, f"hada_w{i}_b", r, whole(m.inputs, m.groups)),
            )
        ]
    rows, columns = m.shape[0], prod(m.shape[1:])
    return [
        tensor
        for i in (1, 2)
        for tensor in (entry(m.name, f"hada_w{i}_a", rows, r), entry(m.name, f"hada_w{i}_b", r, columns))
    ]


def lokr(m: Module, a: Adapter) -> list[Tensor]:
    """A Kronecker product; each factor is whole, or low-rank where the rank is less than half its longer side."""
    r = pattern_value(a.table("rank_pattern"), m.name, a["r"])
    if not isinstance(r, int) or r < 1:
        raise Unfit(f"the rank {a.path('r')} = {r!r} must be a whole number above 0")
    (rows, inner_rows), (columns, inner_columns) = (
        factors(int(size), a.whole("decompose_factor")) for size in (m.shape[0], m.shape[1])
    )
    kernel = m.shape[2:]
    if a.flag("decompose_both") and 2 * r < max(rows, columns):
        found = [entry(m.name, "lokr_w1_a", rows, r), entry(m.name, "lokr_w1_b", r, columns)]
    else:
        found = [entry(m.name, "lokr_w1", rows, columns)]
    if 2 * r >= max(inner_rows, inner_columns):
        return [*found, entry(m.name, "lokr_w2", inner_rows, inner_columns, *kernel)]
    if a.flag("use_effective_conv2d") and prod(kernel) > 1:
        return [
            *found,
            entry(m.name, "lokr_t2", r, r, *(*kernel, 1)[:2]),
            entry(m.name, "lokr_w2_a", r, inner_rows),
            entry(m.name, "lokr_w2_b", r, inner_columns),
        ]
    sides = (entry(m.name, "lokr_w2_a", inner_rows, r), entry(m.name, "lokr_w2_b", r, inner_columns * prod(kernel)))
    return [*found, *sides]


def factors(size: int, near: int = -1) -> tuple[int, int]:
    """Two whole numbers that make `size`, the smaller first, as lokr/layer.py `factorization` picks them.

    `near` above 0 that divides the size is taken as it is. Otherwise the factor steps up through the divisors as long
    as the sum of both falls and it stays at or below `near` (-1: no bound).
    """
    if near > 0 and size % near == 0:
        return near, size // near
    bound = size if near == -1 else near
    small, large = 1, size
    for divisor in divisors(size)[1:]:
        if small >= large or divisor + size // divisor > small + large or divisor > bound:
            break
        small, large = divisor, size // divisor
    return (small, large) if small <= large else (large, small)


def delora(m: Module, a: Adapter) -> list[Tensor]:
    """A, B, a strength, and the norm of each column of the weight as a buffer."""
    r = rank(m, a)
    return [
        entry(m.name, "delora_A", r, m.inputs),
        entry(m.name, "delora_B", m.outputs, r),
        entry(m.name, "delora_lambda", 1),
        held(m.name, "delora_w_norm", m.inputs),
    ]


def deft(m: Module, a: Adapter) -> list[Tensor]:
    """A projection, and what is injected through it where `para` is off; the rank is at most the outputs."""
    r = at_most(rank(m, a), m.outputs)
    found = [entry(m.name, "deft_P", m.outputs, r)]
    return found if a.flag("para") else [*found, entry(m.name, "deft_R", r, m.inputs)]


def gralora(m: Module, a: Adapter) -> list[Tensor]:
    """k × k blocks, each with its own low-rank pair, and a pair over all where hybrid_r is above 0."""
    r, k, hybrid = rank(m, a), a.whole("gralora_k"), a.whole("hybrid_r")
    if hybrid < 0:
        raise Unfit(f"hybrid_r = {hybrid} must be 0 or more")
    for what, size in (("inputs", m.inputs), ("outputs", m.outputs)):
        if size % k:
            raise Unfit(f"gralora_k = {k} does not divide the {int(size)} {what}")
    found = [
        entry(m.name, "gralora_A", k, whole(m.inputs, k), r),
        entry(m.name, "gralora_B", k, r, whole(m.outputs, k)),
    ]
    if hybrid:
        found += [layer(m.name, "gralora_A_general", hybrid, m.inputs)]
        found += [layer(m.name, "gralora_B_general", m.outputs, hybrid)]
    return found


def glora(m: Module, a: Adapter) -> list[Tensor]:
    """Paths A and B over the weight; C, D and E over the bias where the layer has one. An empty path is zeros."""
    r = rank(m, a)
    column = a["config_A_B"]
    paths: dict[str, tuple[str, tuple[Size, ...]]] = {}
    for name in "AB":
        paths[name] = (column, (m.outputs, m.inputs) if column in ("lora", "none") else (m.outputs, 1))
    paths["C"] = (a["config_C"] if m.bias else "none", (m.inputs, 1))
    for name in "DE":
        paths[name] = (a["config_D_E"] if m.bias else "none", (m.outputs,))
    return [tensor for name, (form, shape) in paths.items() for tensor in _path(m, f"glora_{name}", form, shape, r)]


def _path(m: Module, name: str, form: str, shape: tuple[Size, ...], r: int) -> list[Tensor]:
    def own(leaf: str, *sizes: Size) -> Tensor:
        return Tensor(under(m.name, name, NAME, leaf), sizes, m.name)

    if form == "lora":
        return [own("Xd", shape[0], r), own("Xu", r, shape[1])]
    if form == "none":
        return [Tensor(under(m.name, name, NAME, "zeros"), shape, m.name, False, "base", True)]
    return [own("X", 1)] if form == "constant" else [own("X", *shape)]


def poly(m: Module, a: Adapter) -> list[Tensor]:
    """Skills × splits of low-rank pairs and a router of tasks."""
    r, skills, splits = rank(m, a), a.whole("n_skills"), a.whole("n_splits")
    return [
        entry(m.name, "poly_lora_A", splits, skills, whole(m.inputs, splits), r),
        entry(m.name, "poly_lora_B", splits, skills, r, whole(m.outputs, splits)),
        Tensor(under(m.name, "poly_router", NAME, "module_logits"), (a.whole("n_tasks"), splits * skills), m.name),
    ]


def peanut(m: Module, a: Adapter) -> list[Tensor]:
    """Between two outer matrices, pairs of square ones; both outer ones are over the outputs (layer.py)."""
    r = rank(m, a)
    inner = [
        Tensor(under(m.name, f"peanut_{side}", NAME, str(i), "weight"), (r, r), m.name)
        for side in ("encoders", "decoders")
        for i in range(a.whole("depth"))
    ]
    return [layer(m.name, "peanut_A", r, m.outputs), layer(m.name, "peanut_B", m.outputs, r), *inner]
