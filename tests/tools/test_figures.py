"""docs/articles.md: every figure is what the tool says now, none can be changed unseen, and all of its commands run."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from tools.figures.__main__ import main as mend
from tools.figures.jobs import exact, job, named_jobs
from tools.figures.page import Edit, check

from vramcast.cli import _parser, main, said
from vramcast.estimate import forecast
from vramcast.types.result import gets_through

FILE = Path(__file__).parents[2] / "docs" / "articles.md"
TEXT = FILE.read_text(encoding="utf-8")
NAMES = named_jobs(TEXT)
SHOWN = re.sub(r"<!--.*?-->|^```.*?^```$", lambda found: " " * len(found[0]), TEXT, flags=re.MULTILINE | re.DOTALL)
"""without what a reader does not see, each character in its place"""


def _commands() -> list[str]:
    fences = re.findall(r"^```\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    return [line for fence in fences for line in fence.replace("\\\n", " ").splitlines()]


def test_every_figure_is_so() -> None:
    """`make docs` mends them."""
    covered, wrong = check(TEXT)
    assert wrong == []
    assert len(covered) > 300


def test_a_changed_figure_is_found() -> None:
    """Every figure with its last digit changed; of a table, that of its sum."""
    covered = [edit for edit in check(TEXT).covered if re.search(r"\d", edit.text)]
    text = TEXT
    for edit in covered:
        last = max(found.start() for found in re.finditer(r"\d", edit.text)) + edit.start
        text = f"{text[:last]}{(int(text[last]) + 1) % 10}{text[last + 1 :]}"
    wrong = {edit.start for edit in check(text).wrong}
    assert wrong == {edit.start for edit in covered}


def test_every_exact_figure_is_asked_for() -> None:
    """GiB is the forecast's: the articles know only GB. Of their rules, GB stands in the text as they print it."""
    spans = [(edit.start, edit.end) for edit in check(TEXT).covered]
    figures = list(re.finditer(r"\d(?:[\d,.]*\d)? GiB", SHOWN))
    assert len(figures) > 100
    assert [found[0] for found in figures if not any(a <= found.start() < b for a, b in spans)] == []


def test_a_document_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = "LoRA, 7B: 14 GB<!-- article/7b tuning=lora: weights --> of 8 GB, and 22 words.\n"
    file = tmp_path / "page.md"
    file.write_text(right.replace("14", "15"), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["tools.figures", str(file)])
    with pytest.raises(SystemExit, match="1"):
        mend()
    assert capsys.readouterr().out == f"{file}:1: '15 GB' is '14 GB' now\n0 of 1 figures are so\n"
    sys.argv.append("--write")
    with pytest.raises(SystemExit, match="0"):
        mend()
    assert file.read_text(encoding="utf-8") == right


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("no figure<!-- article/7b: weights -->", "14 GB stands nowhere before it"),
        ("1 GiB<!-- Qwen2.5-8B: peak -->", "no answer: unknown model 'Qwen2.5-8B'"),
        ("1 GB<!-- article/7b: weights --><!-- sums article/7b -->", "no table follows"),
    ],
)
def test_a_figure_that_cannot_be_checked_is_wrong(text: str, why: str) -> None:
    assert why in [edit.why for edit in check(text).wrong]


def test_figures_of_a_comment_stand_in_its_order() -> None:
    text = "2 GB, 14 GB and 84 GB<!-- article/7b: gradients; optimizer -->"
    assert check(text).wrong == []
    assert check(text).covered == [Edit(16, 21, "84 GB"), Edit(6, 11, "14 GB")]


@pytest.mark.parametrize("line", sorted(set(_commands())))
def test_commands_run(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The forecast only: `check` also pulls every lever, which takes longer and prints nothing that is shown here."""
    program, *arguments = shlex.split(line)
    assert program == "vramcast"
    options = _parser().parse_args(arguments)
    if options.rules or options.compare:
        assert main(arguments) in (0, 1), capsys.readouterr().err
    else:
        assert forecast(said(options)).peak.bytes > 0


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
    chosen = job("GRPO LoRA quick micro_batch=16 settled", NAMES)
    engine = exact(chosen).groups[0].engines[0]
    assert engine.waves == 1
    assert engine.fraction_low is not None
    assert engine.fraction_high is not None
    assert engine.fraction_low <= float(chosen["engine.fraction"]) <= engine.fraction_high
    less = {**chosen, "engine.fraction": str(float(chosen["engine.fraction"]) - 0.03)}
    assert exact(less).groups[0].engines[0].waves > 1


def test_fewer_cards_than_the_fewest_do_not_fit() -> None:
    chosen = job("GRPO worked fewest=8", NAMES)
    assert gets_through(exact(chosen).verdict, exact(chosen).peak)
    assert int(chosen["gpus"]) == 2
    less = exact(job("GRPO worked gpus=1 micro_batch=8 settled", NAMES))
    assert not gets_through(less.verdict, less.peak)
