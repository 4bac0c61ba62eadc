"""The keys that people know (TRL's, verl's, vLLM's, PEFT's) where a path is expected: in `--set` and in job files.

TRL's and verl's keys go through the readers of these frameworks, so that one key means the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vramcast.errors import Mistakes, Refused
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
    return key in _PATHS or _is_trl(key) or _is_verl(key)


def _is_trl(key: str) -> bool:
    from vramcast.readers.frameworks.trl.keys import known_key

    return known_key(key)


def _is_verl(key: str) -> bool:
    if "." not in key:
        return False
    from vramcast.readers.frameworks.verl.defaults import has_key
    from vramcast.readers.frameworks.verl.keys import KEYS, RULED

    return key in KEYS or key in RULED or has_key(key)


def _depends(key: str) -> bool:
    """Whether what a key says hangs on others, which are not read beside it here."""
    if key in ("beta", "generation_batch_size", "steps_per_generation"):
        return True
    from vramcast.readers.frameworks.verl.keys import RULED

    return key in RULED and not key.endswith("_micro_batch_size_per_gpu")


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
    rest = {key: raw for key, raw in words.items() if key not in own}
    for key in [key for key in rest if _depends(key)]:
        del rest[key]
        mistakes.add(
            f"{key} counts together with other keys of a configuration",
            **{"from": str(origins[key]), "help": "change it in the configuration, or --set the path that it feeds"},
        )
    verl = {key: raw for key, raw in rest.items() if _is_verl(key)}
    for read, chosen in ((_trl, {key: raw for key, raw in rest.items() if key not in verl}), (_verl, verl)):
        if chosen:
            with mistakes.collect():
                result = result + _told(read, chosen, origins)
    mistakes.done()
    return result


def _told(
    read: Callable[[Mapping[str, Any]], Understanding], words: Mapping[str, Any], origins: Mapping[str, Origin]
) -> Understanding:
    """What the keys themselves say, not what a reader assumes beside them, from where they stand."""
    try:
        found = read(words)
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


def _trl(words: Mapping[str, Any]) -> Understanding:
    from vramcast.readers.document import Document
    from vramcast.readers.frameworks.trl.reader import read_trl

    found = read_trl(Document(dict(_typed(words)), {}), _WHERE)
    packed = next((fact for fact in found.facts if fact.path == "quant.kind" and _is_told(fact)), None)
    if packed is not None and not any(fact.path == "tuning" for fact in found.facts):
        found.facts.append(Fact("tuning", "qlora", packed.origin))  # a packed base trains under adapters only
        found.warnings = [text for text in found.warnings if "without use_peft" not in text]
    return found


def _verl(words: Mapping[str, Any]) -> Understanding:
    from vramcast.readers.bash.words import Word
    from vramcast.readers.frameworks.verl.reader import read_verl

    return read_verl([Word(f"{key}={raw}", 0) for key, raw in words.items()], _WHERE)


def _typed(words: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Values of the command line as a YAML file would have them."""
    from vramcast.readers.hydra import parse_value

    for key, raw in words.items():
        yield key, parse_value(raw) if isinstance(raw, str) else raw
