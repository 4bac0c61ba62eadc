"""docs/articles.md is what the tool makes now, and all of its commands run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from vramcast.cli import _parser, main
from vramcast.cli import said as said_by_flags
from vramcast.estimate import forecast
from vramcast.rules_of_thumb.guide import page
from vramcast.rules_of_thumb.guide.ask import GRPO, SFT, block, command, exact, said
from vramcast.rules_of_thumb.guide.settle import on_gpus, settled, smallest
from vramcast.types.result import gets_through

FILE = Path(__file__).parents[2] / "docs" / "articles.md"
TEXT = FILE.read_text(encoding="utf-8")


def _commands() -> list[str]:
    fences = re.findall(r"^```\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    return [line for fence in fences for line in fence.replace("\\\n", " ").splitlines()]


def test_the_page_is_current() -> None:
    """`make docs` writes it anew."""
    assert page() == TEXT


@pytest.mark.parametrize("line", sorted(set(_commands())))
def test_commands_run(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The forecast only: `check` also pulls every lever, which takes longer and prints nothing that is shown here."""
    program, *arguments = shlex.split(line)
    assert program == "vramcast"
    options = _parser().parse_args(arguments)
    if options.rules or options.compare:
        assert main(arguments) in (0, 1), capsys.readouterr().err
    else:
        assert forecast(said_by_flags(options)).peak.bytes > 0


def test_a_command_asks_for_the_job_it_stands_for() -> None:
    job = {**GRPO, "micro_batch": "8", "engine.fraction": "0.3"}
    folded = "\n".join(block(command(job))[1:-2]).replace("\\\n", " ")
    assert "  " in folded, "long enough to be folded"
    options = _parser().parse_args(shlex.split(folded)[1:])
    assert said_by_flags(options).job().to_file().items() == said(job).job().to_file().items()


def test_tables_are_even() -> None:
    for table in re.findall(r"(?:^\|.*\n)+", TEXT, re.MULTILINE):
        assert len({line.count("|") for line in table.splitlines()}) == 1, table


def test_links_point_at_headings() -> None:
    headings = {re.sub(r"[^a-z0-9 -]", "", line.lstrip("# ").lower()).replace(" ", "-")
                for line in TEXT.splitlines() if line.startswith("#")}  # fmt: skip
    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) <= headings


def test_sixteen_rules() -> None:
    assert [int(found) for found in re.findall(r"^\*\*(\d+)\. ", TEXT, re.MULTILINE)] == list(range(1, 17))


def test_a_settled_fraction_holds_the_rollout_and_leaves_the_trainer_its_room() -> None:
    job = {**GRPO, "tuning": "lora", "micro_batch": "16", "prompt_len": "1024", "response_len": "1024",
           "engine.max_len": "2048"}  # fmt: skip
    chosen = settled(job)
    engine = exact(chosen).groups[0].engines[0]
    assert engine.waves == 1
    assert engine.fraction_low is not None
    assert engine.fraction_high is not None
    assert engine.fraction_low <= float(chosen["engine.fraction"]) <= engine.fraction_high
    less = {**chosen, "engine.fraction": str(float(chosen["engine.fraction"]) - 0.03)}
    assert exact(less).groups[0].engines[0].waves > 1


def test_fewer_cards_than_the_smallest_do_not_fit() -> None:
    job = {**GRPO, "tuning": "full", "reference.kind": "copy", "group": "8", "prompt_len": "1024",
           "response_len": "3072", "engine.max_len": "4096"}  # fmt: skip
    chosen, answer = smallest(job, responses=8)
    assert gets_through(answer.verdict, answer.peak)
    fewer = int(chosen["gpus"]) // 2
    assert fewer >= 1
    less = exact(settled(on_gpus(job, fewer, 1, 8)))
    assert not gets_through(less.verdict, less.peak)


def test_supervised_training_needs_no_engine() -> None:
    assert "engine.kind" not in SFT
