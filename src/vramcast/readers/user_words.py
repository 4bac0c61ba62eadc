"""The keys that people know (TRL's, verl's, vLLM's, PEFT's) where a path is expected: in `--set` and in job files.

The keys of a framework go through its reader, so that one key means the same everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramcast.errors import Mistakes, Refused
from vramcast.readers.framework import Framework, has_key
from vramcast.readers.framework import read_words as read_framework_words
from vramcast.types.job import Fact, Idle, Origin, Understanding, check_value

_PATHS = {
    # vLLM and SGLang
    "gpu_memory_utilization": "engine.fraction", "mem_fraction_static": "engine.fraction",
    "max_model_len": "engine.max_len", "context_length": "engine.max_len", "max_num_seqs": "engine.max_seqs",
    "max_running_requests": "engine.max_seqs", "max_num_batched_tokens": "engine.max_batched_tokens",
    "tensor_parallel_size": "engine.tp", "tp_size": "engine.tp", "pipeline_parallel_size": "engine.pp",
    "data_parallel_size": "engine.dp", "enforce_eager": "engine.eager", "kv_cache_dtype": "engine.kv_dtype",
    "quantization": "engine.quant", "max_loras": "engine.lora_slots",
    # PEFT and Transformers
    "r": "lora.rank", "lora_rank": "lora.rank", "target_modules": "lora.targets",
    "modules_to_save": "lora.save_modules", "max_new_tokens": "response_len",
    "num_gpus": "gpus", "n_gpus": "gpus", "batch_size": "micro_batch",
    "max_seq_len": "seq_len", "sequence_len": "seq_len", "cutoff_len": "seq_len", "zero_stage": "shard",
    "PYTORCH_ALLOC_CONF": "allocator", "PYTORCH_CUDA_ALLOC_CONF": "allocator",
}  # fmt: skip
"""key -> the path that says the same"""
_WHERE = "--set"


def is_word(key: str) -> bool:
    """Whether a key that is no path is one that people know from a framework."""
    return key in _PATHS or _framework(key) is not None


def _framework(key: str) -> Framework | None:
    """The framework that has the key."""
    from vramcast.readers.frameworks import frameworks

    return next((framework for framework in frameworks() if has_key(framework, key)), None)


def read_words(words: Mapping[str, Any], origins: Mapping[str, Origin]) -> Understanding:
    """What keys of frameworks say: facts, and keys without effect.

    Raises:
        Refused: with every wrong value, and every key that is not modelled.
    """
    mistakes = Mistakes()
    result = Understanding([])
    own = {key: raw for key, raw in words.items() if key in _PATHS}
    for key, raw in own.items():
        with mistakes.collect():
            value = f"zero{raw}" if key == "zero_stage" and str(raw) in ("1", "2", "3") else raw
            result.facts.append(Fact(_PATHS[key], check_value(_PATHS[key], value, origins[key]), origins[key]))
    theirs: dict[str, tuple[Framework, dict[str, Any]]] = {}
    for key, raw in words.items():
        framework = _framework(key) if key not in own else None
        if framework and framework.depends(key):
            fact = f"{key} counts together with other keys of a configuration"
            advice = "change it in the configuration, or --set the path that it feeds"
            mistakes.add(fact, **{"from": str(origins[key]), "help": advice})
        elif framework:
            theirs.setdefault(framework.name, (framework, {}))[1][key] = raw
    for framework, chosen in theirs.values():
        with mistakes.collect():
            result = result + _told(framework, chosen, origins)
    mistakes.done()
    return result


def _told(framework: Framework, words: Mapping[str, Any], origins: Mapping[str, Origin]) -> Understanding:
    """What the keys themselves say, not what a reader assumes beside them, from where they stand."""
    try:
        found = read_framework_words(framework, words, _WHERE)
    except Refused as refused:
        for mistake in refused.mistakes:
            if mistake.said.get("from") == _WHERE and len(words) == 1:
                mistake.said["from"] = str(origins[next(iter(words))])
        raise
    facts = [Fact(fact.path, fact.value, _origin(fact, origins)) for fact in found.facts if _is_told(fact)]
    idle = [Idle(each.key, each.value, each.where, each.why) for each in found.idle]
    idle += [Idle(key.key, words.get(key.key), key.where, "it changes no memory") for key in found.no_effect]
    warnings = [text for text in found.warnings if any(key in text for key in words)]
    missing = [lack for lack in found.missing if any(key in lack.where for key in words)]
    named = [*(fact.origin.key for fact in facts), *(each.key for each in (*idle, *found.unread))]
    spoken = set(" ".join([*named, *warnings, *(lack.where for lack in missing)]).replace(":", " ").split())
    idle += [Idle(key, raw, _WHERE, "it is priced so without it") for key, raw in words.items() if key not in spoken]
    return Understanding(facts, found.unread, warnings, missing, idle=idle)


def _is_told(fact: Fact) -> bool:
    return fact.origin.where == _WHERE and bool(fact.origin.key)


def _origin(fact: Fact, origins: Mapping[str, Origin]) -> Origin:
    return origins.get(fact.origin.key) or Origin(_WHERE, fact.origin.key)

