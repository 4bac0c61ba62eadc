"""Methods that rotate, scale or overwrite a weight in place of adding to it: one function each.

Sources: peft 0.21, `update_layer` of tuners/<method>/layer.py.
"""

from __future__ import annotations

from math import prod

from vramcast.models import patterns
from vramcast.models.adapters.adapter import NAME, Adapter, Tensor, entry, held, under
from vramcast.models.adapters.lowrank import rank
from vramcast.models.adapters.match import ends_with, pattern_value, suffix_value
from vramcast.models.adapters.modules import Module, Tree
from vramcast.models.adapters.notes import Unfit
from vramcast.num import Size, at_most, whole
from vramcast.units import divisors


def oft(m: Module, a: Adapter) -> list[Tensor]:
    """Blocks of rotations, each the upper triangle of a skew-symmetric matrix, over what is rotated.

    A block size or a count that does not divide is moved to the nearest divisor, with a warning (OFTLayer
    adjust_oft_parameters). The places in the triangle are buffers of int64.
    """
    width = int(m.outputs if m.kind == "embedding" else m.inputs * prod(m.shape[2:]))
    given, blocks = a.whole("oft_block_size"), a.whole("r")
    if blocks:
        blocks = _divisor(width, blocks)
        size = width // blocks
    else:
        size = _divisor(width, given)
        blocks = width // size
    count, field = size * (size - 1) // 2, "oft_embedding_R" if m.kind == "embedding" else "oft_R"

    def own(leaf: str, *shape: Size, buffer: bool = False) -> Tensor:
        return Tensor(
            under(m.name, field, NAME, leaf), shape, m.name, not buffer, "int64" if buffer else "adapter", buffer
        )

    rows = 1 if a.flag("block_share") else blocks
    return [own("weight", rows, count), own("rows", count, buffer=True), own("cols", count, buffer=True)]


def _divisor(width: int, near: int) -> int:
    """The divisor of `width` nearest to `near`; of two as near the lower."""
    if width % near == 0 and near <= width:
        return near
    found = divisors(width)
    lower = max(one for one in found if one <= max(near, 1))
    higher = next((one for one in found if one >= near), width)
    return lower if near - lower <= higher - near else higher


def boft(m: Module, a: Adapter) -> list[Tensor]:
    """Rotations block by block and a scale of each output.

    With one butterfly factor. More need PEFT's CUDA extension, without which PEFT takes one. The permutation is a
    buffer of inputs × inputs in fp32 that stays where it was made, on the host, unless the model is moved later.
    """
    size, blocks = a.whole("boft_block_size"), a.whole("boft_block_num")
    if m.inputs % (size or blocks):
        field = "boft_block_size" if size else "boft_block_num"
        raise Unfit(f"{field} = {size or blocks} does not divide the {int(m.inputs)} inputs")
    size, blocks = size or whole(m.inputs, blocks), blocks or whole(m.inputs, size)
    permutation = Tensor(under(m.name, "boft_P"), (1, m.inputs, m.inputs), m.name, False, "fp32", True, "host")
    return [entry(m.name, "boft_R", 1, blocks, size, size), entry(m.name, "boft_s", m.outputs, 1), permutation]


def hra(m: Module, a: Adapter) -> list[Tensor]:
    """A chain of r reflections of the inputs."""
    return [entry(m.name, "hra_u", m.inputs * prod(m.shape[2:]), rank(m, a))]


def c3a(m: Module, a: Adapter) -> list[Tensor]:
    """A kernel for each pair of blocks of outputs and inputs."""
    size = suffix_value(a.table("block_size_pattern"), m.name, a["block_size"])
    if not isinstance(size, int) or size < 1:
        raise Unfit(f"block_size = {size!r} must be a whole number above 0")
    for what, width in (("inputs", m.inputs), ("outputs", m.outputs)):
        if width % size:
            raise Unfit(f"block_size = {size} does not divide the {int(width)} {what}")
    return [entry(m.name, "c3a_kernel", whole(m.outputs, size), whole(m.inputs, size), size)]


