"""Rules 1 to 13 of the two articles, each a small function: a shape and settings in, lines out.

Everything is computed as the articles write it, right or wrong; what is wrong is said by `reasons.py`, and by
docs/articles.md.
"""

from __future__ import annotations

from fractions import Fraction

from vramcast.errors import refuse
from vramcast.rules_of_thumb.lines import BINARY, DECIMAL, Line, number
from vramcast.rules_of_thumb.shapes import Shape
from vramcast.types.settings import Settings

WEIGHTS, GRADIENTS, ADAPTERS, CACHE, ACTIVATIONS = "weights", "gradients", "adapters", "KV cache", "activations"
MASTER, MOMENTUM, VARIANCE = "optimizer: fp32 master", "optimizer: momentum", "optimizer: variance"
OPTIMIZER = "optimizer"

BYTES: dict[str, Fraction] = {
    **dict.fromkeys(("fp32", "tf32"), Fraction(4)),
    **dict.fromkeys(("bf16", "fp16"), Fraction(2)),
    **dict.fromkeys(("int8",), Fraction(1)),
    **dict.fromkeys(("int4", "nf4", "fp4", "gptq", "awq"), Fraction(1, 2)),
}
"""Rule 10: bytes of one parameter by dtype. The 4-bit kinds count as int4: the articles know no scales."""


def parameter_bytes(settings: Settings) -> tuple[str, Fraction]:
    """Rule 10 for the weights of a role: (dtype, bytes of one parameter).

    Raises:
        Refused: a dtype that the rule does not list.
    """
    quant = settings.quant_kind
    if quant == "none" and settings.tuning == "qlora":
        quant = "nf4"
    return _listed(settings.weights_dtype if quant == "none" else quant)


def _listed(dtype: str) -> tuple[str, Fraction]:
    if dtype not in BYTES:
        raise refuse(f"the articles give no bytes for {dtype}", rule="10", allowed=", ".join(BYTES))
    return dtype, BYTES[dtype]


def frozen(shape: Shape, settings: Settings, role: str, rule: int = 10) -> Line:
    """Rules 2, 4, 5, 6: a copy that does not learn is its weights only."""
    dtype, size = parameter_bytes(settings)
    if role != "policy":
        rule = 2
    return _per_parameter(shape, rule, WEIGHTS, role, size, f" ({dtype})")


def trained(shape: Shape, settings: Settings, role: str) -> list[Line]:
    """Rules 1, 5, 11: what a model that learns holds besides activations."""
    if settings.tuning in ("lora", "qlora"):
        nothing = Line(5, ADAPTERS, role, "negligible", "0", Fraction(0), DECIMAL, note="rule 12: 0.1 to 1 % of P")
        return [frozen(shape, settings, role, 5), nothing]
    weights = _per_parameter(shape, 1, WEIGHTS, role, Fraction(2))
    gradients = _per_parameter(shape, 1, GRADIENTS, role, Fraction(2))
    return [weights, gradients, *_optimizer(shape, settings, role)]


def _optimizer(shape: Shape, settings: Settings, role: str) -> list[Line]:
    match settings.optimizer:
        case "adamw":
            parts = [_per_parameter(shape, 1, part, role, Fraction(4)) for part in (MASTER, MOMENTUM, VARIANCE)]
        case "sgd_momentum":
            parts = [_per_parameter(shape, 11, MOMENTUM, role, Fraction(4))]
        case "adafactor" | "adafactor_torch":
            most = _per_parameter(shape, 11, OPTIMIZER, role, Fraction(12))
            note = "the article says less than Adam and gives no number: this is its bound"
            parts = [most._replace(bound=True, note=note, formula=f"less than {most.formula}")]
        case other:
            raise refuse(
                f"the articles give no bytes for optimizer = {other}",
                rule="11", allowed="adamw, sgd_momentum, adafactor",
            )  # fmt: skip
    return parts if settings.offload_optimizer == "none" else [part.moved("on the host") for part in parts]


