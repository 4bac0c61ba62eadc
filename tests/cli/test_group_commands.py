"""The three GRPO commands as users type them: their whole text is pinned, their JSON obeys the schema.

`python -m tests.cli.test_group_commands` in the repository's root writes what is printed now into `expected/group/`.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests.cli.cases import EXPECTED, Output, answer

COMMANDS = {
    "verl": "check examples/verl_grpo.sh --gpu h100-sxm-80gb --gpus 8",
    "trl": "check examples/trl_grpo.yaml --gpu a100-sxm-80gb --gpus 4",
    "trl_fsdp2": "check examples/trl_grpo.yaml examples/accelerate_fsdp2.yaml --gpu a100-sxm-80gb",
    "lora": "check --model Qwen/Qwen2.5-7B --set algorithm=grpo --set tuning=lora --gpu h100-sxm-80gb",
}
EXITS = {"verl": 0, "trl": 1, "trl_fsdp2": 0, "lora": 0}
FOLDER = EXPECTED / "group"


@cache
def printed(name: str, flags: str = "") -> Output:
    """What a command prints, run once for all tests that look at it."""
    return answer(f"{COMMANDS[name]}{flags}")


def text_of(name: str) -> str:
    return printed(name).text(COMMANDS[name])


def json_of(name: str) -> dict[str, Any]:
    return json.loads(printed(name, " --json").stdout)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_text_is_pinned(name: str) -> None:
    expected = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    assert text_of(name).splitlines() == expected.splitlines(), "python -m tests.cli.test_group_commands"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_exit_code_and_a_quiet_stderr(name: str) -> None:
    found = printed(name)
    assert (found.exit, found.stderr) == (EXITS[name], "")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_json_obeys_the_schema(name: str) -> None:
    schemas = json.loads(answer("list schema").stdout)
    Draft202012Validator(schemas["check"]).validate(json_of(name))


@pytest.mark.parametrize(
    ("name", "roles"),
    [
        ("verl", ["policy", "reference", "rollout"]),
        ("trl", ["policy", "rollout"]),
        ("trl_fsdp2", ["policy", "rollout"]),
        ("lora", ["policy"]),
    ],
)
def test_roles_engines_and_nodes(name: str, roles: list[str]) -> None:
    found = json_of(name)
    (group,) = found["groups"]
    assert group["roles"] == roles
    assert [engine["role"] for engine in group["engines"]] == ["rollout"] * ("rollout" in roles)
    for engine in group["engines"]:
        assert engine["pool_bytes"] > engine["kv_bytes"] > 0
        assert engine["fraction_low"] is not None
    # only verl's reference waits on the host
    assert [node["terms"][0]["role"] for node in found["nodes"]] == ["reference"] * (name == "verl")
    assert all(set(phase["states"]) == set(roles) for phase in group["phases"])


@pytest.mark.parametrize("name", COMMANDS)
def test_terms_carry_their_formulas(name: str) -> None:
    for phase in json_of(name)["groups"][0]["phases"]:
        for term in phase["terms"]:
            assert term["formula"], term["name"]
            assert term["figures"], term["name"]


def test_the_timeline_says_who_rests_and_who_sleeps() -> None:
    lines = printed("verl", " --full").stdout.splitlines()
    assert "    load: policy rests, reference on the host, rollout not there yet" in lines
    assert "    engine.start: policy rests, reference on the host, rollout is profiled" in lines
    assert "    sync: policy rests, reference on the host, rollout takes new weights" in lines
    assert "    generate: policy rests, reference on the host, rollout generates" in lines
    assert "    score.reference: policy rests, reference scores, rollout asleep" in lines
    assert "    step: policy learns, reference on the host, rollout asleep" in lines
    # TRL's engine does not sleep unless told to
    assert "    backward: policy learns, rollout rests" in printed("trl", " --full").stdout.splitlines()


@pytest.mark.parametrize("flags", ["", " --full"])
@pytest.mark.parametrize("name", COMMANDS)
def test_the_peak_is_marked_once_in_the_timeline(name: str, flags: str) -> None:
    lines = printed(name, flags).stdout.splitlines()
    marked = [line for line in lines if line.endswith("  peak") or "  peak, over by" in line]
    assert len(marked) == 1


def test_the_window_of_a_colocated_engine() -> None:
    assert "engine.fraction works from 0.17 to 0.78" in " ".join(printed("verl").stdout.split())
    assert "engine.fraction" not in printed("lora").stdout


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("verl", "actor_rollout_ref."),
        ("lora", "per_device_train_batch_size"),
        ("trl_fsdp2", "env"),
    ],
)
def test_the_best_lever_speaks_the_framework(name: str, key: str) -> None:
    best = json_of(name)["levers"][0]
    assert any(native.startswith(key) for native in best["native"]), best
    text = " ".join(printed(name, " --full").stdout.split())
    assert all(f"{native}: " in text for native in best["native"])


def test_an_edit_that_no_key_of_the_file_says_is_a_flag() -> None:
    """Whether FSDP is on stands in accelerate's file, not in TRL's."""
    best = json_of("trl")["levers"][0]
    assert (best["set"], best["native"], best["gets_through"]) == ({"shard": "fsdp2"}, {}, True)
    assert "  --set shard=fsdp2  (slower): 69.15 GiB, tight, but gets through" in printed("trl").stdout.splitlines()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for each in COMMANDS:
        (FOLDER / f"{each}.txt").write_text(text_of(each), encoding="utf-8")
