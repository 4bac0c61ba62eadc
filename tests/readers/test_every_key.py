"""No key of TRL, accelerate or DeepSpeed is dropped, whatever is written behind it.

It becomes a fact, is listed without effect, as unread or in a warning, asks for a value, or is refused.
"""

import itertools
from functools import partial
from typing import Any

import pytest

from vramcast.errors import Refused
from vramcast.readers.document import Document
from vramcast.readers.frameworks import accelerate, deepspeed
from vramcast.readers.frameworks.accelerate import read_accelerate
from vramcast.readers.frameworks.deepspeed import read_deepspeed
from vramcast.readers.frameworks.trl.keys import CHOOSES, KEYS, NO_EFFECT, OLD, RULED, UNREAD
from vramcast.readers.frameworks.trl.reader import Program, read_trl
from vramcast.types.job import Understanding

VALUES: list[Any] = [True, False, 0, 1, 64, None, "text", "auto", "", [], {}, ["a"], {"a": 1}, {"a": False}]
PROGRAMS = (Program("sft"), Program("dpo"), Program("grpo"), Program("pretrain", "transformers", launches=False))
BESIDE: tuple[dict[str, Any], ...] = ({}, {"use_peft": True, "use_vllm": True, "packing": True, "do_eval": True})
TRL = sorted({
    *KEYS, *RULED, *OLD, *CHOOSES, *UNREAD, *NO_EFFECT, "lora_adapter_path", "teacher_model_name", "unknown",
    "accelerate_config", "num_processes", "use_fsdp", "zero_stage", "mixed_precision", "fp8_backend",
})  # fmt: skip
_BLOCKED = (
    [f"fsdp_config.fsdp_{key}" for key in (
        "version reshard_after_forward sharding_strategy auto_wrap_policy offload_params activation_checkpointing "
        "activation_checkpointing_offload limit_all_gathers backward_prefetch forward_prefetch state_dict_type "
        "use_orig_params min_num_params transformer_layer_cls_to_wrap ignored_modules colour").split()]
    + [f"deepspeed_config.{key}" for key in (
        "zero_stage offload_optimizer_device offload_param_device gradient_accumulation_steps gradient_clipping "
        "zero3_init_flag zero3_save_16bit_model deepspeed_moe_layer_cls_names colour").split()]
    + [f"parallelism_config.parallelism_config_{key}" for key in (
        "dp_replicate_size dp_shard_size tp_size cp_size sp_size cp_backend sp_backend colour").split()]
)  # fmt: skip
ACCELERATE = sorted({
    *accelerate._NO_EFFECT, *accelerate._CHOOSES, *_BLOCKED, "num_processes", "num_machines", "mixed_precision",
    "distributed_type", "accelerate_config", "fp8_config", "dynamo_config", "dynamo_backend", "megatron_lm_config",
    "unknown",
})  # fmt: skip
DEEPSPEED = sorted({
    *deepspeed._NO_EFFECT, *deepspeed._CHOOSES, "zero_optimization", "zero_optimization.stage",
    "zero_optimization.offload_optimizer.device", "zero_optimization.offload_param.device", "bf16.enabled",
    "zero_optimization.cpu_offload", "zero_optimization.overlap_comm", "fp16.enabled", "optimizer.type",
    "optimizer.params.lr", "scheduler.type", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "unknown",
})  # fmt: skip


def spoken(understood: Understanding) -> set[str]:
    """Keys of which something was made, by the name they are written under, and the keys that hold them."""
    keys = {fact.origin.key for fact in understood.facts}
    keys |= {item.key for items in (understood.unread, understood.idle, understood.no_effect) for item in items}
    keys |= {text.split(": ", 1)[-1].split(" ")[0] for text in understood.warnings}
    keys |= {item.where.split("  ", 1)[-1].split(" ")[0].rstrip(":") for item in understood.missing}
    parts = [key.split(".") for key in keys]
    inner = {words[-1] for words in parts}
    return inner | {".".join(words[:count]) for words in parts for count in range(1, len(words) + 1)}


def answered(read: Any, key: str) -> bool:
    """Whether a reader speaks of a key, or refuses it by name."""
    try:
        understood = read()
        return key in spoken(understood) or (key == "use_fsdp" and "shard" in understood.winners())
    except Refused as refused:
        texts = [f"{mistake.fact} {' '.join(mistake.context.values())}" for mistake in refused.mistakes]
        return any(key in text or key.rpartition(".")[2] in text for text in texts)


@pytest.mark.parametrize("key", TRL)
def test_trl(key: str):
    for value, program, beside in itertools.product(VALUES, PROGRAMS, BESIDE):
        document = Document({"model_name_or_path": "m", **beside, key: value}, {})
        assert answered(partial(read_trl, document, "x", "", program), key), (value, program, beside)


@pytest.mark.parametrize("key", ACCELERATE)
def test_accelerate(key: str):
    block, _, inner = key.partition(".")
    for value in VALUES:
        for kind in ("NO", "MULTI_GPU", "FSDP", "DEEPSPEED"):
            content = {"distributed_type": kind, block: {inner: value} if inner else value}
            assert answered(partial(read_accelerate, Document(content, {}), "x"), key), (key, value, kind)


@pytest.mark.parametrize("key", DEEPSPEED)
def test_deepspeed(key: str):
    for value in VALUES:
        content: dict[str, Any] = {"zero_optimization": {"stage": 2}}
        *outer, last = key.split(".")
        block = content
        for part in outer:
            block = block.setdefault(part, {})
        block[last] = value
        assert answered(partial(read_deepspeed, Document(content, {}), "x"), key), (key, value)


@pytest.mark.parametrize("key", [*CHOOSES, "lora_adapter_path", "teacher_model_name", "zero_stage_x", "critic_lr"])
def test_a_key_that_chooses_what_is_not_modelled_is_refused(key: str):
    with pytest.raises(Refused) as refused:
        read_trl(Document({"model_name_or_path": "m", key: "x"}, {key: 7}), "x.yaml")
    assert [mistake.context["from"] for mistake in refused.value.mistakes if key in mistake.fact] == ["x.yaml:7"]


def test_only_keys_of_the_table_never_have_an_effect():
    content = dict.fromkeys(NO_EFFECT, "x") | {"model_name_or_path": "m"}
    understood = read_trl(Document(content, {}), "x")
    assert {item.key for item in understood.no_effect} == set(NO_EFFECT)
    assert all(item.why for item in understood.idle)