def _per_parameter(shape: Shape, rule: int, part: str, role: str, size: Fraction, about: str = "") -> Line:
    formula, figures = f"{number(size)} bytes{about} × P", f"{number(size)} × {shape.params:,}"
    return Line(rule, part, role, formula, figures, size * shape.params, DECIMAL)


def cache(shape: Shape, settings: Settings, sequences: int, length: int, role: str = "policy") -> Line:
    """Rule 4: keys and values of every head, layer and token.

    4·L·h·s·b bytes in 16 bit; another dtype of the cache changes the 4. Multi-head attention is taken for granted.
    """
    dtype, size = _listed(settings.engine_kv_dtype or "bf16")
    factor = 2 * size
    about = "" if size == 2 else f" ({dtype})"
    return Line(
        4 if role == "policy" else 7,
        CACHE,
        role,
        f"{number(factor)}{about} · L · h · s · b",
        f"{number(factor)} · {shape.layers} · {shape.hidden:,} · {length:,} · {sequences:,}",
        factor * shape.layers * shape.hidden * length * sequences,
        BINARY,
    )


def activations(shape: Shape, settings: Settings, sequences: int, length: int, role: str = "policy") -> Line:
    """Rule 8 without checkpointing, rule 9 with it.

    Raises:
        Refused: a kind of checkpointing that the articles do not have.
    """
    if settings.recompute == "full":
        return Line(
            9,
            ACTIVATIONS,
            role,
            "2 · L · h · s · b · 2 bytes",
            f"2 · {shape.layers} · {shape.hidden:,} · {length:,} · {sequences:,} · 2",
            Fraction(4 * shape.layers * shape.hidden * length * sequences),
            BINARY,
        )
    if settings.recompute != "none":
        raise refuse(f"the articles have no rule for recompute = {settings.recompute}", rule="9", allowed="none, full")
    layer = 34 + Fraction(5 * shape.heads * length, shape.hidden)
    size = layer * sequences * length * shape.hidden * shape.layers
    line = Line(
        8,
        ACTIVATIONS,
        role,
        "s · b · h · (34 + 5 · a · s / h) · L",
        f"{length:,} · {sequences:,} · {shape.hidden:,} · "
        f"(34 + 5 · {shape.heads} · {length:,} / {shape.hidden:,}) · {shape.layers}",
        size,
        BINARY,
    )
    return line._replace(note=f"B multiplies by 2 bytes once more ({number(2 * line.gb)} GB); the 34 is bytes already")


def share(lines: list[Line], settings: Settings, role: str) -> list[Line]:
    """Rule 13: what one GPU holds of a role.

    TP cuts parameters and activations, PP parameters; data parallelism saves nothing; ZeRO cuts the optimizer (1), the
    gradients too (2), the parameters too (3) of a model that learns. FSDP counts as ZeRO-3.
    """
    ranks = data_parallel(settings)
    return [_cut(line, settings, _zero(line, settings, ranks, role)) for line in lines]


def _cut(line: Line, settings: Settings, zero: int) -> Line:
    if line.part == CACHE:
        return line
    line = line.cut(settings.tp, "TP")
    if line.part == ACTIVATIONS:
        return line
    return line.cut(settings.pp, "PP").cut(zero, f"N ({settings.shard})")


def _zero(line: Line, settings: Settings, ranks: int, role: str) -> int:
    from_stage = {WEIGHTS: 3, ADAPTERS: 3, GRADIENTS: 2}.get(line.part, 1)
    stage = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp1": 3, "fsdp2": 3}[settings.shard]
    return ranks if role in ("policy", "critic") and stage >= from_stage else 1


def data_parallel(settings: Settings) -> int:
    """N of rule 13: GPUs that are left after TP and PP.

    Raises:
        Refused: TP × PP does not divide the GPUs.
    """
    model = settings.tp * settings.pp
    if settings.gpus % model:
        raise refuse(f"tp × pp = {model} does not divide gpus = {settings.gpus}", help="set gpus to a multiple of it")
    return settings.gpus // model
