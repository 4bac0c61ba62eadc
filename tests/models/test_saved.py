"""Traced models as files: what `check` makes of a hand-made one, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cli.cases import run
from tests.jobs import check, phases, terms

from vramcast.models.arch import build_arch
from vramcast.models.measured import NEVER, Layers, Measured, Measurement, Part, Parts, Tensor
from vramcast.models.saved import content_of, saved

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "vocab_size": 500,
    "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False, "max_position_embeddings": 4096,
}  # fmt: skip
MODES = {
    "tuning": "full", "weights_dtype": "bf16", "compute_dtype": "bf16", "autocast": "false", "attention": "flash",
    "recompute": "none", "loss": "full", "outputs": "held",
}  # fmt: skip
HIDDEN = 128
"""bytes of a token's hidden state"""


def tensor(born: int, dies: int, kind: Any, size: int, extent: str = "tokens") -> Tensor:
    return Tensor(born, dies, kind, ((size, extent),), "aten.mm.default", "mlp")


FRONT = Part((3, 4, 4, 5), (tensor(0, NEVER, "batch", 8), tensor(1, 3, "output", HIDDEN), tensor(2, 4, "batch", 2)))
"""ids, the embedded tokens, and a mask that is gone with the blocks"""
BLOCK = Part(
    (1, 5, 6, 7),
    (
        tensor(0, 11, "input", HIDDEN),
        tensor(1, 10, "activation", 300),  # kept for backward
        tensor(2, 3, "activation", 100),
        tensor(4, 5, "output", HIDDEN),
        tensor(6, NEVER, "activation", HIDDEN),  # the gradient of the output, the next block's in its turn
        tensor(7, 9, "activation", 200),
        tensor(8, NEVER, "gradient", 1000, "1"),
    ),
)
TAIL = Part(
    (1, 2, 4, 5),
    (
        tensor(0, NEVER, "input", HIDDEN),
        tensor(1, 8, "activation", HIDDEN),  # normed
        tensor(2, NEVER, "activation", 1000, "scored"),  # logits, which the loop holds
        tensor(3, 7, "activation", 2000, "scored"),  # their fp32 copy
        tensor(5, 6, "activation", 2000, "scored"),  # its gradient
    ),
)
EMBEDDING = Part((0,), (tensor(0, NEVER, "gradient", 64_000, "1"),))
PARTS = Parts(front=FRONT, first=BLOCK, layers=(Layers(2, BLOCK),), tail=TAIL, embedding=EMBEDDING)
MEASURED = Measured(modes=MODES, shortest=16, longest=4096, fewest=1, most=0, fresh=PARTS, adding=PARTS)


def content(*variants: Measured) -> dict[str, Any]:
    measurement = Measurement(framework="loop", source={"torch": "2.13.0"}, variants=variants or (MEASURED,))
    return content_of(saved("own.json", CONFIG, build_arch("own.json", CONFIG, "own.json"), measurement))


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


JOB = (
    "--gpu a100-sxm-80gb --set framework=loop --set algorithm=sft --set tuning=full --set weights_dtype=bf16 "
    "--set attention=flash --set seq_len=100 --set micro_batch=2"
)


def write(file: dict[str, Any]) -> None:
    Path("own.json").write_text(json.dumps(file))


def refused(command: str) -> str:
    found = run(command)
    assert (found.exit, found.stdout) == (2, "")
    return found.stderr.rstrip()


# --- what it says -----------------------------------------------------------------------------------------------------


def test_measured_rows_stand_for_the_formulas() -> None:
    """200 tokens, all of them scored; three equal blocks keep 300 + 128 bytes a token."""
    write(content())
    found = {key: terms(phase) for key, phase in phases(check("--model", "own.json", *JOB.split())).items()}
    kept = 200 * (300 + HIDDEN)
    first = found["forward", "last block", "first"]
    assert first["inputs"] == 200 * (8 + 2)
    assert first["activations.saved"] == 2 * kept + 200 * HIDDEN  # two whole blocks, and the third's input
    assert first["activations.block"] == 200 * (300 + 2 * HIDDEN)  # its output and the normed one: more than 300 + 100
    loss = found["loss", "head", "first"]
    assert loss["activations.saved"] == 3 * kept
    assert loss["logits"] == 200 * (2 * HIDDEN + 1000 + 2000)
    assert found["backward", "loss", "first"]["logits"] == 200 * (2 * HIDDEN + 1000 + 2000 + 2000)
    backward = found["backward", "first block", "first"]
    assert backward["activations.saved"] == 2 * kept
    assert backward["activations.block"] == 200 * (HIDDEN + 300 + HIDDEN + 200)
    assert backward["gradients"] == 1000
    assert found["backward", "last block", "first"]["gradients"] == 3 * 1000
    assert found["backward", "embedding", "first"]["inputs"] == 200 * 8  # the mask is gone


