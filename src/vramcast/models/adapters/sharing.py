"""Methods whose adapted modules share tensors: what each has of its own, and what is there once.

Sources: peft 0.21, tuners/<method>/layer.py `update_layer` and model.py (`_find_dim`, `_pre_injection_hook`,
`_post_injection_hook`, `_create_and_replace`).
"""

from __future__ import annotations

from collections.abc import Iterable

from vramcast.models.adapters.adapter import NAME, Adapter, DtypeRule, Tensor, entry, held, layer, shared, unique
from vramcast.models.adapters.lowrank import rank
from vramcast.models.adapters.modules import Module
from vramcast.models.adapters.notes import Unfit
from vramcast.num import Size, at_most, shard, whole, worst


def _largest(modules: Iterable[Module]) -> tuple[Size, Size]:
    """(most outputs, most inputs): random projections are made once for the largest and cut for the others."""
    found = list(modules)
    return worst(*(one.outputs for one in found)), worst(*(one.inputs for one in found))


def vera(m: Module, a: Adapter) -> list[Tensor]:
    """Two scaling vectors."""
    return [entry(m.name, "vera_lambda_b", m.outputs), entry(m.name, "vera_lambda_d", rank(m, a))]


def vera_shared(modules: list[Module], a: Adapter) -> list[Tensor]:
    """Frozen random A and B."""
    r, (outputs, inputs) = a.whole("r"), _largest(modules)
    names = (("vera_A", (r, inputs)), ("vera_B", (outputs, r)))
    return [shared(f"base_model.{name}.{NAME}", *shape, buffer=True) for name, shape in names]


def pvera(m: Module, a: Adapter) -> list[Tensor]:
    """Two scaling vectors; that of A is for a mean and a deviation."""
    return [entry(m.name, "pvera_lambda_b", m.outputs), entry(m.name, "pvera_lambda_d", 2 * rank(m, a))]


def pvera_shared(modules: list[Module], a: Adapter) -> list[Tensor]:
    """Frozen random A, of twice the rank, and B."""
    r, (outputs, inputs) = a.whole("r"), _largest(modules)
    names = (("pvera_A", (2 * r, inputs)), ("pvera_B", (outputs, r)))
    return [shared(f"base_model.{name}.{NAME}", *shape, buffer=True) for name, shape in names]


def randlora(m: Module, a: Adapter) -> list[Tensor]:
    """So many random bases that their sum has full rank, each with scaling vectors."""
    r, narrow = rank(m, a), at_most(m.inputs, m.outputs)
    bases = shard(narrow, r)
    return [entry(m.name, "randlora_lambda", r, bases), entry(m.name, "randlora_gamma", bases, narrow)]


def randlora_shared(modules: list[Module], a: Adapter) -> list[Tensor]:
    """Frozen random bases for the widest of the adapted layers."""
    r, sides = a.whole("r"), _largest(modules)
    narrow, wide = at_most(*sides), worst(*sides)
    names = (("randlora_A", (r, 1, narrow)), ("randlora_B", (wide, shard(narrow, r), r)))
    return [shared(f"base_model.{name}.{NAME}", *shape, buffer=True) for name, shape in names]


def vblora(m: Module, a: Adapter) -> list[Tensor]:
    """Logits that pick vectors of the bank for each piece of A and B."""
    r, count, length = rank(m, a), a.whole("num_vectors"), a.whole("vector_length")
    for what, size in (("inputs", m.inputs), ("outputs", m.outputs)):
        if size % length:
            raise Unfit(f"vector_length = {length} does not divide the {int(size)} {what}")
    return [
        entry(m.name, "vblora_logits_A", r, whole(m.inputs, length), count),
        entry(m.name, "vblora_logits_B", whole(m.outputs, length), r, count),
    ]


def vblora_shared(_: list[Module], a: Adapter) -> list[Tensor]:
    """The bank of vectors."""
    return [shared(f"base_model.vblora_vector_bank.{NAME}", a.whole("num_vectors"), a.whole("vector_length"))]


def unilora(m: Module, a: Adapter) -> list[Tensor]:
    """Indices into the one trained vector, and their scales, for A and B."""
    r = rank(m, a)
    return [
        held(m.name, "unilora_indices_A", r, m.inputs, dtype="int64"),
        held(m.name, "unilora_indices_B", m.outputs, r, dtype="int64"),
        held(m.name, "unilora_scales_A", r, m.inputs),
        held(m.name, "unilora_scales_B", m.outputs, r),
    ]


