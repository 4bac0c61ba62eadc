"""TRL on a command line says what the same keys in a file say; launchers say how many processes there are."""

import io
from pathlib import Path
from typing import Any

import pytest

from vramcast.catalog.frameworks import defaults, recipe
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
    config = "model_name_or_path: org/m\nnum_generations: 4\nbeta: 0.1\noptim_args: x\nmax_length: null\n"
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
        ("optim_args", "g.yaml:4"),
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
    flags = "--max_length=$L --output_dir $O --num_processes $N --fsdp $F --optim_args $A"
    understood = read(f"trl sft --model_name_or_path $M \\\n {flags}")
    assert [(missing.path, missing.where) for missing in understood.missing] == [
        ("model", "stdin:1  model_name_or_path: $M is not set in the script"),
        ("seq_len", "stdin:2  max_length: $L is not set in the script"),
        ("shard", "stdin:2  fsdp: $F is not set in the script"),
        ("gpus", "stdin:2  num_processes: $N is not set in the script"),
    ]
    assert [unread.key for unread in understood.unread] == ["optim_args"]


def test_a_script_that_nobody_knows():
    flags = "--model_name_or_path m --bf16 True --per_device_train_batch_size 4 --model_max_length 512"
    understood = read(f"ls\ntorchrun --nproc_per_node 2 train.py {flags}")
    assert understood.warnings == [
        "stdin:2: train.py is not known; its arguments are those of a Hugging Face Trainer: it is priced as sft, "
        "--set algorithm=... if it does something else"
    ]
    values = understood.job().values
    assert (values["seq_len"], values["framework"], values["algorithm"]) == (512, "transformers==5.24.0", "sft")


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("python gold.py --model_name_or_path m", "gold.py is another trainer: GOLD"),
        ("python examples/scripts/dpo_online.py --model_name_or_path m", "is another trainer: online preference"),
        ("trl distillation --model_name_or_path m", "distillation of a teacher"),
        ("trl sftx --model_name_or_path m", "is none of TRL's trainers: sft, dpo, kto, reward, grpo, rloo"),
        ("torchrun train.py --model_name_or_path m", "train.py is not known"),
        ("torchrun x.py --bf16 --packing --max_length 4 --optim sgd --teacher_model x", "teacher_model speaks of a"),
        ("accelerate launch x.py --model_name_or_path m", "x.py is not known"),
        ("python train.py --actor-num-gpus-per-node 8", "starts slime, which is not read yet"),
        ("megatron sft --model m\ntrl env", "starts ms-swift, which is not read yet"),
    ],
)
def test_a_program_that_is_not_known_is_refused(command: str, error: str):
    with pytest.raises(Refused, match=error):
        read(f"ls\n{command}")


@pytest.mark.parametrize(
    ("script", "algorithm", "framework"),
    [
        ("trl/scripts/sft.py", "sft", "trl==1.16.0"),
        ("examples/scripts/sft_vlm.py", "sft", "trl==1.16.0"),
        ("src/open_r1/grpo.py", "grpo", "trl==1.16.0"),
        ("examples/pytorch/run_clm.py", "pretrain", "transformers==5.24.0"),
        ("mine.py", "grpo", "trl==1.16.0"),
    ],
)
def test_a_script_is_told_by_its_name_or_by_the_keys_of_one_trainer(script: str, algorithm: str, framework: str):
    keys = "--num_generations 4" if algorithm == "grpo" else ""
    values = read(f"ls\npython {script} --model_name_or_path m {keys}").job().values
    assert (values["algorithm"], values["framework"]) == (algorithm, framework)


def test_training_wins_over_its_preparation():
    text = (
        "python prep.py --model_name_or_path small --out x\ntorchrun train.py --model_name_or_path small\n"
        "trl vllm-serve --model small\ntrl sft --model_name_or_path big\n"
    )
    understood = read(text)
    assert understood.job().values["model"] == "big"
    assert understood.warnings == [f"stdin:{line}: this training command is not read" for line in (1, 2)]


