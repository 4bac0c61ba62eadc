"""Groups that a layer's inputs are no multiple of: `check` refuses what `explain --arch` refuses, and no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.cases import run
from tests.random_jobs import said

from vramcast.catalog.models import model_config
from vramcast.estimate import forecast
from vramcast.models.quant.quantisation import Quantisation

QWEN = "Qwen/Qwen2.5-7B"  # 3584 inputs, 18944 of them in down_proj
WIDTHS = (3584, 18944)
USUAL = (16, 32, 64, 128, 256, 512, 1024)
INFERENCE = "--set algorithm=inference --set seq_len=4096 --set micro_batch=1"


def _refusal(*widths: int, group: int, origin: str) -> str:
    """One mistake for every width that the group does not divide, with the first layer that has it."""
    layers = {3584: "self_attn.q_proj", 18944: "mlp.down_proj"}
    allowed = ", ".join(str(size) for size in USUAL if all(width % size == 0 for width in WIDTHS))
    assert allowed == "16, 32, 64, 128, 256, 512"
    return "".join(
        f"error: group size {group} does not divide the {width} inputs of model.layers.0.{layers[width]}.weight\n"
        f"  from     {origin}\n"
        f"  allowed  {allowed}\n"
        for width in widths
    )


def _checkpoint(folder: Path, section: dict[str, Any]) -> str:
    """A config.json of the model with a quantization_config."""
    file = folder / "config.json"
    file.write_text(json.dumps({**model_config(QWEN).config, "quantization_config": section}), encoding="utf-8")
    return str(file)


@pytest.mark.parametrize("kind", ["gptq", "awq"])
@pytest.mark.parametrize("group", [96, 896, 3584])
def test_a_group_that_divides_not_every_layer_is_refused(kind: str, group: int) -> None:
    words = f"--model {QWEN} --set quant.kind={kind} --set quant.group={group}"
    found = run(f"check {words} {INFERENCE}")
    wrong = [width for width in WIDTHS if width % group]
    assert wrong
    assert (found.exit, found.stdout) == (2, "")
    assert found.stderr == _refusal(*wrong, group=group, origin="--set")
    assert run(f"explain --arch {words}").stderr == found.stderr


def test_whoever_said_the_group_is_named(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(f'model = "{QWEN}"\nalgorithm = "inference"\nquant.kind = "gptq"\n')
    assert run(f"check {job} --set quant.group=96").stderr == _refusal(*WIDTHS, group=96, origin="--set")


SECTIONS: dict[str, dict[str, Any]] = {
    "gptq int4 g96": {"quant_method": "gptq", "bits": 4, "group_size": 96},
    "awq int4 g96": {"quant_method": "awq", "bits": 4, "group_size": 96},
    "compressed-tensors int4 g96": {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
            "num_bits": 4, "type": "int", "strategy": "group", "group_size": 96, "symmetric": True}}},
    },
}  # fmt: skip


@pytest.mark.parametrize("label", SECTIONS)
def test_a_checkpoint_s_own_group_is_refused_too(tmp_path: Path, label: str) -> None:
    file = _checkpoint(tmp_path, SECTIONS[label])
    found = run(f"check --model {file} {INFERENCE}")
    assert (found.exit, found.stdout) == (2, "")
    assert found.stderr == _refusal(*WIDTHS, group=96, origin=f"{file} quantization_config: {label}")
    assert run(f"explain --arch --model {file}").exit == 2


@pytest.mark.parametrize("group", [size for size in USUAL if size <= 512])
def test_every_group_that_is_allowed_is_forecast(group: int) -> None:
    job = {"model": QWEN, "gpu": "h100-sxm-80gb", "algorithm": "inference", "quant.kind": "gptq"}
    assert forecast(said({**job, "quant.group": group})).verdict == "fits"


@pytest.mark.parametrize("kind", ["hqq", "torchao"])
def test_methods_that_leave_such_a_layer_alone_are_not_refused(kind: str) -> None:
    job = {"model": QWEN, "gpu": "h100-sxm-80gb", "algorithm": "inference", "quant.kind": kind, "quant.group": 96}
    assert forecast(said(job)).verdict == "fits"


def test_a_job_without_packed_weights_pays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: Quantisation, *_: object) -> None:
        raise AssertionError("nothing is packed")

    monkeypatch.setattr(Quantisation, "check", never)
    assert forecast(said({"model": QWEN, "gpu": "h100-sxm-80gb", "algorithm": "inference"})).verdict == "fits"
    with pytest.raises(AssertionError, match="nothing is packed"):
        forecast(said({"model": QWEN, "algorithm": "inference", "quant.kind": "gptq"}))