def road(m: Module, a: Adapter) -> list[Tensor]:
    """Angles and lengths of 2-dimensional rotations of the outputs: one a pair, one each, or two each."""
    group = a.whole("group_size")
    if m.outputs % group:
        raise Unfit(f"group_size = {group} does not divide the {int(m.outputs)} outputs")
    size = {"road_1": whole(m.outputs, 2), "road_2": m.outputs, "road_4": 2 * m.outputs}[str(a["variant"])]
    return [entry(m.name, "road_theta", size), entry(m.name, "road_alpha", size)]


def miss(m: Module, a: Adapter) -> list[Tensor]:
    """One matrix of rank × outputs; "mini" keeps a slice of it that is repeated."""
    r, form, mini = rank(m, a), a["init_weights"], a.whole("mini_r")
    if form == "bat" and (m.inputs % r or m.outputs % r):
        raise Unfit(f"init_weights = bat needs a rank that divides both sides, not {r}")
    if form == "mini":
        if not mini or m.outputs % mini:
            raise Unfit(f"mini_r = {mini} does not divide the {int(m.outputs)} outputs")
        return [entry(m.name, "miss_block", r, mini)]
    return [entry(m.name, "miss_block", *((whole(m.outputs, r), r, r) if form == "bat" else (r, m.outputs)))]


def psoft(m: Module, a: Adapter) -> list[Tensor]:
    """A rotation inside the r leading singular directions, with scales before and after; the directions are buffers."""
    r = rank(m, a)
    if r > at_most(m.inputs, m.outputs):
        raise Unfit(f"the rank {r} is above the narrower side {int(at_most(m.inputs, m.outputs))}")

    def own(leaf: str, *shape: Size, buffer: bool = False) -> Tensor:
        name = under(m.name, "psoft_R", NAME, leaf)
        return Tensor(name, shape, m.name, not buffer, "int64" if buffer else "adapter", buffer)

    count = r * (r - 1) // 2
    found = [own("weight", count)] if a.flag("psoft_orth") else [own("weight", r, r)]
    if a.flag("psoft_orth"):
        found += [own("rows", count, buffer=True), own("cols", count, buffer=True)]
    found += [own(f"vector_{side}", r) for side in "ba" if a.flag(f"psoft_mag_{side}")]
    return [*found, held(m.name, "_psoft_A_cache", r, m.inputs), held(m.name, "_psoft_B_cache", m.outputs, r)]


def osf(m: Module, a: Adapter) -> list[Tensor]:
    """The small singular directions of the weight, trained; the large ones are frozen buffers.

    `effective_rank` is a count, or a fraction of the narrower side; half of it if not said. The first rank_pattern that
    is found anywhere in the name wins (osf/model.py _resolve_rank).
    """
    narrow = int(at_most(*m.shape))
    kept = _osf_rank(a["effective_rank"], narrow)
    for pattern, value in a.table("rank_pattern").items():
        if patterns.search(pattern, m.name):
            kept = _osf_rank(value, narrow)
            break
    if kept < 1:
        raise Unfit(f"effective_rank = {a['effective_rank']} leaves no direction")
    low, (outputs, inputs) = narrow - kept, m.shape

    def own(leaf: str, *shape: Size) -> Tensor:
        return Tensor(under(m.name, "osf_svd_params", NAME, leaf), shape, m.name)

    trained = [own("U_low", outputs, low), own("S_low", low), own("V_low", low, inputs)]
    first = [
        held(m.name, "_osf_U_low_init", outputs, low),
        held(m.name, "_osf_S_low_init", low),
        held(m.name, "_osf_V_low_init", low, inputs),
    ]
    high = [held(m.name, "_osf_U_high", outputs, kept)] if outputs > inputs else []
    high += [held(m.name, "_osf_V_high", kept, inputs)] if outputs < inputs else []
    return [*trained, *first, *high]


