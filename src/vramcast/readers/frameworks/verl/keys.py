"""verl's keys that set one path by themselves; null leaves the path unset where it is verl's own default.

Read in verl 0.9.1 (the FSDP engine, the rollout workers) and in the workers of 0.3 to 0.8. Keys whose meaning depends
on other keys are read in `rules`; what is not modelled or has no effect on memory stands in `known.json`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from vramcast.readers.framework import Known, known_names
from vramcast.readers.keys import GIVEN, MIBS, NAMES, UNSAID, Codec, Key, given, named, one_of, switch
from vramcast.types import words

ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
MODEL, REF = "actor_rollout_ref.model.", "actor_rollout_ref.ref."
FSDP = f"{ACTOR}fsdp_config."

DTYPES = {word: dtype for word, dtype in words.DTYPES.items() if dtype != "fp8"}


def truth(value: Any) -> bool:
    """What Python makes of a switch: verl asks `if config.x`, so any number or text but 0 and "" is true."""
    return bool(value)


def _shard(value: Any) -> str:
    if value not in ("fsdp", "fsdp2"):
        raise ValueError(f"verl's {value} backend is not modelled yet; known: fsdp, fsdp2")
    return {"fsdp": "fsdp1", "fsdp2": "fsdp2"}[value]


def _dtype_or(unset: str) -> Codec:
    """A dtype that is `unset` where it is null."""
    return named(DTYPES, lambda value: unset if value is None else one_of(DTYPES)(value))


_QUANT = {"none": None, "fp8": "fp8"}
_TRUTH = Codec(truth)
_OFFLOAD = switch("cpu", "none", truth)
_RECOMPUTE = switch("full", "none", truth)
_PADDING = switch("free", "max", truth)
_STRATEGY = named({"fsdp": "fsdp1", "fsdp2": "fsdp2"}, _shard)

KEYS = (
    Key(f"{MODEL}path", "model", GIVEN),
    Key("data.train_batch_size", "prompts_per_step", GIVEN),
    Key("data.max_prompt_length", "prompt_len", GIVEN),
    Key("data.max_response_length", "response_len", GIVEN),
    Key("trainer.n_gpus_per_node", "gpus_per_node", GIVEN),
    Key(f"{ACTOR}strategy", "shard", _STRATEGY),
    Key(f"{ACTOR}ppo_mini_batch_size", "mini_batch", GIVEN),
    Key(f"{ACTOR}ulysses_sequence_parallel_size", "ulysses", GIVEN),
    Key(f"{FSDP}model_dtype", "weights_dtype", _dtype_or("fp32")),
    Key(f"{FSDP}reshard_after_forward", "reshard", _TRUTH),
    Key(f"{FSDP}param_offload", "offload.weights", _OFFLOAD),
    Key(f"{FSDP}optimizer_offload", "offload.optimizer", _OFFLOAD),
    Key(f"{REF}fsdp_config.model_dtype", "reference.weights_dtype", _dtype_or("bf16")),
    Key(f"{REF}fsdp_config.reshard_after_forward", "reference.reshard", _TRUTH),
    Key(f"{MODEL}enable_gradient_checkpointing", "recompute", _RECOMPUTE),
    Key(f"{MODEL}enable_activation_offload", "offload.activations", _OFFLOAD),
    Key(f"{MODEL}use_remove_padding", "padding", _PADDING),
    Key(f"{MODEL}use_fused_kernels", "loss", switch("fused", "full", truth)),
    Key(f"{MODEL}use_liger", "fused_kernels", switch("liger", "none", truth)),
    Key(f"{ROLLOUT}name", "engine.kind", named({kind: kind for kind in ("vllm", "sglang", "hf", "trtllm")})),
    Key(f"{ROLLOUT}n", "group", GIVEN),
    Key(f"{ROLLOUT}dtype", "engine.dtype", named(DTYPES)),
    Key(f"{ROLLOUT}gpu_memory_utilization", "engine.fraction", GIVEN),
    Key(f"{ROLLOUT}tensor_model_parallel_size", "engine.tp", GIVEN),
    Key(f"{ROLLOUT}data_parallel_size", "engine.dp", GIVEN),
    Key(f"{ROLLOUT}expert_parallel_size", "engine.ep", GIVEN),
    Key(f"{ROLLOUT}pipeline_model_parallel_size", "engine.pp", GIVEN),
    Key(f"{ROLLOUT}max_num_seqs", "engine.max_seqs", GIVEN),
    Key(f"{ROLLOUT}max_num_batched_tokens", "engine.max_batched_tokens", GIVEN),
    Key(f"{ROLLOUT}max_model_len", "engine.max_len", GIVEN),
    Key(f"{ROLLOUT}enforce_eager", "engine.eager", _TRUTH),
    Key(f"{ROLLOUT}quantization", "engine.quant", Codec(given, lambda kind: _QUANT.get(kind, UNSAID))),
    Key(f"{ROLLOUT}checkpoint_engine.update_weights_bucket_megabytes", "engine.sync_bucket_bytes", MIBS),
)
CRITIC = (
    Key("critic.model.path", "critic.model", GIVEN),
    Key("critic.strategy", "critic.shard", _STRATEGY),
    Key("critic.ppo_mini_batch_size", "critic.mini_batch", GIVEN),
    Key("critic.forward_micro_batch_size_per_gpu", "critic.logprob.micro_batch", GIVEN),
    Key("critic.ulysses_sequence_parallel_size", "critic.ulysses", GIVEN),
    Key("critic.fsdp.model_dtype", "critic.weights_dtype", _dtype_or("fp32")),
    Key("critic.fsdp.param_offload", "critic.offload.weights", _OFFLOAD),
    Key("critic.fsdp.optimizer_offload", "critic.offload.optimizer", _OFFLOAD),
    Key("critic.fsdp.reshard_after_forward", "critic.reshard", _TRUTH),
    Key("critic.model.enable_gradient_checkpointing", "critic.recompute", _RECOMPUTE),
    Key("critic.model.enable_activation_offload", "critic.offload.activations", _OFFLOAD),
    Key("critic.model.use_remove_padding", "critic.padding", _PADDING),
    Key("critic.model.target_modules", "critic.lora.targets", NAMES),
)
"""Keys of the critic, read if there is one."""
OWN = {key.native: key for key in KEYS}
TABLE = {key.native: key for key in (*KEYS, *CRITIC)}


def known() -> Known:
    """verl's keys that set no path by themselves; beside them which keys the rules read, and what is idle."""
    return known_names(__file__)


def ruled() -> dict[str, list[str]]:
    """The keys that the rules read, with the paths that they feed."""
    return {key: paths.split() for key, paths in known().more["feeds"].items()}


def refusal(key: str, value: Any) -> str:
    """What a key does that is not modelled; empty when it does nothing of that kind."""
    if key in known().unmodelled:
        modelled, does = known().unmodelled[key]
        same = (value == other and isinstance(value, bool) == isinstance(other, bool) for other in modelled)
        return "" if any(same) else does
    blocks = known().more["blocks"]
    return next((does for start, does in blocks.items() if key.startswith(start) and value is not None), "")


@cache
def _idle_starts() -> list[tuple[str, str]]:
    """Beginnings of keys without effect, with the reason; of two beginnings of a key the longer one comes first."""
    return sorted(((start, why) for why, text in known().more["idle"].items() for start in text.split()), reverse=True)


def idle(key: str) -> str:
    """Why a key changes no memory; empty when nothing says so."""
    found = next((why for start, why in _idle_starts() if key.startswith(start)), "")
    return found or next((why for word, why in known().more["anywhere"].items() if word in key.split(".")), "")


def idle_starts() -> tuple[str, ...]:
    return tuple(start for start, _ in _idle_starts())
