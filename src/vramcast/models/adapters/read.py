"""An adapter from what PEFT writes (`adapter_config.json`) or from the paths of a job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from vramcast.errors import Mistakes, near, refuse
from vramcast.models.adapters.adapter import Adapter
from vramcast.models.adapters.methods import REFUSED, Facts, facts, fusions
from vramcast.models.fields import most

_KINDS: dict[str, tuple[type, ...]] = {
    "int": (int,), "float": (float,), "bool": (bool,), "str": (str,), "list": (list,), "dict": (dict,),
    "null": (type(None),),
}  # fmt: skip
_INITS = (
    "gaussian", "eva", "olora", "pissa", "pissa_niter_[number]", "corda", "loftq", "orthogonal", "mica", "lora_ga",
)  # fmt: skip
_ENTRIES = {
    **dict.fromkeys("target_modules exclude_modules modules_to_save target_parameters layers_pattern "
                    "feedforward_modules".split(), "str"),
    **dict.fromkeys("layers_to_transform token_indices trainable_token_indices cpt_token_ids".split(), "int"),
}  # fmt: skip
"""field -> what its list holds"""
_OF_PEFT = (
    "use_bdlora", "velora_config", "monteclora_config", "kasa_config", "trainable_token_indices",
)  # fmt: skip
"""fields of LoRA that change what trains in ways that no forecast uses"""


def read_adapter(config: dict[str, Any], source: str) -> Adapter:
    """The adapter of an `adapter_config.json`, with PEFT's defaults for what it leaves out.

    A field that PEFT 0.21 does not have is refused unless it holds nothing (PEFT drops it with a warning).

    Raises:
        Refused: an unknown method (with near names), one that is not counted (with the reason), unknown fields, values
            of the wrong kind or that the method's configuration refuses. All at once; `source` says which file.
    """
    name, known = str(config.get("peft_type") or "").upper(), fusions().methods
    if name in REFUSED:
        raise refuse(f"peft_type {name} is not counted: {REFUSED[name]}", **{"from": source})
    if name not in known:
        fact = f"unknown peft_type {config.get('peft_type')!r}" if name else "the adapter names no peft_type"
        allowed = ", ".join(sorted(known - REFUSED.keys()))
        raise refuse(fact, **{"from": source, "near": near(name, known), "allowed": allowed})
    wrong, method = Mistakes(), facts()
    values = {field: default for field, (default, _) in method.fields.items()} if name == "LORA" else {}
    for field, value in config.items():
        if name == "LORA":
            _field(method, field, value, source, wrong)
        _entries(field, value, source, wrong)
        values[field] = value
    adapter = Adapter(name, _tidy(values, method) if name == "LORA" else values, source)
    wrong.done()
    for fact, context in _faults(adapter):
        wrong.add(fact, **{"from": source, **context})
    wrong.done()
    return adapter


def by_peft(adapter: Adapter) -> bool:
    """Whether PEFT itself has to count it: another method than LoRA, or a variant that no forecast uses."""
    unusual = any(adapter[field] not in (None, False, []) for field in _OF_PEFT)
    return adapter.method != "LORA" or unusual or adapter["init_lora_weights"] == "mica"


def as_said(adapter: Adapter) -> dict[str, Any]:
    """What PEFT is told of an adapter that is to be trained: the fields that differ from LoRA's defaults; of another
    method those that were said."""
    defaults = {field: default for field, (default, _) in facts().fields.items()} if adapter.method == "LORA" else {}
    fields = {name: value for name, value in adapter.values.items() if value != defaults.get(name, _UNSAID)}
    fields.pop("inference_mode", None)
    return {**fields, "peft_type": adapter.method}


_UNSAID = object()


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


def _entries(field: str, value: Any, source: str, wrong: Mistakes) -> None:
    """Sizes that no model has, and entries of a list that are of another kind."""
    if isinstance(value, (int, float)) and not abs(value) <= most(field):
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


def _faults(a: Adapter) -> Iterator[tuple[str, dict[str, str]]]:
    """What PEFT's configuration refuses, and what cannot be counted: (fact, context)."""
    if a["task_type"] not in (None, "CAUSAL_LM", "FEATURE_EXTRACTION"):
        yield (f"task_type {a['task_type']} trains a head that a language model's layout does not have",
               {"allowed": "CAUSAL_LM, FEATURE_EXTRACTION"})  # fmt: skip
    if a.method == "LORA":
        yield from ((fact, {}) for fact in _lora(a))


def _lora(a: Adapter) -> Iterator[str]:
    if isinstance(a["target_modules"], str) and a["layers_to_transform"] is not None:
        yield "layers_to_transform does not go with target_modules in one expression"
    if a["layers_pattern"] and a["layers_to_transform"] is None:
        yield "layers_pattern needs layers_to_transform"
    init = a["init_lora_weights"]
    if isinstance(init, str) and init not in _INITS and not init.startswith("pissa_niter_"):
        yield f"init_lora_weights = {init!r} is not known: {', '.join(_INITS)}, true or false"
    if init == "eva" and float(cast("float", a.table("eva_config").get("rho", 2.0))) > 1:
        yield "init_lora_weights = eva with rho above 1 moves ranks between layers by data: not counted"
    if a.flag("lora_bias") and init not in (True, False):
        yield "lora_bias goes with init_lora_weights true or false only"
    if a.flag("lora_bias") and a.flag("use_dora"):
        yield "lora_bias does not go with use_dora"
    reasons = {
        "arrow_config": "it routes between adapters that it loads from files",
        "use_qalora": "its A depends on the groups of a GPTQ weight",
        "megatron_config": "it adapts Megatron's layers, which no layout has",
        "layer_replication": "it repeats layers of the base model",
    }
    for field, why in reasons.items():
        if a[field] not in (None, False, []):
            yield f"{field} is not counted: {why}"