def _osf_rank(value: object, narrow: int) -> int:
    if value is None:
        return max(narrow // 2, 0)
    if isinstance(value, float) and 0 < value <= 1:
        return max(min(narrow, int(narrow * value)), 0)
    return max(min(narrow, int(value) if isinstance(value, (int, float)) else 0), 0)


def ia3(m: Module, a: Adapter) -> list[Tensor]:
    """A scale of the outputs, or of the inputs in a feed-forward module; names are compared by their ends only."""
    inner = a["feedforward_modules"]
    if isinstance(inner, str):
        feeds = patterns.fullmatch(inner, m.name) is not None
    else:
        feeds = any(m.name.endswith(name) for name in a.names("feedforward_modules"))
    if m.kind == "convolution":
        ones = (1,) * (len(m.shape) - 2)
        return [entry(m.name, "ia3_l", 1, m.inputs if feeds else m.outputs, *ones)]
    return [entry(m.name, "ia3_l", 1, m.inputs) if feeds else entry(m.name, "ia3_l", m.outputs, 1)]


def beft(m: Module, _: Adapter) -> list[Tensor]:
    """A bias."""
    return [entry(m.name, "beft_bias", 1, m.outputs)]


def fourierft(m: Module, a: Adapter) -> list[Tensor]:
    """So many coefficients of the weight's spectrum; their places stay on the host."""
    count = _frequencies(m, suffix_value(a.table("n_frequency_pattern"), m.name, a["n_frequency"]))
    places = Tensor(under(m.name, "indices", NAME), (2, count), m.name, False, "int64", True, "host")
    return [entry(m.name, "fourierft_spectrum", count), places]


def waveft(modules: list[Module], a: Adapter) -> list[Tensor]:
    """So many wavelet coefficients; `proportional_parameters` spreads them over the modules by their size.

    The place of a coefficient is kept on the host. A share of the budget is rounded, and at least 1 (waveft/model.py).
    """
    sizes = {m.name: int(m.inputs * m.outputs) for m in modules}
    budget, every = a.whole("n_frequency") * len(modules), sum(sizes.values())
    found: list[Tensor] = []
    for m in modules:
        value = pattern_value(a.table("n_frequency_pattern"), m.name, a["n_frequency"])
        if a.flag("proportional_parameters"):
            value = max(1, round(sizes[m.name] / every * budget))
        count = _frequencies(m, value)
        places = Tensor(under(m.name, "waveft_indices", NAME), (2, count), m.name, False, "int64", True, "host")
        found += [entry(m.name, "waveft_spectrum", count), places]
    return found


def _frequencies(m: Module, value: object) -> int:
    if not isinstance(value, int) or value < 1:
        raise Unfit(f"n_frequency = {value!r} must be a whole number above 0")
    if value > m.inputs * m.outputs:
        raise Unfit(f"n_frequency = {value} is above the weight's {int(m.inputs * m.outputs)} elements")
    return value


def shira(m: Module, a: Adapter) -> list[Tensor]:
    """As many elements of the weight as LoRA of this rank would have, and their places."""
    r = rank(m, a)
    count = r * (m.inputs + m.outputs)
    if count > m.inputs * m.outputs:
        raise Unfit(f"the rank {r} makes more elements than the weight has")
    places = Tensor(under(m.name, "shira_indices", NAME), (2, count), m.name, False, "int32", True)
    return [entry(m.name, "shira_weight", count), places]


def supertuning(m: Module, a: Adapter) -> list[Tensor]:
    """The share of the weight that is not sparse, its places, and LoRA beside it where a rank is said."""
    count = int(int(m.inputs * m.outputs) * (1 - a.share("sparsity")))
    if count < 1:
        raise Unfit(f"sparsity = {a['sparsity']} leaves no element of the weight")
    found = [entry(m.name, "supertuning_values", count), held(m.name, "supertuning_indices", count, dtype="int32")]
    if a["r"] is None:
        return found
    r = rank(m, a)
    for side, shape in (("supertuning_lora_A", (r, m.inputs)), ("supertuning_lora_B", (m.outputs, r))):
        found.append(Tensor(under(m.name, side, NAME, "weight"), shape, m.name))
    return found


def ln_tuning(tree: Tree, m: Module) -> list[Tensor]:
    """A copy of the module, trained in its place and in its dtype."""
    return [
        Tensor(under(m.name, "ln_tuning_layers", NAME, leaf), shape, m.name, True, "base")
        for leaf, shape in tree.below(m.name).items()
    ]


def is_feedforward_subset(a: Adapter) -> bool:
    """Whether IA3's feed-forward modules are among its targets, as its configuration demands of two lists."""
    both = isinstance(a["target_modules"], list) and isinstance(a["feedforward_modules"], list)
    return not both or all(ends_with(name, [name]) and name in a["target_modules"] for name in a["feedforward_modules"])
