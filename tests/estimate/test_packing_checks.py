"""What a job with packed weights may not say: one clear text each, word by word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.cases import run
from tests.random_jobs import said

from vramcast.catalog.models import model_config
from vramcast.estimate import forecast
from vramcast.types.result import Forecast

GENERATE = "check --model Qwen/Qwen2.5-7B --gpu a100-sxm-80gb --set algorithm=inference"
TRAIN = "check --model Qwen/Qwen2.5-7B --gpu a100-sxm-80gb --set algorithm=sft"
OWN = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False},
    "odd": {"quant_method": "gptq", "bits": 4, "group_size": 96, "sym": True, "desc_act": False},
    "nf4": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
}

MISTAKES = {
    "qlora on a plain base": (
        f"{TRAIN} --set tuning=qlora --set quant.kind=none",
        "error: tuning = qlora needs a packed base, and quant.kind = none\n"
        "  tuning      --set\n"
        "  quant.kind  --set\n"
        "  allowed     nf4, fp4, int8",
    ),
    "all of a packed base": (
        f"{TRAIN} --set quant.kind=nf4",
        "error: packed weights do not train: quant.kind = nf4 with tuning = full\n"
        "  quant.kind  --set\n"
        "  tuning      trl 1.16.0 default (ModelConfig.use_peft False)\n"
        "  algorithm   --set\n"
        "  allowed     tuning = qlora, or quant.kind = none",
    ),
    "all of a base that adapters are not trained on either": (
        f"{TRAIN} --set quant.kind=awq --set tuning=full",
        "error: packed weights do not train: quant.kind = awq with tuning = full\n"
        "  quant.kind  --set\n"
        "  tuning      --set\n"
        "  algorithm   --set\n"
        "  allowed     quant.kind = none",
    ),
    "adapters on a kind that is not trained": (
        f"{TRAIN} --set quant.kind=gptq --set tuning=lora",
        "error: adapters on a base of quant.kind = gptq are not modelled yet\n"
        "  from      --set\n"
        "  modelled  nf4, fp4, int8",
    ),
    "qlora with a kind that is not trained": (
        f"{TRAIN} --set quant.kind=fp8 --set tuning=qlora",
        "error: adapters on a base of quant.kind = fp8 are not modelled yet\n"
        "  from      --set\n"
        "  modelled  nf4, fp4, int8",
    ),
    "a packed base in shares": (
        f"{TRAIN} --gpus 4 --set shard=fsdp2 --set tuning=qlora",
        "error: shard = fsdp2 of packed weights is not modelled yet\n"
        "  quant.kind  what QLoRA packs its base into\n"
        "  tuning      --set\n"
        "  modelled    shard = none: every GPU has all of them",
    ),
    "a group that divides no layer": (
        f"{GENERATE} --set quant.kind=gptq --set quant.group=100",
        "error: group size 100 does not divide the 3584 inputs of model.layers.0.self_attn.q_proj.weight\n"
        "  from     --set\n"
        "  allowed  16, 32, 64, 128, 256, 512\n"
        "error: group size 100 does not divide the 18944 inputs of model.layers.0.mlp.down_proj.weight\n"
        "  from     --set\n"
        "  allowed  16, 32, 64, 128, 256, 512",
    ),
    "a group that divides all layers but one": (
        f"{GENERATE} --set quant.kind=awq --set quant.group=896",
        "error: group size 896 does not divide the 18944 inputs of model.layers.0.mlp.down_proj.weight\n"
        "  from     --set\n"
        "  allowed  16, 32, 64, 128, 256, 512",
    ),
    "a group of a kind that has none": (
        f"{GENERATE} --set quant.kind=nf4 --set quant.group=32",
        "error: quant.group = 32: the groups of nf4 are fixed\n  allowed  for gptq, awq, torchao, hqq",
    ),
    "bits that a kind does not have": (
        f"{GENERATE} --set quant.kind=gptq --set quant.bits=5",
        "error: quant.bits = 5: gptq has no such weights\n  allowed  2, 3, 4, 8",
    ),
    "two things at once": (
        f"{TRAIN} --set quant.kind=gptq --set quant.bits=5 --set quant.group=100 --set tuning=full",
        "error: packed weights do not train: quant.kind = gptq with tuning = full\n"
        "  quant.kind  --set\n"
        "  tuning      --set\n"
        "  algorithm   --set\n"
        "  allowed     quant.kind = none\n"
        "error: quant.bits = 5: gptq has no such weights\n"
        "  allowed  2, 3, 4, 8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_said_in_these_words(name: str) -> None:
    command, text = MISTAKES[name]
    found = run(command)
    assert (found.exit, found.stdout) == (2, "")
    assert found.stderr.rstrip() == text


# --- checkpoints that are packed already ------------------------------------------------------------------------------

HELP = "  help     name the model's own checkpoint in 16 bits instead"
OF_CHECKPOINTS = {
    "another kind": (
        "gptq", "--set algorithm=inference --set quant.kind=fp8",
        "error: quant.kind = fp8, and the checkpoint is quantised already: gptq int4 g128\n"
        "  from     --set\n"
        "  allowed  gptq\n"
        f"{HELP}",
    ),
    "none": (
        "nf4", "--set algorithm=sft --set tuning=lora --set quant.kind=none",
        "error: quant.kind = none, and the checkpoint is quantised already: bitsandbytes nf4\n"
        "  from     --set\n"
        "  allowed  nf4\n"
        f"{HELP}",
    ),
    "all of it, where adapters could": (
        "nf4", "--set algorithm=sft --set tuning=full",
        "error: packed weights do not train: quant.kind = nf4 with tuning = full\n"
        "  quant.kind  config.json quantization_config: bitsandbytes nf4\n"
        "  tuning      --set\n"
        "  algorithm   --set\n"
        "  allowed     tuning = qlora\n"
        "  help        name the model's own checkpoint in 16 bits instead",
    ),
    "all of it, where nothing could": (
        "gptq", "--set algorithm=sft --set tuning=full",
        "error: packed weights do not train: quant.kind = gptq with tuning = full\n"
        "  quant.kind  config.json quantization_config: gptq int4 g128\n"
        "  tuning      --set\n"
        "  algorithm   --set\n"
        "  help        name the model's own checkpoint in 16 bits instead",
    ),
    "adapters on it": (
        "gptq", "--set algorithm=sft --set tuning=qlora",
        "error: adapters on a base of quant.kind = gptq are not modelled yet\n"
        "  from      config.json quantization_config: gptq int4 g128\n"
        "  modelled  nf4, fp4, int8",
    ),
    "its own group": (
        "odd", "--set algorithm=inference",
        "error: group size 96 does not divide the 896 inputs of model.layers.0.self_attn.q_proj.weight\n"
        "  from     config.json quantization_config: gptq int4 g96\n"
        "  allowed  16, 32, 64, 128\n"
        "error: group size 96 does not divide the 4864 inputs of model.layers.0.mlp.down_proj.weight\n"
        "  from     config.json quantization_config: gptq int4 g96\n"
        "  allowed  16, 32, 64, 128",
    ),
}  # fmt: skip


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes the config.json of a packed Qwen2.5-0.5B into the working directory."""
    monkeypatch.chdir(tmp_path)
    config = model_config("Qwen/Qwen2.5-0.5B").config

    def write(own: str) -> None:
        Path("config.json").write_text(json.dumps(config | {"quantization_config": OWN[own]}), encoding="utf-8")

    return write


