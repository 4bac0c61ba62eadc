"""What a GRPO job may not say: one clear text each, word by word, and all of a job's mistakes at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.cases import run

GRPO = (
    "check --model Qwen/Qwen2.5-7B --gpu h100-sxm-80gb --set algorithm=grpo --set engine.kind=vllm "
    "--set weights_dtype=bf16 "
)
VERL = f"{GRPO} --gpus 8 --set framework=verl --set engine.tp=2 "

MISTAKES = {
    "a share of nothing": (
        f"{GRPO} --set engine.fraction=0",
        "error: engine.fraction: must be > 0.0, not 0.0\n"
        "  from     --set\n"
        "  allowed  a decimal fraction such as 0.45, or null",
    ),
    "a share above all": (
        f"{GRPO} --set engine.fraction=1.01",
        "error: engine.fraction: must be <= 1.0, not 1.01\n"
        "  from     --set\n"
        "  allowed  a decimal fraction such as 0.45, or null",
    ),
    "a share in words": (
        f"{GRPO} --set engine.fraction=half",
        "error: engine.fraction: 'half' is not a decimal fraction such as 0.45, or null\n"
        "  from     --set\n"
        "  allowed  a decimal fraction such as 0.45, or null",
    ),
    "a group that the batch is no multiple of": (
        f"{GRPO} --gpus 2 --set group=7",
        "error: group = 7 does not divide the batch of 16 responses\n"
        "  group  --set\n"
        "  batch  micro_batch 8 × accumulation 1 × gpus 2\n"
        "  help   change one of the three so that their product is a multiple of the group",
    ),
    "a rollout that GPUs cannot share": (
        f"{VERL} --set prompts_per_step=5 --set group=3",
        "error: gpus = 8 does not divide the 15 responses of a rollout\n"
        "  gpus   --gpus\n"
        "  batch  prompts_per_step 5 × group 3\n"
        "  help   every GPU takes the same number of responses",
    ),
    "ranks that share no heads": (
        f"{GRPO} --gpus 8 --set engine.tp=8",
        "error: engine.tp = 8 does not divide heads = 28\n"
        "  engine.tp  --set\n"
        "  heads      Qwen/Qwen2.5-7B config.json\n"
        "  allowed    1, 2, 4, 7, 14, 28",
    ),
    "ranks that share no GPUs": (
        f"{GRPO} --gpus 6 --set engine.tp=4",
        "error: engine.tp = 4 does not divide gpus = 6\n"
        "  engine.tp  --set\n"
        "  gpus       --gpus\n"
        "  allowed    1, 2, 3, 6",
    ),
    "shards of part of the ranks": (
        f"{GRPO} --gpus 8 --set shard=fsdp2 --set shard_size=3",
        "error: shard_size = 3 does not divide gpus = 8\n"
        "  shard_size  --set\n"
        "  gpus        --gpus\n"
        "  allowed     1, 2, 4, 8",
    ),
    "a share nobody knows": (  # between 0.16 and 0.18 TRL let vLLM choose
        f"{GRPO} --set framework=trl==0.16.0 --set engine.process=trainer",
        "error: engine.fraction is not known\n  help  --set engine.fraction=0.5",
    ),
    "a reference that is not modelled": (
        f"{GRPO} --set reference.kind=precomputed",
        "error: reference.kind = precomputed is not modelled yet\n"
        "  from      --set\n"
        "  modelled  none, copy, adapter_off",
    ),
    "an engine that is not modelled": (
        f"{GRPO} --set engine.kind=sglang",
        "error: engine.kind = sglang is not modelled yet\n"
        "  from      --set\n"
        "  modelled  none, hf, vllm",
    ),
    "inference on several GPUs": (
        "check --model Qwen/Qwen2.5-7B --set algorithm=inference --gpus 4",
        "error: inference on several GPUs is not modelled yet\n"
        "  algorithm  --set\n"
        "  gpus       --gpus\n"
        "  allowed    1",
    ),
    "several at once": (
        f"{GRPO} --gpus 8 --set engine.tp=3 --set group=7 --set engine.fraction=1.5 --set reference.kind=swapped",
        "error: engine.fraction: must be <= 1.0, not 1.5\n"
        "  from     --set\n"
        "  allowed  a decimal fraction such as 0.45, or null\n"
        "error: engine.tp = 3 does not divide heads = 28\n"
        "  engine.tp  --set\n"
        "  heads      Qwen/Qwen2.5-7B config.json\n"
        "  allowed    1, 2, 4, 7, 14, 28\n"
        "error: engine.tp = 3 does not divide gpus = 8\n"
        "  engine.tp  --set\n"
        "  gpus       --gpus\n"
        "  allowed    1, 2, 4, 8\n"
        "error: group = 7 does not divide the batch of 64 responses\n"
        "  group  --set\n"
        "  batch  micro_batch 8 × accumulation 1 × gpus 8\n"
        "  help   change one of the three so that their product is a multiple of the group\n"
        "error: reference.kind = swapped is not modelled yet\n"
        "  from      --set\n"
        "  modelled  none, copy, adapter_off",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_said_in_these_words(name: str) -> None:
    command, text = MISTAKES[name]
    found = run(command)
    assert (found.exit, found.stdout) == (2, "")
    assert found.stderr.rstrip() == text


def test_the_whole_card_is_a_share() -> None:
    assert run(f"{GRPO} --set engine.fraction=1").exit == 1


# --- scripts ----------------------------------------------------------------------------------------------------------

UNSET = """\
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
    actor_rollout_ref.model.path=Qwen/Qwen2.5-7B \\
    data.train_batch_size=$TRAIN_BATCH \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.gpu_memory_utilization=${FRACTION}
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run.sh"


