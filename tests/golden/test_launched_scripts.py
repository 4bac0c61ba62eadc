"""Scripts as people launch them: the program and the layout that are priced are the ones that run."""

from pathlib import Path

import pytest
from tests.cli.cases import run
from tests.jobs import check, phases, terms

LLAMA_2_7B = 6_738_415_616
FSDP = (
    "torchrun --nproc_per_node=2 train/train_mem.py --model_name_or_path meta-llama/Llama-2-7b-hf --bf16 True "
    "--per_device_train_batch_size 2 --gradient_accumulation_steps 16 --tf32 True --model_max_length 2048 "
    "--gradient_checkpointing True"
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_fsdp_of_a_hugging_face_script(here: Path) -> None:
    """Two cards each hold half of fp32 weights and Adam's states, and bf16 gradients whole: nothing is reduced before
    the 16th micro-batch. A key of transformers 4 says which version it is, and that FSDP is the first."""
    flags = '--fsdp "full_shard auto_wrap" --fsdp_transformer_layer_cls_to_wrap LlamaDecoderLayer'
    (here / "run.sh").write_text(f"{FSDP} {flags}\n")
    answer = check("run.sh", "--gpu", "rtx-a6000", "--gpus", "2")
    assert answer["verdict"] == "does_not_fit"
    assert {path: answer["job"][path] for path in ("framework", "algorithm", "shard", "wrap", "seq_len")} == {
        "framework": "transformers==4.57.0",
        "algorithm": "sft",
        "shard": "fsdp1",
        "wrap": "block",
        "seq_len": 2048,
    }
    held = terms(phases(answer)[("backward", "loss", "steady")])
    assert held["weights"] == LLAMA_2_7B * 4 // 2
    assert held["optimizer.state"] == LLAMA_2_7B * 8 // 2
    assert held["gradients.unsharded"] == LLAMA_2_7B * 2
    assert any("train_mem.py is not known" in warning for warning in answer["warnings"])


def test_without_fsdp_it_is_ddp(here: Path) -> None:
    (here / "run.sh").write_text(f"{FSDP}\n")
    answer = check("run.sh", "--gpu", "rtx-a6000", "--gpus", "2", "--set", "framework=transformers==4.57")
    assert terms(phases(answer)[("backward", "loss", "steady")])["weights"] == LLAMA_2_7B * 4


def test_a_deepspeed_file_is_never_plain_ddp(here: Path) -> None:
    (here / "zero2.json").write_text(
        '{"train_batch_size": 8, "bf16": {"enabled": true}, "gradient_clipping": 1.0,'
        ' "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": false}}}'
    )
    config = "model_name_or_path: Qwen/Qwen2.5-14B\nbf16: true\nmax_length: 512\n"
    (here / "named.yaml").write_text(f"{config}deepspeed: ./zero2.json\n")
    (here / "beside.yaml").write_text(config)
    for files in ("named.yaml", "beside.yaml zero2.json"):
        found = run(f"check {files} --gpu a100-sxm-40gb --gpus 4")
        assert found.exit == 2
        assert "error: shard = zero2 is not modelled yet\n  from      zero2.json" in found.stderr


def test_the_training_command_is_priced_and_not_what_prepares_it(here: Path) -> None:
    (here / "run.sh").write_text(
        "python prep.py --model_name_or_path Qwen/Qwen2.5-0.5B --out x\n"
        "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B "
        "actor_rollout_ref.rollout.name=vllm actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 "
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1\n"
    )
    answer = check("run.sh", "--gpu", "h100-sxm-80gb")
    assert (answer["job"]["model"], answer["job"]["algorithm"]) == ("Qwen/Qwen2.5-7B", "grpo")


def test_a_teacher_on_the_card_is_another_trainer(here: Path) -> None:
    (here / "run.sh").write_text(
        "python examples/scripts/gold.py --model_name_or_path Qwen/Qwen2.5-0.5B "
        "--teacher_model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1\n"
    )
    found = run("check run.sh --gpu l4")
    assert found.exit == 2
    assert found.stderr.startswith("error: run.sh:1: examples/scripts/gold.py is another trainer: GOLD")