@pytest.mark.parametrize("name", OF_CHECKPOINTS)
def test_a_packed_checkpoint_is_contradicted_in_these_words(name: str, checkpoint: Any) -> None:
    own, flags, text = OF_CHECKPOINTS[name]
    checkpoint(own)
    found = run(f"check --model config.json --gpu l4 {flags}")
    assert (found.exit, found.stdout) == (2, "")
    assert found.stderr.rstrip() == text


def test_how_to_pack_it_has_no_effect(checkpoint: Any) -> None:
    checkpoint("gptq")
    flags = "--set algorithm=inference --set quant.bits=8 --set quant.group=32 --json"
    found = json.loads(run(f"check --model config.json --gpu l4 {flags}").stdout)
    why = "the checkpoint is packed already: gptq int4 g128"
    assert {one["path"]: one["why"] for one in found["ineffective"]} == {"quant.bits": why, "quant.group": why}


# --- what may be said -------------------------------------------------------------------------------------------------


def asked(**more: object) -> Forecast:
    values = {"model": "Qwen/Qwen2.5-0.5B", "gpu": "l4-24gb", "algorithm": "sft", "tuning": "qlora", **more}
    return forecast(said({path.replace("__", "."): value for path, value in values.items()}))


def assumed(answer: Forecast) -> dict[str, str]:
    return {one.path: f"{one.value} ({one.origin})" for one in answer.assumptions}


def test_qlora_that_names_no_kind_is_nf4() -> None:
    assert assumed(asked())["quant.kind"] == "nf4 (what QLoRA packs its base into)"


def test_a_packed_checkpoint_need_not_be_said(checkpoint: Any) -> None:
    checkpoint("nf4")
    for tuning in ("lora", "qlora"):
        found = asked(model="config.json", tuning=tuning)
        assert assumed(found)["quant.kind"] == "nf4 (config.json quantization_config: bitsandbytes nf4)"
    assert asked(model="config.json", quant__kind="nf4").peak == asked(model="config.json").peak  # said again


@pytest.mark.parametrize("kind", ["nf4", "fp4", "int8"])
def test_adapters_train_on_what_bitsandbytes_packs(kind: str) -> None:
    assert asked(quant__kind=kind).peak == asked(quant__kind=kind, tuning="lora").peak


def test_every_gpu_has_all_of_a_packed_base() -> None:
    """shard = none on several GPUs, and any shard on one."""

    def weights(answer: Forecast) -> set[int]:
        return {term.bytes for phase in answer.groups[0].phases for term in phase.terms if term.name == "weights"}

    assert weights(asked(gpus=4)) == weights(asked()) == weights(asked(shard="fsdp2"))


@pytest.mark.parametrize("kind", "none int8 nf4 fp4 gptq awq fp8 fp8_block nvfp4 torchao hqq".split())
def test_any_kind_generates(kind: str) -> None:
    assert asked(algorithm="inference", tuning="full", quant__kind=kind).verdict == "fits"


def test_a_group_that_torchao_cannot_have_leaves_the_layer_as_it_is() -> None:
    """The library skips it and says so in its log."""
    plain = asked(algorithm="inference", tuning="full").peak.bytes
    assert asked(algorithm="inference", tuning="full", quant__kind="torchao", quant__group=100).peak.bytes == plain