def test_a_variable_that_is_not_set_is_named_with_the_flag_that_sets_it(script: Path) -> None:
    script.write_text(UNSET)
    found = run("check run.sh --gpu h100-sxm-80gb")
    assert (found.exit, found.stdout) == (2, "")
    assert found.stderr.rstrip() == (
        "error: prompts_per_step is not known\n"
        "  from  run.sh:3  data.train_batch_size: $TRAIN_BATCH is not set in the script\n"
        "  help  --set prompts_per_step=...\n"
        "error: engine.fraction is not known\n"
        "  from  run.sh:5  actor_rollout_ref.rollout.gpu_memory_utilization: $FRACTION is not set in the script\n"
        "  help  --set engine.fraction=..."
    )


def test_the_flags_it_names_answer_the_question(script: Path) -> None:
    script.write_text(UNSET)
    found = run("check run.sh --gpu h100-sxm-80gb --set prompts_per_step=128 --set engine.fraction=0.4")
    assert (found.exit, found.stderr) == (0, "")


def test_a_script_without_a_training_command(script: Path) -> None:
    script.write_text("#!/bin/bash\necho hello\nnvidia-smi\n")
    found = run("check run.sh")
    assert (found.exit, found.stdout) == (2, "")
    assert found.stderr.rstrip() == (
        "error: run.sh has no training command\n"
        "  it starts   nvidia-smi\n"
        "  looked for  python -m verl.trainer.main_ppo, trl sft|dpo|kto|reward|grpo|rloo, accelerate launch, "
        "torchrun or deepspeed with a script\n"
        "  help        nothing is executed"
    )


def test_nothing_of_a_script_is_executed(script: Path) -> None:
    script.write_text(
        "touch loose\n"
        "N=$(touch inside; echo 4)\n"
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.name=vllm "
        "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=$N\n"
    )
    found = run("check run.sh --gpu h100-sxm-80gb")
    assert found.exit == 2
    assert "$(touch inside; echo 4)" in found.stderr
    assert found.stderr.rstrip().endswith("--set micro_batch=...")
    assert [file.name for file in script.parent.iterdir()] == ["run.sh"]
