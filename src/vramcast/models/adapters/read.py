"""An adapter from what PEFT writes (`adapter_config.json`) or from the paths of a job."""

from __future__ import annotations

from typing import Any, cast

from vramcast.errors import Mistakes, near, refuse
from vramcast.models.adapters.adapter import Adapter
from vramcast.models.adapters.lora import variants
from vramcast.models.adapters.methods import REFUSED, Facts, facts
from vramcast.models.adapters.prompts import PROMPTS
from vramcast.models.adapters.rotations import is_feedforward_subset
from vramcast.models.fields import most

_KINDS: dict[str, tuple[type, ...]] = {
    "int": (int,), "float": (float,), "bool": (bool,), "str": (str,), "list": (list,), "dict": (dict,),
    "null": (type(None),),
}  # fmt: skip
_NO_STRING = frozenset("LORA ADALORA C3A DEFT DELORA FOURIERFT HIRA HRA MISS PSOFT WAVEFT".split())
"""methods that refuse layers_to_transform beside an expression"""
_INITS = (
    "gaussian",
    "eva",
    "olora",
    "pissa",
    "pissa_niter_[number]",
    "corda",
    "loftq",
    "orthogonal",
    "mica",
    "lora_ga",
)
_ENTRIES = {
    **dict.fromkeys("target_modules exclude_modules modules_to_save target_parameters layers_pattern "
                    "feedforward_modules".split(), "str"),
    **dict.fromkeys("layers_to_transform token_indices trainable_token_indices cpt_token_ids".split(), "int"),
}  # fmt: skip
"""field -> what its list holds"""
_ABOVE_ZERO = tuple(
    """stride_A gralora_k n_splits n_skills n_tasks num_vectors vector_length topk theta_d_length u group_size
    num_virtual_tokens adapter_len adapter_layers""".split()
)
_CHOICES: dict[str, dict[str, tuple[str, ...]]] = {
    "ROAD": {"variant": ("road_1", "road_2", "road_4")},
    "GLORA": {"config_A_B": ("lora", "vector", "constant", "none"), "config_C": ("lora", "vector", "none"),
              "config_D_E": ("vector", "constant", "none")},
    "DEFT": {"decomposition_method": ("qr", "relu")},
    "P_TUNING": {"encoder_reparameterization_type": ("MLP", "LSTM")},
    "POLY": {"poly_type": ("poly",)},
    "PSOFT": {"ab_svd_init": ("psoft_init", "pissa_init"), "psoft_svd": ("full", "lowrank")},
}  # fmt: skip


def read_adapter(config: dict[str, Any], source: str) -> Adapter:
    """The adapter of an `adapter_config.json`, with PEFT's defaults for what it leaves out.

    A field that PEFT 0.21 does not have is refused unless it holds nothing (PEFT drops it with a warning).

    Raises:
        Refused: an unknown method (with near names), one that is not counted (with the reason), unknown fields, values
            of the wrong kind or that the method's configuration refuses. All at once; `source` says which file.
    """
    name = str(config.get("peft_type") or "").upper()
    known = facts()
    if name in REFUSED:
        raise refuse(f"peft_type {name} is not counted: {REFUSED[name]}", **{"from": source})
    if name not in known:
        fact = f"unknown peft_type {config.get('peft_type')!r}" if name else "the adapter names no peft_type"
        allowed = ", ".join(sorted(known.keys() - REFUSED.keys()))
        raise refuse(fact, **{"from": source, "near": near(name, known), "allowed": allowed})
    wrong = Mistakes()
    values = {field: default for field, (default, _) in known[name].fields.items()}
    for field, value in config.items():
        _field(known[name], field, value, source, wrong)
        values[field] = value
    adapter = Adapter(name, _tidy(values, known[name]), source)
    wrong.done()
    _check(adapter, wrong)
    wrong.done()
    return adapter


