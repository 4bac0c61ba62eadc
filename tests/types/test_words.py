"""The user's own words: values in any case and by the field's names, and suggestions by meaning before spelling."""

from __future__ import annotations

import json

import pytest
from tests.cli.cases import run

from vramcast.errors import Refused
from vramcast.types.paths import find, read_value


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("weights_dtype", "bfloat16", "bf16"),
        ("weights_dtype", "torch.float16", "fp16"),
        ("compute_dtype", "FP32", "fp32"),
        ("optimizer", "AdamW", "adamw"),
        ("optimizer", "adamw_bnb_8bit", "adamw_8bit"),
        ("optimizer", "paged_adamw_32bit", "paged_adamw"),
        ("algorithm", "GRPO", "grpo"),
        ("tuning", "LoRA", "lora"),
        ("attention", "flash_attention_2", "flash"),
        ("attention", "sdpa", None),
        ("shard", "ZeRO-2", "zero2"),
        ("shard", "FULL_SHARD", "fsdp1"),
        ("engine.kind", "vLLM", "vllm"),
        ("engine.kv_dtype", "auto", None),
        ("engine.kv_dtype", "fp8_e4m3", "fp8"),
        ("quant.kind", "4bit", "nf4"),
        ("engine.sleep", "1", "1"),
    ],
)
def test_a_value_in_the_words_of_the_field(path: str, text: str, value: object) -> None:
    assert read_value(find(path)[1], text) == value


def test_a_word_that_no_choice_has_is_no_value() -> None:
    with pytest.raises(ValueError, match="'int3' is not one of"):
        read_value(find("weights_dtype")[1], "int3")
    with pytest.raises(ValueError, match="'4bit' is not one of"):
        read_value(find("optimizer")[1], "4bit")


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("batch_size", "micro_batch"),
        ("context_window", "seq_len"),
        ("gradient_chekpointing.gc", "recompute"),
        ("gpu_util", "engine.fraction"),
        ("zero_level", "shard"),
        ("world_size", "gpus"),
        ("micro_bach", "micro_batch"),
        ("critic.batch", "micro_batch"),
    ],
)
def test_a_suggestion_by_meaning_comes_first(name: str, first: str) -> None:
    with pytest.raises(Refused) as refused:
        find(name)
    assert refused.value.mistakes[0].context["near"].split(", ")[0] == first


SFT = "check --set seq_len=512 --gpu l4"


@pytest.mark.parametrize(
    ("name", "row", "why"),
    [
        ("unsloth/Llama-3.2-1B", "meta-llama/Llama-3.2-1B", "its last part names this model"),
        ("/data/models/Qwen2.5-0.5B/", "Qwen/Qwen2.5-0.5B", "its last part names this model"),
        ("/c/models--Qwen--Qwen2.5-0.5B/snapshots/0a1b", "Qwen/Qwen2.5-0.5B", "its last part names this model"),
        ("Qwen/Qwen2.5-0.5B-Chat", "Qwen/Qwen2.5-0.5B", "its sibling with the same sizes"),
        ("me/Llama-3.2-1B-it", "meta-llama/Llama-3.2-1B", "its sibling with the same sizes"),
    ],
)
def test_a_name_that_stands_for_a_model_is_a_stated_assumption(name: str, row: str, why: str) -> None:
    found = run(f"{SFT} --model {name} --json")
    assert found.exit in (0, 1)
    assumption = json.loads(found.stdout)["assumptions"][0]
    assert (assumption["path"], assumption["value"]) == ("model", row)
    assert assumption["origin"] == f"{name!r} is not known{', and' if 'part' in why else ':'} {why}"


@pytest.mark.parametrize("name", ["unsloth/Llama-3.2-1B-bnb-4bit", "Qwen/Qwen2.5-0.5B-AWQ", "me/nothing-7B", "me/-it"])
def test_packed_weights_and_strangers_are_no_siblings(name: str) -> None:
    found = run(f"{SFT} --model {name}")
    assert found.exit == 2
    assert found.stderr.startswith(f"error: unknown model {name!r}")


def test_installed_asks_this_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", {"trl": "0.19.1"}.__getitem__)
    model = "--model Qwen/Qwen2.5-0.5B"
    job = json.loads(run(f"{SFT} {model} --installed --json").stdout)["job"]
    assert job["framework"] == "trl==0.19.1"
    job = json.loads(run(f"{SFT} {model} --installed --set framework=trl==1.0 --json").stdout)["job"]
    assert job["framework"] == "trl==1.0"


