"""verl: how many tokens a pass takes, and what is computed of each. Read in verl 0.9.1."""

from __future__ import annotations

from typing import Any

from vramcast.readers.frameworks.trl.keys import number
from vramcast.readers.frameworks.verl.config import Config
from vramcast.readers.frameworks.verl.keys import ACTOR, FSDP, MODEL, REF, ROLLOUT


def whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{value!r} is not a whole number above 0")
    return value


def lengths(config: Config) -> None:
    """A sequence is a prompt and a response; the engine's own names for the two stand for the data's."""
    keys = ("data.max_prompt_length", "data.max_response_length")
    for key, own in zip(keys, (f"{ROLLOUT}prompt_length", f"{ROLLOUT}response_length"), strict=True):
        if own in config.content and config.get(own) != config.or_default(key):
            config.refuse_because(own, f"differs from {key}: it is not known which of them counts")
    if not config.says(*keys):
        return
    with config.reading(next(key for key in keys if key in config.content)):
        config.derive("seq_len", sum(whole(config.or_default(key)) for key in keys), keys, " + ".join(keys))


def work(config: Config) -> None:
    """The micro-batch of the update and of the two log-prob passes: sequences, or a budget of tokens."""
    switch, budget = f"{ACTOR}use_dynamic_bsz", f"{ACTOR}ppo_max_token_len_per_gpu"
    dynamic = bool(config.flag(switch))
    if dynamic:
        config.fact("token_budget", config.or_default(budget), budget if config.says(budget) else switch)
        replaced(config, f"{ACTOR}ppo_micro_batch_size", budget)
    else:
        sequences(config, "micro_batch", f"{ACTOR}ppo_micro_batch_size")
    budgets = dynamic
    for path, prefix in (("logprob", ROLLOUT), ("reference.logprob", REF)):
        own, length = f"{prefix}log_prob_use_dynamic_bsz", f"{prefix}log_prob_max_token_len_per_gpu"
        count = f"{prefix}log_prob_micro_batch_size"
        if dynamic if own not in config.content else config.flag(own):
            budgets = True
            given = next((key for key in (length, budget, own) if config.says(key)), switch)
            if length not in config.gaps and budget not in config.gaps:
                value = config.get(length) if config.says(length) else config.or_default(budget)
                config.fact(f"{path}.token_budget", value, given)
            config.unused(own, f"the budget is that of {given}")
            replaced(config, count, length)
        else:
            config.unused(own, "this pass counts sequences")
            config.unused(length, f"only with {own}")
            sequences(config, f"{path}.micro_batch", count)
    if not budgets:
        config.unused(budget, f"only with {switch}")


def replaced(config: Config, key: str, budget: str) -> None:
    for name in (key, f"{key}_per_gpu"):
        config.unused(name, f"{budget} takes its place")


def sequences(config: Config, path: str, key: str) -> None:
    """Sequences per GPU, or the old key that counts over all GPUs."""
    if config.get(f"{key}_per_gpu") is not None:
        config.fact(path, config.get(f"{key}_per_gpu"), f"{key}_per_gpu")
        config.unused(key, f"{key}_per_gpu takes its place")
        return
    sizes = ("trainer.n_gpus_per_node", "trainer.nnodes")
    if config.get(key) is None or any(size in config.gaps for size in sizes):
        return
    with config.reading(key):
        gpus = whole(config.or_default(sizes[0])) * whole(config.or_default(sizes[1]))
        ranks = gpus // whole(config.or_default(f"{ACTOR}ulysses_sequence_parallel_size")) or 1
        if whole(config.get(key)) % ranks:
            raise ValueError(
                f"{config.get(key)} sequences over all GPUs do not divide among {ranks} data-parallel ranks"
            )
        config.fact(path, config.get(key) // ranks, key)
        config.warn(key, f"counts sequences over all GPUs ({ranks} data-parallel ranks): a key of old versions")


def entropy(config: Config) -> None:
    """Entropy inside the update, by its coefficient or for the log, and in the pass over old log-probabilities, where
    it is always computed: by a compiled kernel, unless that is off, or in chunks of tokens."""
    coefficient, counted = f"{ACTOR}entropy_coeff", f"{ACTOR}calculate_entropy"
    compiled, chunked, size = (
        config.newest_of(name)
        for name in ("use_torch_compile", "entropy_from_logits_with_chunking", "entropy_from_logits_chunk_size")
    )
    chunks = bool(config.flag(chunked))
    with config.reading(coefficient):
        weighs = bool(number(config.get(coefficient) or 0))
        if weighs or config.flag(counted):
            config.fact("entropy", "chunked" if chunks else "grad", coefficient if weighs else counted)
            kept = config.newest_of("entropy_checkpointing")
            if config.flag(kept):
                config.refuse_because(kept, "computes the entropy again in backward")
        else:
            for key in (coefficient, counted):
                if config.says(key):
                    config.fact("entropy", "none", key)
            for key in (f"{ACTOR}entropy_checkpointing", f"{FSDP}entropy_checkpointing"):
                config.unused(key, "the update computes no entropy")
    _scored_entropy(config, compiled, chunked, size)


def _scored_entropy(config: Config, compiled: str, chunked: str, size: str) -> None:
    if config.padded or config.flag(f"{MODEL}use_fused_kernels"):
        why = "it is eager where sequences are padded" if config.padded else "the fused head computes it"
        for key in (compiled, chunked, size):
            config.unused(key, why)
    elif config.flag(chunked):
        config.fact("logprob.entropy", "chunked", chunked)
        if config.says(size):
            config.fact("logprob.chunk", config.get(size), size)
    else:
        if config.says(compiled):
            config.fact("logprob.entropy", "compiled" if config.flag(compiled) else "eager", compiled)
        elif config.says(chunked):
            config.fact("logprob.entropy", "compiled", chunked)
        config.unused(size, "the entropy is not computed in chunks")


def old_logprobs(config: Config) -> None:
    """In bypass mode the engine's own log-probabilities stand for those of the pass over old ones."""
    key = "algorithm.rollout_correction.bypass_mode"
    if config.says(key):
        config.fact("logprob.source", "engine" if config.flag(key) else "trainer", key)