def test_rloo_has_its_own_defaults():
    values = read("ls\ntrl rloo --model_name_or_path m").job().values
    assert (values["algorithm"], values["grpo.variant"]) == ("grpo", "rloo")
    filled = {fact.path: fact.value for fact in defaults("trl", "1.16.0", "grpo", values)}
    assert (filled["group"], filled["reference.kind"]) == (2, "copy")
    filled = {fact.path: fact.value for fact in defaults("trl", "1.16.0", "grpo", {**values, "tuning": "lora"})}
    assert filled["reference.kind"] == "adapter_off"
    assert recipe("trl", "1.16.0", {**values, "engine.kind": "hf"}).old_logprobs
    filled = {fact.path: fact.value for fact in defaults("trl", "0.20.0", "grpo", values)}
    assert (filled["group"], filled["reference.kind"], filled["reward.kind"]) == (2, "copy", "model")


def test_keys_of_the_launcher_in_the_file_of_trl(tmp_path: Path):
    file = tmp_path / "c.yaml"
    file.write_text("model_name_or_path: m\nbf16: true\nnum_processes: 4\naccelerate_config: fsdp2\n")
    (tmp_path / "run.sh").write_text("trl sft --config c.yaml --num_processes 2\n")
    (tmp_path / "started.sh").write_text("accelerate launch --num_processes 8 sft.py --config c.yaml\n")
    alone, script, started = (read_config(str(tmp_path / name)) for name in ("c.yaml", "run.sh", "started.sh"))
    facts = alone.winners()
    assert (facts["gpus"].value, str(facts["gpus"].origin)) == (4, "c.yaml:3  num_processes")
    assert (facts["shard"].value, facts["wrap"].value) == ("fsdp2", "block")
    assert [script.job().values[path] for path in ("gpus", "shard")] == [2, "fsdp2"]
    assert started.job().values["gpus"] == 8
    assert {(idle.key, idle.why) for idle in started.idle} == {
        ("num_processes", "the processes are started already"),
        ("accelerate_config", "the processes are started already"),
    }


@pytest.mark.parametrize(
    ("flags", "values"),
    [
        ('--fsdp "full_shard auto_wrap" --fsdp_transformer_layer_cls_to_wrap LlamaDecoderLayer',
         {"shard": "fsdp1", "reshard": True, "wrap": "block"}),
        ("--fsdp full_shard --fsdp_min_num_params 100", {"shard": "fsdp1", "reshard": True, "wrap": "none"}),
        ('--fsdp "full_shard auto_wrap"', {"shard": "fsdp2", "reshard": True, "wrap": "block"}),
        ("--fsdp", {"shard": "fsdp2", "wrap": "block"}),
        ('--fsdp "shard_grad_op offload"',
         {"shard": "fsdp2", "reshard": False, "wrap": "block", "offload.weights": "cpu", "offload.gradients": "cpu",
          "offload.optimizer": "cpu"}),
        ("""--fsdp full_shard --fsdp_config '{"version": 1, "activation_checkpointing": true}'""",
         {"shard": "fsdp1", "reshard": True, "wrap": "block", "recompute": "full"}),
        ("--fsdp False --fsdp_config '{}'", {}),
    ],
)  # fmt: skip
def test_fsdp_of_the_trainer(flags: str, values: dict[str, Any]):
    understood = read(f"trl sft --model_name_or_path m {flags}")
    assert understood.unread == []
    assert said(f"trl sft --model_name_or_path m {flags}") == values


def test_a_deepspeed_file_of_the_trainer(tmp_path: Path):
    (tmp_path / "z2.json").write_text(
        '{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}, "reduce_bucket_size": 1},'
        '"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 4, "gradient_clipping": 1.0}'
    )
    (tmp_path / "c.yaml").write_text("model_name_or_path: m\nbf16: true\ndeepspeed: ./z2.json\n")
    understood = read_config(str(tmp_path / "c.yaml"))
    facts = understood.winners()
    assert (facts["shard"].value, str(facts["shard"].origin)) == ("zero2", "z2.json  zero_optimization.stage")
    assert (facts["offload.optimizer"].value, facts["accumulation"].value) == ("cpu", 4)
    assert [unread.key for unread in understood.unread] == ["zero_optimization.reduce_bucket_size"]
    alone = read_config(str(tmp_path / "z2.json")).job().values
    assert alone == {"shard": "zero2", "offload.optimizer": "cpu", "accumulation": 4}
