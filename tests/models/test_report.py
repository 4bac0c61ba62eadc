"""`explain --arch`: text, JSON and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from vramcast.cli import main
from vramcast.report.schemas import schemas


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["explain", "--arch", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_mixture_under_a_layout(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--model", "Qwen3-30B-A3B", "--set", "tp=8", "--set", "pp=2")
    assert (code, err) == (0, "")
    assert (
        out
        == """\
Qwen/Qwen3-30B-A3B  qwen3_moe
  parameters  30,532,122,624
  active      3,353,032,704 for a token
  weights     56.87 GiB in bf16
  published   30,532,122,624 (the same)

blocks
         embedding                                     311,164,928      0.58 GiB
    48 × decoder: attention + experts                  623,120,640     55.71 GiB
         final norm                                          2,048      4.00 KiB
         head                                          311,164,928      0.58 GiB

modules                         parameters    share    bits  stored as
  routed_experts            28,991,029,248   95.0 %      16  bf16
  attention                    906,080,256    3.0 %      16  bf16
  embedding                    311,164,928    1.0 %      16  bf16
  lm_head                      311,164,928    1.0 %      16  bf16
  router                        12,582,912    0.0 %      16  bf16
  norms                            100,352    0.0 %      16  bf16

kept by a sequence, keys and values in bf16 (transformers)
    48 × full attention                           24,576 B a token
         for every further token                  24,576 B a token
         a sequence of 40,960 tokens                                    0.94 GiB

one rank of tp = 8, pp = 2
         stage 0: layers 0 to 23                     1,920,145,408      3.58 GiB
         stage 1: layers 24 to 47                    1,920,147,456      3.58 GiB

assumed
  attention_bias = False  (transformers 5.24.0 default)
"""
    )


def test_json_has_its_schema(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--model", "openai-community/gpt2-xl", "--json", "--gpus", "8", "--set", "shard=fsdp2")
    answer = json.loads(out)
    jsonschema.validate(answer, schemas()["explain --arch"])
    arch = answer["arch"]
    assert code == 0
    assert arch["params"] == sum(arch["modules"].values()) == 1_557_611_200
    assert arch["params"] == sum(block["count"] * block["params"] for block in arch["blocks"])
    assert answer["bytes"] == sum(block["bytes"] for block in arch["blocks"]) == 2 * arch["params"]
    assert (answer["published_params"], answer["published_reason"]) == (
        1_607_942_848, "checkpoint stores causal-mask/rotary buffers"
    )  # fmt: skip
    assert answer["ranks"][0]["params"] == 194_702_800


@pytest.mark.parametrize(
    "name",
    ["moonshotai/Kimi-K2.5", "nvidia/Llama-3_3-Nemotron-Super-49B-v1", "meta-llama/Llama-3.2-11B-Vision-Instruct"],
)
def test_it_is_80_columns_wide(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--model", name)
    assert [line for line in out.splitlines() if len(line) > 80] == []


def test_a_users_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.json"
    config = {"model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 1000, "num_experts": 8,
              "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}  # fmt: skip
    file.write_text(json.dumps(config), encoding="utf-8")
    code, out, _ = run(capsys, "--model", str(file))
    assert code == 0
    assert "published" not in out
    assert "  torch_dtype = bf16  (vramcast default)" in out.splitlines()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "error: no model given\n  help  --model NAME, or a config that names one; `vramcast list models`"),
        (["--model", "Qwen/Qwen2.5-7B", "--set", "tp=8"],
         "error: tp = 8 does not divide the 28 units of self_attn.q_proj.weight\n"
         "  from     --set\n"
         "  allowed  1, 2, 4"),
        (["--model", "Qwen/Qwen2.5-7B", "--set", "shard=zero3"],
         "error: shard = zero3 needs the number of ranks\n  help  --gpus N, or --set shard_size=N"),
        (["--model", "Qwen/Qwen2.5-7B", "--set", "shard=zero3", "--gpus", "8", "--set", "tp=2"],
         "error: shard = zero3 together with tp, pp or ep is not modelled yet"),
    ],
)  # fmt: skip
def test_refusals(arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out, err.rstrip()) == (2, "", error)


def test_check_says_what_works(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--model", "sarvamai/sarvam-30b", "--gpu", "h100-sxm-80gb"]) == 2
    assert capsys.readouterr().err.rstrip() == (
        "error: the activations of model type sarvam_moe are not modelled yet\n"
        "  from   sarvamai/sarvam-30b\n"
        "  works  vramcast explain --arch --model sarvamai/sarvam-30b\n"
        "  help   vramcast trace --model NAME --gpu CARD --save-arch FILE measures them"
    )


def test_check_reads_every_field_of_a_users_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.json"
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
              "intermediate_size": 128, "vocab_size": 1000, "num_experts": 8}  # fmt: skip
    file.write_text(json.dumps(config), encoding="utf-8")
    assert main(["check", "--model", str(file), "--gpu", "h100-sxm-80gb"]) == 2
    assert "model type llama is not known with the field num_experts = 8" in capsys.readouterr().err


def test_what_is_not_counted_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--model", "deepseek-ai/DeepSeek-V3")
    assert "  num_nextn_predict_layers = 1  (not counted: transformers builds no MTP layer)" in out.splitlines()


def test_layers_that_are_one_mixer_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """Nemotron H calls attention, experts and state space alike."""
    _, out, _ = run(capsys, "--model", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "--json")
    counts = {block["name"]: block["count"] for block in json.loads(out)["arch"]["blocks"]}
    assert [counts[f"decoder: {kind}"] for kind in ("mixer", "experts", "attention")] == [23, 23, 6]