def test_what_was_taken_for_granted_is_said() -> None:
    write(content())
    printed = run(f"check --model own.json {JOB}").stdout
    assert "own.json: activations as traced with torch 2.13.0" in printed


def test_one_sequence_can_be_run_in_another_way_than_several() -> None:
    """Two variants of the same modes: the number of sequences says which."""
    replace = msgspec.structs.replace
    given, _, *others = BLOCK.tensors
    block = Part(BLOCK.borders, (given, tensor(1, 10, "activation", 400), *others))
    one = replace(MEASURED, most=1, fresh=replace(PARTS, first=block, layers=(Layers(2, block),)))
    several = replace(MEASURED, fewest=2)
    write(content(several, one))
    for count, bytes_of_token in ((1, 400), (2, 300)):
        job = JOB.replace("micro_batch=2", f"micro_batch={count}")
        found = phases(check("--model", "own.json", *job.split()))
        assert terms(found["loss", "head", "first"])["activations.saved"] == 3 * count * 100 * (bytes_of_token + HIDDEN)


# --- what it refuses --------------------------------------------------------------------------------------------------


def test_every_difference_to_what_was_measured_is_said_at_once() -> None:
    write(content(msgspec.structs.replace(MEASURED, longest=64, fewest=3)))
    assert refused(f"check --model own.json {JOB}") == (
        "error: own.json was not measured for this job\n"
        "  seq_len      100 (--set), measured: 16 to 64\n"
        "  micro_batch  2 (--set), measured: 3 or more\n"
        "  measure      vramcast trace --model own.json --gpu a100-sxm-80gb --set micro_batch=2 --set seq_len=100"
        " --set attention=flash --set weights_dtype=bf16 --set tuning=full --set algorithm=sft --set framework=loop"
        " --save-arch own.json"
    )


def test_other_modes_are_named_with_those_of_the_nearest() -> None:
    write(content())
    other = JOB.replace("framework=loop", "framework=trl").replace("tuning=full", "tuning=lora")
    said = refused(f"check --model own.json {other}")
    lines = {line.split()[0]: line for line in said.splitlines()}
    assert lines["framework"].endswith("  trl (--set), measured: loop")
    assert lines["tuning"].endswith("  lora (--set), measured: full")
    assert lines["lora.rank"].endswith("measured: none")
    assert lines["loss"].endswith("measured: full")


def test_a_file_of_another_format_says_what_to_update() -> None:
    write({**content(), "vramcast_arch": 3, "vramcast": "9.0"})
    assert refused("check --model own.json").startswith(
        "error: own.json is a traced model of format 3; this vramcast reads format 2\n  written by  vramcast 9.0\n"
    )
    assert "  help        update vramcast" in refused("check --model own.json")


def _lost(file: dict[str, Any]) -> None:
    del file["measurement"]


def _config_lost(file: dict[str, Any]) -> None:
    del file["config"]


def _dies_first(file: dict[str, Any]) -> None:
    file["measurement"]["variants"][0]["fresh"]["first"]["tensors"][1][:2] = [10, 1]


def _grows(file: dict[str, Any]) -> None:
    file["measurement"]["variants"][0]["fresh"]["first"]["tensors"][1][3] = [[300, "moons"]]


def _nothing(file: dict[str, Any]) -> None:
    file["measurement"]["variants"] = []


@pytest.mark.parametrize(
    ("damage", "fact"),
    [
        (_lost, "Object missing required field `measurement`"),
        (_config_lost, "it holds no config"),
        (_dies_first, "fresh.first: aten.mm.default is born at step 10 and dies at 1"),
        (_grows, "fresh.first: aten.mm.default grows with 'moons', which nobody knows"),
        (_nothing, "nothing is measured"),
    ],
)
def test_a_damaged_file_says_where(damage: Callable[[dict[str, Any]], None], fact: str) -> None:
    file = json.loads(json.dumps(content()))
    damage(file)
    write(file)
    assert fact in refused("check --model own.json").splitlines()[0]


def test_a_file_that_is_something_else_is_not_overwritten() -> None:
    Path("notes.json").write_text("{}")
    write(content())
    said = refused(f"trace --model own.json {JOB} --save-arch notes.json")
    assert said == "error: --save-arch notes.json: there is something else, and it stays\n  use  another name"
    assert Path("notes.json").read_text() == "{}"


def test_a_step_of_ones_own_is_not_saved() -> None:
    said = refused("trace --step mine:build --save-arch own.json")
    assert said.startswith("error: --save-arch measures a job at several sizes, and a step of your own has only its")
