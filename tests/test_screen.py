"""The first screen: 40 lines of 80 columns that add up, name what binds, and count what they leave out."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
from msgspec import structs
from tests.cli.cases import answer as printed
from tests.group_jobs import INFERENCE, SFT, TRL, VERL, Values
from tests.random_jobs import said

from vramcast.estimate import forecast, peak_phase
from vramcast.levers import pull
from vramcast.memory.term import TERMS
from vramcast.report.screen import LINES
from vramcast.report.text import show
from vramcast.report.why import cause
from vramcast.report.words import Page, in_gib
from vramcast.types.result import Forecast, Ignored, Ineffective, UnreadKey

JOBS: dict[str, Values] = {
    "fits": SFT,
    "does not fit": {**SFT, "weights_dtype": "fp32"},
    "no card": {path: value for path, value in SFT.items() if path != "gpu"},
    "many GPUs": {**SFT, "gpus": 8, "shard": "fsdp2"},
    "inference": INFERENCE,
    "trl engine": TRL,
    "trl engine, full": {**TRL, "engine.fraction": 0.9},
    "verl": VERL,
    "verl, small cards": {**VERL, "gpu": "a100-sxm-40gb", "gpus": 2, "engine.fraction": 0.5},
    "engine that does not start": {**TRL, "engine.fraction": 0.2, "engine.max_len": 32768},
    "padding-free": {**VERL, "token_budget": 131072, "logprob.token_budget": 131072, "engine.fraction": 0.3},
}


@cache
def answer_of(name: str) -> Forecast:
    question = said(JOBS[name])
    answer = forecast(question)
    return structs.replace(answer, levers=pull(question, answer))


def crowded(answer: Forecast) -> Forecast:
    """The same with a hundred of everything that a user may have said in vain."""
    return structs.replace(
        answer,
        unread=[UnreadKey(f"some.key.{n}", f"file.sh:{n}") for n in range(100)],
        ineffective=[Ineffective(f"path.{n}", n, f"reason {n} " * 5) for n in range(100)],
        ignored=[Ignored(f"path.{n}", n, "a file", n + 1, "another file") for n in range(100)],
        warnings=[f"warning {n} " + "words " * 40 for n in range(100)] + ["x = y is not modelled yet: left out"],
    )


def screen(answer: Forecast, **options: Any) -> list[str]:
    return show(answer, **options).splitlines()


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("full_of", [lambda answer: answer, crowded], ids=["plain", "crowded"])
def test_it_is_one_screen(name: str, full_of: Any) -> None:
    lines = screen(full_of(answer_of(name)))
    assert len(lines) <= LINES == 40
    assert [line for line in lines if len(line) > 80 and " " in line.strip()] == []


@pytest.mark.parametrize("name", JOBS)
def test_what_is_printed_adds_up(name: str) -> None:
    """The terms, and the rest, to the total, in what is read and not only in bytes."""
    answer = answer_of(name)
    for lines in (screen(answer), screen(crowded(answer))):
        start = next(at for at, line in enumerate(lines) if line.startswith("at the peak"))
        end = next(at for at, line in enumerate(lines) if line.startswith("  total "))
        hundredths = [round(float(line[28:37].replace(",", "")) * 100) for line in lines[start + 1 : end + 1]]
        assert sum(hundredths[:-1]) == hundredths[-1] == round(answer.peak.bytes * 100 / (1 << 30))
    bytes_of = [int(found[1].replace(",", "")) for line in screen(answer, full=True)
                if (found := re.match(r"  \S.{27} {0,9}[\d.,]+ +([\d,]{4,}|0)(?:  |$)", line))]  # fmt: skip
    total = bytes_of.index(answer.peak.bytes) if answer.peak.bytes in bytes_of else -1
    assert sum(bytes_of[:total]) == answer.peak.bytes


@pytest.mark.parametrize("places", [2, 3])
def test_rounded_parts_add_up_to_the_rounded_whole(places: int) -> None:
    for sizes in ([1, 2, 3], [1 << 30] * 7, [(1 << 30) // 3] * 3, [0, 5 << 20, 5 << 20, 5 << 20], [10**10, 10**9, 7]):
        for rest in (False, True):
            cells = in_gib(sizes, sum(sizes), places, rest=rest)
            unit = 10**places
            assert sum(round(float(cell.replace(",", "")) * unit) for cell in cells) == round(
                sum(sizes) * unit / (1 << 30)
            )
            assert all(abs(float(cell.replace(",", "")) - size / (1 << 30)) < len(sizes) / unit
                       for cell, size in zip(cells, sizes, strict=True))  # fmt: skip


@pytest.mark.parametrize("name", JOBS)
def test_it_says_what_was_priced_and_why(name: str) -> None:
    answer = answer_of(name)
    text = " ".join(show(answer).split())
    assert f"job {JOBS[name]['model']}, {JOBS[name]['algorithm']}" in text
    framework, version = str(JOBS[name]["framework"]).split("==")
    assert f"priced {framework} {version} " in text
    if answer.verdict is not None:
        assert f"on {JOBS[name].get('gpus', 1)} × {JOBS[name]['gpu']}, " in text
    phase = peak_phase(answer)
    assert f"peak {phase.name} · {phase.instant} " in text
    largest = max(phase.terms, key=lambda term: term.bytes)
    assert f"why the largest term is {largest.name}" in text
    micro = JOBS[name].get("token_budget") or JOBS[name]["micro_batch"]
    assert f"{micro:,}" in text


def test_an_assumed_version_is_said_to_be_one() -> None:
    answer = forecast(said({path: value for path, value in SFT.items() if path != "framework"}))
    assert answer.framework.assumed
    assert "others may differ (--set framework=trl==VERSION)" in " ".join(show(answer).split())
    named = forecast(said(SFT)).framework
    assert (named.value, named.assumed) == ("trl==1.16.0", False)


def test_a_range_that_decides_has_a_term_and_a_cause() -> None:
    """TIGHT: where the high end stands, what makes it, and why."""
    tight = [answer for answer in map(answer_of, JOBS) if answer.verdict == "tight" and answer.peak.margin_bytes]
    assert tight
    for answer in tight:
        lines = screen(answer)
        text = " ".join(" ".join(lines).split())
        assert "at worst" in lines[0] or "at best" in lines[0] or "engine may not start" in lines[0]
        if "at worst" in lines[0]:
            assert re.search(r"at worst [\d.,]+ GiB in \S+ · [\w ]+, as .+ may be [\d.,]+ \wiB there: \w", text)


def test_every_term_has_a_cause_for_its_range() -> None:
    """In words: one line, no formula."""
    phase = peak_phase(answer_of("fits"))
    for name in TERMS:
        words = cause(structs.replace(phase.terms[0], name=name), phase)
        assert words
        assert not words.endswith(".")
        assert "\n" not in words


def test_an_engine_that_does_not_start_is_not_room_to_spare() -> None:
    answer = answer_of("engine that does not start")
    first = screen(answer)[0]
    assert answer.verdict == "does_not_fit"
    assert "to spare" not in first


def test_what_is_cut_is_counted() -> None:
    """Of a hundred of each kind: how many are left; nothing is silent, and `--full` has all."""
    for name in JOBS:
        answer = crowded(answer_of(name))
        text = "\n".join(screen(answer))
        for title, count in (("unread", 100), ("left out", 1), ("without effect", 100), ("overridden", 100)):
            block = text.partition(f"\n{title}")[2]
            assert block, title
            assert f"{count} (--full)" in block.split("\n")[0] or re.search(r"more \(--full\)", block) or count == 1
        everything = "\n".join(screen(answer, full=True))
        assert all(item.key in everything for item in answer.unread)
        assert all(f"{item.path} = " in everything for item in [*answer.ineffective, *answer.assumptions])


def test_values_without_effect_stand_together_by_their_reason() -> None:
    why = "the trainer's book-keeping"
    answer = structs.replace(answer_of("fits"), ineffective=[Ineffective(f"trainer.key{n}", n, why) for n in range(3)])
    assert f"  trainer.key0, trainer.key1, trainer.key2: {why}" in screen(answer)
    assert f"  trainer.key1 = 1: {why}" in screen(answer, full=True)


def test_what_was_not_understood_stands_before_what_was_assumed() -> None:
    lines = screen(crowded(answer_of("fits")))
    starts = [next(at for at, line in enumerate(lines) if line.startswith(title))
              for title in ("unread", "left out", "warnings", "at the peak", "assumed")]  # fmt: skip
    assert starts == sorted(starts)


def test_a_phase_is_there_once_with_its_fullest_instant() -> None:
    answer = answer_of("fits")
    lines = screen(answer)
    start = next(at for at, line in enumerate(lines) if line.startswith("phase "))
    shown = [line.split()[0] for line in lines[start + 1 : lines.index("", start)]]
    assert shown == ["load", "forward", "loss", "backward", "step"]
    full = "\n".join(screen(answer, full=True))
    assert full.count("backward · ") > 8


def test_a_bar_is_for_a_terminal_only() -> None:
    answer = answer_of("does not fit")
    assert not set("█░▓") & set(show(answer))
    bars = screen(answer, page=Page(100, bars=True))
    drawn = [line for line in bars if "█" in line]
    assert len(drawn) == 5
    assert max(map(len, drawn)) <= 100
    assert any("▓" in line for line in drawn)  # beyond the card
    assert len(bars) <= LINES


@pytest.mark.parametrize("columns", ["60", "100", "120"])
def test_columns_are_respected(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    lines = printed("check examples/trl_sft.yaml --gpu l4").stdout.splitlines()
    assert len(lines) <= LINES
    prose = [line for line in lines if re.match(r"(job|why|priced|peak) ", line)]
    assert max(map(len, prose)) <= int(columns)


def test_levers_are_shown_where_they_are_needed() -> None:
    needed, not_needed = screen(answer_of("does not fit")), screen(answer_of("fits"))
    at = needed.index("change first (all: `vramcast levers`)")
    assert 1 <= len([line for line in needed[at + 1 :] if re.match(r"  \S", line)]) <= 3
    assert len(not_needed) - not_needed.index("", len(not_needed) - 3) == 2
