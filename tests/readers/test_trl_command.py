"""TRL on a command line says what the same keys in a file say; launchers say how many processes there are."""

import io
from pathlib import Path
from typing import Any

import pytest

from vramcast.errors import Refused
from vramcast.readers import read_config
from vramcast.types.job import Understanding


def read(text: str) -> Understanding:
    return read_config("-", io.StringIO(text))


def said(text: str) -> dict[str, Any]:
    values = read(text).job().values
    return {path: value for path, value in values.items() if path not in ("framework", "algorithm", "model")}


@pytest.mark.parametrize(
    ("flags", "values"),
    [
        ("--max-length=2048 --per_device_train_batch_size 4", {"seq_len": 2048, "micro_batch": 4}),
        ("--packing --use_peft --lora-r 8", {"packing": True, "tuning": "lora", "lora.rank": 8}),
        ("--packing False --no_gradient_checkpointing", {"packing": False, "recompute": "none"}),
        ("--use_peft True --lora_target_modules q_proj v_proj --load_in_4bit",
         {"tuning": "qlora", "lora.targets": ["q_proj", "v_proj"], "quant.kind": "nf4"}),
        ("--model_init_kwargs '{\"dtype\": \"bfloat16\"}'", {"weights_dtype": "bf16"}),
        ("--max_steps -1 --learning_rate 2e-5 --bf16", {"autocast": True, "compute_dtype": "bf16"}),
        ("--lora_r 8 --lora_r 16", {"lora.rank": 16}),
    ],
)  # fmt: skip
def test_flags(flags: str, values: dict[str, Any]):
    assert said(f"trl sft --model_name_or_path m {flags}") == values


@pytest.mark.parametrize("kind", ["sft", "dpo", "kto", "reward", "grpo"])
def test_the_command_names_the_trainer(kind: str):
    fact = read(f"ls\ntrl {kind} --model_name_or_path m").winners()["algorithm"]
    assert (fact.value, str(fact.origin)) == (kind, f"stdin:2  trl {kind}")
    assert read(f"python trl/scripts/{kind}.py --model_name_or_path m").winners()["algorithm"].value == kind


def test_beta_is_that_of_the_trainer():
    assert said("trl grpo --model_name_or_path m --beta 0.04")["reference.kind"] == "copy"


def test_origins():
    facts = read("trl dpo \\\n  --model-name-or-path m \\\n  --max-length 2048 --accelerate_config zero2").winners()
    assert str(facts["seq_len"].origin) == "stdin:3  max_length"
    assert str(facts["shard"].origin) == "trl's accelerate_configs/zero2.yaml  deepspeed_config.zero_stage"


def test_a_config_file_beside_the_script(tmp_path: Path):
    config = "model_name_or_path: org/m\nnum_generations: 4\nbeta: 0.1\nfsdp: x\nmax_length: null\n"
    (tmp_path / "g.yaml").write_text(config)
    (tmp_path / "run.sh").write_text("trl grpo --config g.yaml \\\n  --num_generations 16 --fsdp_colour red\n")
    understood = read_config(str(tmp_path / "run.sh"))
    facts = understood.winners()
    assert {path: str(facts[path].origin) for path in ("model", "group", "reference.kind")} == {
        "model": "g.yaml:1  model_name_or_path",
        "group": "run.sh:2  num_generations",
        "reference.kind": "g.yaml:3  beta",
    }
    assert [(unread.key, unread.where) for unread in understood.unread] == [
        ("fsdp", "g.yaml:4"),
        ("fsdp_config.fsdp_colour", "run.sh:2"),
    ]
    assert [missing.where.partition("  ")[0] for missing in understood.missing] == ["g.yaml:5"]


def test_a_config_file_that_is_not_there():
    with pytest.raises(Refused) as refused:
        read("ls\ntrl sft --config /nowhere/g.yaml")
    assert str(refused.value) == (
        "error: no such file: /nowhere/g.yaml\n  from  stdin:2\n  help  it is looked for here and beside the script"
    )


@pytest.mark.parametrize(
    ("command", "values"),
    [
        ("accelerate launch --num_processes 4 --multi_gpu sft.py --model_name_or_path m", {"gpus": 4, "shard": "none"}),
        ("accelerate launch --num_processes=4 --use_fsdp --fsdp_version=2 "
         "--fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP --mixed_precision bf16 "
         "-m trl.scripts.sft --model_name_or_path m",
         {"gpus": 4, "compute_dtype": "bf16", "shard": "fsdp2", "wrap": "block"}),
        ("accelerate launch --use_deepspeed --zero_stage 3 --offload_optimizer_device cpu sft.py "
         "--model_name_or_path m",
         {"shard": "zero3", "offload.optimizer": "cpu"}),
        ("trl sft --model_name_or_path m --accelerate_config fsdp2 --num_processes 2",
         {"gpus": 2, "compute_dtype": "bf16", "shard": "fsdp2", "reshard": True, "wrap": "block"}),
        ("torchrun --nnodes 2 --nproc-per-node=8 sft.py --model_name_or_path m", {"gpus": 16, "gpus_per_node": 8}),
        ("torchrun --nproc_per_node=gpu sft.py --model_name_or_path m", {}),
        ("deepspeed --num_gpus 4 sft.py --model_name_or_path m", {"gpus": 4}),
        ("export CUDA_VISIBLE_DEVICES=0,1\ntrl sft --model_name_or_path m", {"gpus": 2}),
        ("PYTORCH_ALLOC_CONF=expandable_segments:True trl sft --model_name_or_path m",
         {"allocator": "expandable_segments:True"}),
    ],
)  # fmt: skip
def test_launchers(command: str, values: dict[str, Any]):
    assert said(command) == values


def test_an_accelerate_file_beside_the_script(tmp_path: Path):
    (tmp_path / "a.yaml").write_text("distributed_type: FSDP\nnum_processes: 8\nfsdp_config:\n  fsdp_version: 2\n")
    command = "accelerate launch --config_file a.yaml --num_processes 2 sft.py --model_name_or_path m"
    (tmp_path / "run.sh").write_text(command)
    facts = read_config(str(tmp_path / "run.sh")).winners()
    assert (facts["gpus"].value, str(facts["gpus"].origin)) == (2, "run.sh:1  num_processes")
    assert (facts["shard"].value, str(facts["shard"].origin)) == ("fsdp2", "a.yaml:4  fsdp_config.fsdp_version")


def test_variables_that_are_not_set_are_asked_for():
    flags = "--max_length=$L --output_dir $O --num_processes $N --fsdp $F"
    understood = read(f"trl sft --model_name_or_path $M \\\n {flags}")
    assert [(missing.path, missing.where) for missing in understood.missing] == [
        ("model", "stdin:1  model_name_or_path: $M is not set in the script"),
        ("seq_len", "stdin:2  max_length: $L is not set in the script"),
        ("gpus", "stdin:2  num_processes: $N is not set in the script"),
    ]
    assert [unread.key for unread in understood.unread] == ["fsdp"]


def test_a_script_that_nobody_knows():
    understood = read("ls\ntorchrun --nproc_per_node 2 train.py --model_name_or_path m --max_length 512")
    assert understood.warnings == ["stdin:2: train.py is read as a script with TRL's arguments"]
    assert understood.job().values["seq_len"] == 512