def unilora_shared(_: list[Module], a: Adapter) -> list[Tensor]:
    """The one trained vector."""
    return [shared(f"base_model.unilora_theta_d.{NAME}", a.whole("theta_d_length"))]


def tinylora(m: Module, a: Adapter) -> list[Tensor]:
    """The frozen singular vectors of the weight, and random matrices that the trained vector mixes."""
    u, r = a.whole("u"), a.whole("r")
    if u < 1 or r < 1:
        raise Unfit(f"u = {u} and r = {r} must be above 0")
    inputs, outputs = (m.outputs, m.inputs) if m.kind == "embedding" else (m.inputs, m.outputs)
    r = at_most(r, inputs, outputs)
    return [
        held(m.name, "tinylora_A", r, inputs),
        held(m.name, "tinylora_B", outputs, r),
        held(m.name, "tinylora_P", u, r, r),
    ]


def tinylora_shared(modules: list[Module], a: Adapter) -> list[Tensor]:
    """One vector a group of modules; `weight_tying` says how many share one (model.py _create_and_replace)."""
    groups = max(1, round(len(modules) * (1.0 - a.share("weight_tying"))))
    return [shared(f"base_model.tinylora_v.{NAME}.{group}", a.whole("u")) for group in range(groups)]


def frod(m: Module, a: Adapter) -> list[Tensor]:
    """A diagonal and the values of a sparse matrix, both over the inputs, and a frozen factor on the host."""
    inputs = int(m.inputs)
    rate = a.share("sparse_rate")
    values = min(int(inputs * inputs * rate), inputs * inputs - inputs)
    if rate > 0 and inputs > 1:
        values = max(1, values)
    factor = Tensor(
        f"base_model.model.{m.name}.frod_U.{NAME}", (m.outputs, m.inputs), m.name, False, "base", True, "host"
    )
    return [entry(m.name, "frod_lambda_l", m.inputs), entry(m.name, "frod_lambda_s_values", values), factor]


def frod_shared(modules: list[Module], a: Adapter) -> list[Tensor]:
    """A square factor and the places of the sparse values, once for each kind of module; both on the host."""

    def once(name: str, category: str, dtype: DtypeRule, *shape: Size) -> Tensor:
        return Tensor(f"base_model.{name}.{category}.{NAME}", shape, "", False, dtype, True, "host")

    found: list[Tensor] = []
    for m in modules:
        category, values = _category(m.name), frod(m, a)[1].elements
        found += [
            once("frod_V", category, "base", m.inputs, m.inputs),
            once("frod_s_indices", category, "int64", 2, values),
            once("frod_s_size", category, "int64", 2),
        ]
    return unique(found)


def _category(name: str) -> str:
    """Modules of one role in different layers (frod/model.py _category_from_key)."""
    parts = name.split(".")
    if len(parts) == 1 or parts[-2].isdigit():
        return parts[-1]
    if parts[-3:] == ["attention", "output", "dense"]:
        return "attention_output"
    return f"{parts[-2]}_{parts[-1]}"


def lily(modules: list[Module], a: Adapter) -> list[Tensor]:
    """A router each; A is shared by `stride_A` neighbours, B by all modules of one target and shape.

    B maps from `num_B` experts; nn.Linear stores it experts × rank by outputs (lily/layer.py, model.py
    _post_injection_hook).
    """
    r, count, stride = a.whole("r"), a.whole("num_B"), a.whole("stride_A")
    groups: dict[tuple[str, tuple[Size, ...]], list[Module]] = {}
    found: list[Tensor] = []
    for m in modules:
        rank(m, a)
        found.append(layer(m.name, "lily_router", count, r))
        groups.setdefault((_target(m.name, a), m.shape), []).append(m)
    for (target, _), members in groups.items():
        for i, m in enumerate(members):
            if not target or i % stride == 0:
                found.append(layer(m.name, "lily_A", r, m.inputs))
            if not target or i == 0:
                found.append(layer(m.name, "lily_B", count * r, m.outputs))
    return found


def _target(name: str, a: Adapter) -> str:
    """What modules are grouped by: the target whose name ends theirs, or the whole expression."""
    if isinstance(a["target_modules"], str):
        return str(a["target_modules"])
    ends = [target for target in a.names("target_modules") if name.endswith(target)]
    if len(ends) > 1:
        raise Unfit(f"Lily shares matrices by target, and {' and '.join(sorted(ends))} both end one name")
    return ends[0] if ends else ""