def lora_adapter(
    rank: int,
    targets: list[str] | None,
    *,
    dora: bool = False,
    dropout: float = 0.0,
    rank_pattern: dict[str, int] | None = None,
    save_modules: list[str] | None = None,
    source: str = "the job",
) -> Adapter:
    """The adapter that the paths `lora.*` of a job say.

    Args:
        rank, targets, dora, dropout, rank_pattern, save_modules: the paths of these names. Targets of one word
            "all-linear" mean all linear layers; None means PEFT's for the model type.

    Raises:
        Refused: as `read_adapter`, in the job's words.
    """
    every = targets is not None and len(targets) == 1 and targets[0].lower() == "all-linear"
    config: dict[str, Any] = {
        "peft_type": "LORA",
        "r": rank,
        "target_modules": "all-linear" if every else targets,
        "use_dora": dora,
        "lora_dropout": dropout,
        "rank_pattern": dict(rank_pattern or {}),
        "modules_to_save": save_modules,
    }
    found = read_adapter(config, source)
    paths = {"r": "lora.rank", "target_modules": "lora.targets", "rank_pattern": "lora.rank_pattern",
             "modules_to_save": "lora.save_modules", "lora_dropout": "lora.dropout"}  # fmt: skip
    return Adapter(found.method, found.values, source, paths)


def _field(method: Facts, field: str, value: Any, source: str, wrong: Mistakes) -> None:
    if field not in method.fields:
        if value not in (None, False, [], {}, ""):
            wrong.add(
                f"{method.method} of PEFT {method.version} has no field {field}",
                **{"from": source, "near": lambda: near(field, method.fields)},
            )
        return
    allowed = method.fields[field][1].split("|")
    if "any" in allowed:
        return
    kinds = tuple(kind for one in allowed for kind in _KINDS[one])
    right = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
    if not right and value is not None:
        wrong.add(f"{field} must be {_spoken(allowed)}, not {value!r}", **{"from": source})
    elif isinstance(value, (int, float)) and not abs(value) <= most(field):
        wrong.add(f"{field} = {value} is too large", **{"from": source, "allowed": f"up to {most(field):,}"})
    elif isinstance(value, list) and field in _ENTRIES:
        kind = _ENTRIES[field]
        entries = cast("list[Any]", value)
        if not all(isinstance(one, _KINDS[kind]) and not isinstance(one, bool) for one in entries):
            wrong.add(f"{field} must be a list, each entry {_WORDS[kind]}, not {value!r}", **{"from": source})


_WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a word", "list": "a list",
          "dict": "an object", "null": "null"}  # fmt: skip


def _spoken(kinds: list[str]) -> str:
    return " or ".join(_WORDS[one] for one in kinds if not (one == "int" and "float" in kinds))


def _tidy(values: dict[str, Any], method: Facts) -> dict[str, Any]:
    """Nulls of fields that must not be null become the default: an older PEFT did not write them."""
    found = dict(values)
    for field, (default, kinds) in method.fields.items():
        if found[field] is None and "null" not in kinds.split("|"):
            found[field] = default
    return found


def _check(a: Adapter, wrong: Mistakes) -> None:
    """What the configuration classes of PEFT refuse, and what cannot be counted."""

    def no(fact: str, **context: str) -> None:
        wrong.add(fact, **{"from": a.source, **context})

    if a["task_type"] not in (None, "CAUSAL_LM", "FEATURE_EXTRACTION"):
        no(f"task_type {a['task_type']} trains a head that a language model's layout does not have",
           allowed="CAUSAL_LM, FEATURE_EXTRACTION")  # fmt: skip
    if a.method in _NO_STRING and isinstance(a["target_modules"], str) and a["layers_to_transform"] is not None:
        no("layers_to_transform does not go with target_modules in one expression")
    if a["layers_pattern"] and a["layers_to_transform"] is None:
        no("layers_pattern needs layers_to_transform")
    for field in _ABOVE_ZERO:
        if field in a.values and a.method != "CPT" and not _positive(a, field):
            no(f"{field} = {a[field]!r} must be a whole number above 0")
    for field, words in _CHOICES.get(a.method, {}).items():
        if a[field] not in words:
            no(f"{field} = {a[field]!r} is not known", near=near(str(a[field]), words), allowed=", ".join(words))
    check = {"LORA": _lora, "ADALORA": _adalora, "IA3": _ia3}.get(a.method)
    for fact in [*(check(a) if check else ()), *_others(a)]:
        no(fact)


