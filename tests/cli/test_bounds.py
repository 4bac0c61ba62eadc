"""What nobody means and somebody sends: it is refused at once, in lines that can be read, with all that is wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from time import process_time

import pytest
from tests.cli.cases import run
from tests.cli.test_ending import ENVIRONMENT

from vramcast.errors import SHOWN, Mistake, Refused, bounded

JOB = "check --model Qwen/Qwen2.5-0.5B --gpu l4"


def refused(command: str) -> list[str]:
    """The facts of a refusal."""
    ran = run(command)
    assert (ran.exit, ran.stdout) == (2, "")
    assert max(map(len, ran.stderr.splitlines())) < 2000
    return re.findall(r"^error: (.*)$", ran.stderr, re.MULTILINE)


# --- messages ---------------------------------------------------------------------------------------------------------


def test_a_long_word_and_a_long_line_lose_their_middle() -> None:
    assert bounded("x" * 200) == "x" * 200
    assert bounded(f"unknown {'x' * 5000}.") == f"unknown {'x' * 150}...(5,001 characters)...{'x' * 49}."
    assert len(bounded("word " * 400_000)) < 1600
    assert bounded("a\x1b[31mb\u202e\udcff\n") == "a\\x1b[31mb\\u202e\\udcff\\n"


def test_so_many_mistakes_are_shown_and_all_are_kept() -> None:
    found = Refused([Mistake(str(number)) for number in range(99)])
    assert len(found.mistakes) == 99
    assert str(found).splitlines()[SHOWN - 1 :] == ["error: 19", f"error: and {99 - SHOWN} more"]
    many = Mistake("many", **{str(number): "x" for number in range(150)})
    assert str(many).splitlines()[-1] == "  and 50 more"


def test_near_names_are_looked_for_where_they_are_shown() -> None:
    asked: list[int] = []

    def near() -> str:
        asked.append(1)
        return "name"

    found = Refused([Mistake("x", near=near) for _ in range(1000)])
    assert asked == []
    assert str(found).count("near  name") == len(asked) == SHOWN


def test_a_file_of_nothing_but_mistakes(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text("".join(f"kkkey{number} = 1\n" for number in range(20_000)))
    began = process_time()
    facts = refused(f"check {file}")
    assert len(facts) == SHOWN + 1
    assert facts[-1] == f"and {20_000 - SHOWN:,} more"
    assert process_time() - began < 10


def test_a_long_key_that_nobody_reads(tmp_path: Path) -> None:
    file = tmp_path / "sft.yaml"
    file.write_text(f"model_name_or_path: Qwen/Qwen2.5-0.5B\n? {'max_lenght' * 1000}\n: 1\n")
    shown = run(f"check {file} --gpu l4 --full").stdout
    assert "(10,000 characters)" in shown
    assert max(map(len, shown.splitlines())) < 400


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", ["x." * 990 + "x = 1", f"{'a' * 10**6} = 1", f"seq_len = {'9' * 5000}", f"model = '{'a' * 5000}'"]
)
def test_strange_job_files(tmp_path: Path, content: str) -> None:
    file = tmp_path / "job.toml"
    file.write_text(content)
    assert refused(f"check {file}")


@pytest.mark.parametrize(
    "command", ["check {}", "check --model {}", "explain --arch --model Qwen/Qwen2.5-0.5B --adapter {}", "bench {}"]
)
def test_a_pipe_with_a_name_is_not_waited_for(tmp_path: Path, command: str) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    assert refused(command.format(tmp_path / "pipe.json"))[0].endswith("pipe.json is no regular file")
    assert refused(command.format("/dev/zero")) if "--model" not in command else True


def test_what_the_shell_opened_is_read() -> None:
    command = f"{sys.executable} -m vramcast check <(printf 'model: Qwen/Qwen2.5-0.5B\\ngpu: l4') --json"
    found = subprocess.run(["bash", "-c", command], capture_output=True, env=ENVIRONMENT, timeout=60)
    assert json.loads(found.stdout)["job"] == {"model": "Qwen/Qwen2.5-0.5B", "gpu": "l4"}


def test_a_cache_of_the_hub_that_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    home = tmp_path / "models--owner--model"
    for content in (b"\xff\xfe", b"../../..", b"*", b"\0"):
        (home / "refs").mkdir(parents=True, exist_ok=True)
        (home / "refs" / "main").write_bytes(content)
        assert refused("check --model owner/model --gpu l4") == ["unknown model 'owner/model'"]


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpus", [1_000_000_007, (1 << 63) - 1, "9" * 39])
def test_more_gpus_than_anybody_has(gpus: object) -> None:
    assert any("gpus: " in fact for fact in refused(f"{JOB} --gpus {gpus} --set shard_size=2"))


def test_divisors_of_many_gpus() -> None:
    ran = run(f"{JOB} --gpus 1048575 --set shard=fsdp2 --set shard_size=2")
    assert "shard_size = 2 does not divide gpus = 1048575" in ran.stderr
    assert "allowed     1, 3, 5, 11, 15, 25, 31, 33," in ran.stderr


@pytest.mark.parametrize("text", [f"max_split_size_mb:{'9' * 4000}", f"roundup_power2_divisions:[{'9' * 3000}:1]"])
def test_long_numbers_of_an_allocator_text(text: str) -> None:
    assert refused(f"{JOB} --set allocator={text}")


# --- regular expressions ----------------------------------------------------------------------------------------------

EXPRESSIONS = ["(.*)*(.*)*(.*)*X", "(?:..|.)*X", ".*.*.*.*.*.*.*.*.*.*X"]


@pytest.mark.parametrize("method", ["LORA", "VERA"])  # VERA: before PEFT is asked, which would not come back
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_of_an_adapter_does_not_hang(tmp_path: Path, expression: str, method: str) -> None:
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({"peft_type": method, "r": 8, "target_modules": expression}))
    began = process_time()
    assert "takes too long" in refused(f"explain --arch --model Qwen/Qwen2.5-0.5B --adapter {file}")[0]
    assert process_time() - began < 10


def test_nor_does_one_of_a_quantised_model(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 512, "vocab_size": 1000, "quantization_config": {
            "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": [f"re:{EXPRESSIONS[0]}"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                "num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}}},
        },
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "takes too long" in refused(f"explain --arch --model {tmp_path}")[0]


@pytest.mark.parametrize(
    "expression", [r".*\.(q|v)_proj", r"model\.layers\.\d+\..*(q|v)_proj", r"(?!.*lm_head).*_proj"]
)
def test_those_that_people_write_are_matched(tmp_path: Path, expression: str) -> None:
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({"peft_type": "LORA", "r": 8, "target_modules": expression}))
    assert run(f"explain --arch --model Qwen/Qwen2.5-0.5B --adapter {file}").exit == 0


@pytest.mark.parametrize("pattern", ["(", "(?i)q_proj", "a{99999999999}", "(?P<idx>x)"])
def test_what_is_no_expression_where_it_stands(tmp_path: Path, pattern: str) -> None:
    file = tmp_path / "adapter_config.json"
    fields = {"rank_pattern": {pattern: 4}} if "idx" not in pattern else {
        "layers_pattern": [pattern], "layers_to_transform": [0]}  # fmt: skip
    file.write_text(json.dumps({"peft_type": "LORA", "r": 8, "target_modules": ["q_proj"], **fields}))
    assert "is not a regular expression" in refused(f"explain --arch --model Qwen/Qwen2.5-0.5B --adapter {file}")[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"peft_type": "GLORA", "target_modules": [None]}, {"peft_type": "LORA", "target_modules": [["q_proj"]]},
        {"peft_type": "LORA", "modules_to_save": [1]}, {"peft_type": "LORA", "layers_to_transform": ["x"]},
        {"peft_type": "P_TUNING", "encoder_num_layers": 10**9, "task_type": "CAUSAL_LM", "num_virtual_tokens": 8},
        {"peft_type": "PEANUT", "depth": 10**9},
    ],
)  # fmt: skip
def test_wrong_entries_of_an_adapter(tmp_path: Path, fields: dict[str, object]) -> None:
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({"r": 8, **fields}))
    facts = refused(f"explain --arch --model Qwen/Qwen2.5-0.5B --adapter {file}")
    assert any(str(field) in fact for fact in facts for field in fields if field != "peft_type")


# --- all at once ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "facts"),
    [
        ("explain --term nope --set a=1", ["unknown path 'a'", "unknown term 'nope'", "no model given"]),
        (f"{JOB.replace('check', 'explain')} --term nope --set a=1", ["unknown path 'a'", "unknown term 'nope'"]),
        ("explain --arch --model Qwen/Qwen2.5-0.5B --term weights --phase step --set a=1", [
            "unknown path 'a'", "--term is of a forecast: it does not go with --arch",
            "--phase is of a forecast: it does not go with --arch"]),
        (f"{JOB.replace('check', 'explain')} --adapter x", ["--adapter goes with --arch"]),
        (f"{JOB} --no-cache --trust-remote-code", [
            "--no-cache goes with --method trace", "--trust-remote-code goes with --method trace"]),
        ("bench no.jsonl nor.jsonl", ["no such file: no.jsonl", "no such file: nor.jsonl"]),
        ("trace --json --flame --set a=1 --model Qwen/Qwen2.5-0.5B", [
            "unknown path 'a'", "--json and --flame would both be on standard output"]),
    ],
)  # fmt: skip
def test_every_mistake_of_a_command(command: str, facts: list[str]) -> None:
    assert refused(command) == facts


def test_unread_keys_stand_beside_other_mistakes(tmp_path: Path) -> None:
    config = tmp_path / "sft.yaml"
    config.write_text("model_name_or_path: Qwen/Qwen2.5-0.5B\nmax_lenght: 4096\n")
    facts = refused(f"check {config} --gpu l4 --strict --set a=1")
    assert sorted(facts) == ["keys that were not read", "unknown path 'a'"]