def test_what_is_not_installed_is_refused() -> None:
    found = run(f"{SFT} --model Qwen/Qwen2.5-0.5B --set framework=verl==0.9 --installed")
    assert found.exit in (0, 1), "--set wins, nobody asks the environment"
    found = run("check examples/verl_grpo.sh --gpu h100-sxm-80gb --installed")
    assert found.exit == 2
    assert found.stderr == (
        "error: verl is not installed in this environment\n"
        "  from  --installed\n"
        "  help  run it where verl is, or --set framework=verl==VERSION\n"
    )


# --- keys of frameworks -----------------------------------------------------------------------------------------------

MODEL = "--model Qwen/Qwen2.5-0.5B"


@pytest.mark.parametrize(
    ("word", "job"),
    [
        ("per_device_train_batch_size=4", {"micro_batch": 4}),
        ("gradient_accumulation_steps=2", {"accumulation": 2}),
        ("max_length=1k", {"seq_len": 1024}),
        ("load_in_4bit=true", {"quant.kind": "nf4", "tuning": "qlora"}),
        ("use_peft=true", {"tuning": "lora"}),
        ("bf16=true", {"autocast": True, "compute_dtype": "bf16"}),
        ("torch_dtype=bfloat16", {"weights_dtype": "bf16"}),
        ("gradient_checkpointing=false", {"recompute": "none"}),
        ("r=8", {"lora.rank": 8}),
        ("target_modules=all-linear", {"lora.targets": ["all-linear"]}),
        ("gpu_memory_utilization=0.5", {"engine.fraction": 0.5}),
        ("kv_cache_dtype=auto", {"engine.kv_dtype": None}),
        ("tensor_parallel_size=2", {"engine.tp": 2}),
        ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2", {"micro_batch": 2}),
        ("actor_rollout_ref.rollout.n=8", {"group": 8}),
        ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", {"allocator": "expandable_segments:True"}),
    ],
)
def test_set_takes_the_keys_of_frameworks(word: str, job: dict[str, object]) -> None:
    found = run(f"read {MODEL} --set {word} --json")
    told = json.loads(found.stdout)["job"] if found.exit == 0 else {}
    assert {path: told.get(path, "missing") for path in job} == job, found.stderr


@pytest.mark.parametrize("word", ["learning_rate=1e-4", "use_cache=false", "trainer.logger=wandb", "lora_alpha=32"])
def test_a_key_that_changes_no_memory_is_said_to(word: str) -> None:
    key = word.partition("=")[0]
    assert key in [item["path"] for item in json.loads(run(f"{SFT} {MODEL} --set {word} --json").stdout)["ineffective"]]


@pytest.mark.parametrize(
    ("word", "error"),
    [
        ("gradient_checkpointing=maybe", "error: gradient_checkpointing: 'maybe' is not true or false"),
        ("zero_stage=2", "error: shard = zero2 is not modelled yet"),
        ("actor_rollout_ref.hybrid_engine=False", "error: actor_rollout_ref.hybrid_engine = False is not modelled yet"),
        ("deepspeed=x.json", "error: shard is not known"),
        ("beta=0.04", "error: beta counts together with other keys of a configuration"),
        ("trainer.nnodes=2", "error: trainer.nnodes counts together with other keys of a configuration"),
        ("use_peft=true --set use_dora=true", "error: lora.dora = true is not modelled yet"),
    ],
)
def test_a_key_that_is_not_modelled_is_refused_under_its_own_name(word: str, error: str) -> None:
    found = run(f"{SFT} {MODEL} --set {word}")
    assert found.exit == 2
    assert found.stderr.startswith(error)
    assert f"--set  {word.split()[-1].partition('=')[0]}" in found.stderr


def test_a_job_file_takes_them_too() -> None:
    text = "model: Qwen/Qwen2.5-0.5B\nalgorithm: sft\ngpu: l4\nseq_len: 512\n"
    text += "per_device_train_batch_size: 4\nlearning_rate: 1e-4\n"
    found = json.loads(run("check - --json", text).stdout)
    assert found["job"]["micro_batch"] == 4
    assert [item["path"] for item in found["ineffective"]] == ["learning_rate"]
