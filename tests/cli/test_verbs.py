"""What the verbs promise beside their texts: origins, round trips, exit codes, quick starts, pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.cases import ROOT, answer, run

from vramcast import __version__

SFT = "examples/trl_sft.yaml --gpu a100-sxm-80gb"


def test_read_says_where_each_value_came_from() -> None:
    origins = json.loads(answer(f"read {SFT} --set micro_batch=4 --json").stdout)["origins"]
    assert origins["gpu"] == "--gpu"
    assert origins["micro_batch"] == "--set"
    assert origins["seq_len"] == "trl_sft.yaml:11  max_length"


def test_what_lost_is_shown() -> None:
    found = json.loads(answer(f"check {SFT} --set micro_batch=4 --json").stdout)
    assert found["ignored"] == [
        {"path": "micro_batch", "value": 2, "origin": "trl_sft.yaml:17  per_device_train_batch_size", "winner": 4,
         "winner_origin": "--set"}
    ]  # fmt: skip
    assert "overridden\n  micro_batch = 2" in answer(f"check {SFT} --set micro_batch=4").stdout


def test_the_last_set_wins_and_set_beats_the_flag() -> None:
    found = json.loads(answer(f"read {SFT} --set gpu=h100-nvl-94gb --set seq_len=1k --set seq_len=2k --json").stdout)
    assert (found["job"]["gpu"], found["job"]["seq_len"]) == ("h100-nvl-94gb", 2048)


@pytest.mark.parametrize("format", ["toml", "yaml", "json"])
@pytest.mark.parametrize("example", ["examples/trl_sft.yaml", "examples/trl_lora.yaml", "examples/job.toml"])
def test_a_job_file_has_the_same_peak(tmp_path: Path, format: str, example: str) -> None:
    flags = "--gpu a100-sxm-80gb --set allocator=expandable_segments:True"
    file = tmp_path / f"job.{format}"
    file.write_text(answer(f"read {example} {flags} --job {format}").stdout, encoding="utf-8")
    before, after = (json.loads(answer(f"check {words} --json").stdout) for words in (f"{example} {flags}", str(file)))
    assert after["job"] == before["job"]
    assert after["peak"] == before["peak"]


def test_a_job_comes_from_standard_input_too() -> None:
    job = answer(f"read {SFT} --job yaml").stdout
    assert run("check - --json", stdin=job).exit == 0
    assert json.loads(run("read - --json", stdin=job).stdout)["origins"]["model"].startswith("stdin:")


def test_strict_refuses_unread_keys_and_only_those(tmp_path: Path) -> None:
    config = tmp_path / "sft.yaml"
    config.write_text("model_name_or_path: Qwen/Qwen2.5-0.5B\nmax_lenght: 4096\n")
    relaxed = run(f"check {config} --gpu l4")
    assert relaxed.exit == 0
    assert "unread\n  max_lenght  (sft.yaml:2)" in relaxed.stdout
    strict = run(f"check {config} --gpu l4 --strict")
    assert (strict.exit, strict.stdout) == (2, "")
    assert strict.stderr == "error: keys that were not read\n  max_lenght  sft.yaml:2\n"
    assert answer(f"check {SFT} --strict").exit == 0


@pytest.mark.parametrize("word", ["fact", "self", "help", "from", "context"])
def test_an_unread_key_may_have_any_name(tmp_path: Path, word: str) -> None:
    config = tmp_path / "sft.yaml"
    config.write_text(f"model_name_or_path: Qwen/Qwen2.5-0.5B\n{word}: 4096\n")
    assert word in run(f"check {config} --gpu l4 --strict").stderr


@pytest.mark.parametrize(
    ("command", "exit"),
    [
        (f"check {SFT}", 0),
        ("check examples/trl_sft.yaml --gpu l4", 1),
        ("check examples/trl_sft.yaml", 0),  # no card named: one of the catalogue fits
        ("check --model Qwen/Qwen2.5-72B --set algorithm=sft", 1),  # none does
        (f"explain {SFT}", 0),
        (f"read {SFT}", 0),
        ("list terms", 0),
    ],
)
def test_exit_codes(command: str, exit: int) -> None:
    assert answer(command).exit == exit


def test_every_term_has_a_page() -> None:
    for row in json.loads(answer("list terms --json").stdout):
        page = answer(f"explain --term {row['term']}").stdout
        assert page.startswith(f"{row['term']}\n\n")
        assert row["source"] in page


def test_explain_shows_one_term_or_another_phase() -> None:
    assert "\nweights  15,231,233,024 bytes" in answer(f"explain {SFT} --term weights").stdout
    assert answer(f"explain {SFT} --phase step").stdout.startswith("step · update")


def test_version() -> None:
    assert run("--version").stdout == f"vramcast {__version__}\n"


# --- as a process -----------------------------------------------------------------------------------------------------

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
ENVIRONMENT["PYTHONPATH"] = str(ROOT / "src")


def _python(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT,
                            env=ENVIRONMENT, text=True)  # fmt: skip


IMPORTED = """
import sys
from vramcast.cli import main
code = main(sys.argv[1:])
print(*sorted(name for name in ("numpy", "torch", "transformers", "rich") if name in sys.modules), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize("job", ["--model Qwen/Qwen2.5-7B --gpu a100-sxm-80gb", SFT])
def test_check_imports_nothing_heavy(job: str) -> None:
    process = _python("-c", IMPORTED, "check", *job.split(), "--json")
    out, err = process.communicate(timeout=60)
    assert json.loads(out)["schema"] == 1
    assert err.strip() == ""


def test_the_whole_catalogue_is_not_parsed_at_the_start() -> None:
    """One line is: a test of the catalogue shows that the others may be broken."""
    process = _python("-X", "importtime", "-m", "vramcast", "--version")
    assert "vramcast.catalog" not in process.communicate(timeout=60)[1]


@pytest.mark.parametrize("command", ["list paths", f"check {SFT} --json", "list algorithms", "--version"])
def test_a_reader_that_has_seen_enough_is_no_error(command: str) -> None:
    """Long outputs fail while they are printed, short ones when Python flushes at its end."""
    process = _python("-m", "vramcast", *command.split())
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 0
    assert err == ""