def _positive(a: Adapter, field: str) -> bool:
    value = a[field]
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _lora(a: Adapter) -> list[str]:
    found: list[str] = []
    init = a["init_lora_weights"]
    if isinstance(init, str) and init not in _INITS and not init.startswith("pissa_niter_"):
        found.append(f"init_lora_weights = {init!r} is not known: {', '.join(_INITS)}, true or false")
    if init == "eva" and float(cast("float", a.table("eva_config").get("rho", 2.0))) > 1:
        found.append("init_lora_weights = eva with rho above 1 moves ranks between layers by data: not counted")
    asked = variants(a)
    if len(asked) > 1:
        found.append(f"PEFT has no LoRA that is {' and '.join(asked)} at once")
    if a.flag("lora_bias") and init not in (True, False):
        found.append("lora_bias goes with init_lora_weights true or false only")
    if a.flag("lora_bias") and a.flag("use_dora"):
        found.append("lora_bias does not go with use_dora")
    reasons = {
        "arrow_config": "it routes between adapters that it loads from files",
        "use_qalora": "its A depends on the groups of a GPTQ weight",
        "megatron_config": "it adapts Megatron's layers, which no layout has",
        "layer_replication": "it repeats layers of the base model",
    }
    return [
        *found,
        *(f"{field} is not counted: {why}" for field, why in reasons.items() if a[field] not in (None, False, [])),
    ]


def _adalora(a: Adapter) -> list[str]:
    found = [f"AdaLoRA does not go with {field}" for field in ("use_dora", "loftq_config") if a[field]]
    if not _positive(a, "total_step"):
        found.append("AdaLoRA needs total_step above 0")
    elif a.whole("tinit") >= a.whole("total_step") - a.whole("tfinal"):
        found.append("AdaLoRA has no step between tinit and tfinal")
    return found


def _ia3(a: Adapter) -> list[str]:
    return [] if is_feedforward_subset(a) else ["feedforward_modules must be among target_modules"]


def _others(a: Adapter) -> list[str]:
    """Rules of single methods."""
    found: list[str] = []
    for pair in (("OFT", "r", "oft_block_size"), ("BOFT", "boft_block_size", "boft_block_num")):
        if a.method == pair[0] and bool(a.whole(pair[1])) == bool(a.whole(pair[2])):
            found.append(f"one of {pair[1]} and {pair[2]} must be 0, the other above")
    if a.method == "BOFT" and a.whole("boft_n_butterfly_factor") != 1:
        found.append(
            "boft_n_butterfly_factor above 1 counts only where PEFT's CUDA extension could be built: not counted"
        )
    if a.method == "GRALORA" and a.whole("gralora_k") > 0 and a.whole("r") % a.whole("gralora_k"):
        found.append(f"gralora_k = {a.whole('gralora_k')} does not divide r = {a.whole('r')}")
    if a.method == "LILY" and a.whole("num_B") < 2:
        found.append("num_B must be 2 or more")
    if a.method == "PEANUT" and a.whole("depth") < 0:
        found.append("depth must be 0 or more")
    if a.method == "ROAD" and a.whole("group_size") % 2:
        found.append(f"group_size = {a.whole('group_size')} must be even")
    if a.method == "FROD" and not 0 <= a.share("sparse_rate") <= 1:
        found.append(f"sparse_rate = {a['sparse_rate']} is not between 0 and 1")
    if a.method == "SUPERTUNING" and not 0 <= a.share("sparsity") < 1:
        found.append(f"sparsity = {a['sparsity']} is not at least 0 and below 1")
    if a.method == "SHIRA" and a["mask_type"] != "random":
        found.append("mask_type other than random is a function that no file holds: not counted")
    if a.method in PROMPTS and a["task_type"] is None:
        found.append(f"{a.method} needs a task_type: CAUSAL_LM")
    return found
