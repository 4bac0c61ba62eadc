"""Read the comments of a document, ask for their figures, and say or mend what is not so."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from tools.figures.answers import rules_table, shown, terms_table
from tools.figures.jobs import Job, named_jobs

from vramcast.errors import Refused

_COMMENT = re.compile(r"<!-- (?!job |Each )(?:(terms|sums) )?([^:]*?(?:: [^>]*?)?) -->")
_TABLE = re.compile(r"\n+((?:\|.*\n)+)")


class Edit(NamedTuple):
    """A place of the text, and what should stand there. No place: the comment's own, and why there is no figure."""

    start: int
    end: int
    text: str
    why: str = ""


class Checked(NamedTuple):
    """A document: the places that its comments cover, and of these what is not so."""

    covered: list[Edit]
    wrong: list[Edit]


def check(text: str) -> Checked:
    """Every figure asked for again."""
    names = named_jobs(text)
    covered: list[Edit] = []
    before = 0
    for comment in _COMMENT.finditer(text):
        if comment[1]:
            covered.append(_table(text, comment, names))
        elif ": " in comment[2]:
            covered += _figures(text, before, comment, names)
            before = comment.end()
    return Checked(covered, [edit for edit in covered if edit.why or text[edit.start : edit.end] != edit.text])


def _table(text: str, comment: re.Match[str], names: Mapping[str, Job]) -> Edit:
    found = _TABLE.match(text, comment.end())
    made = (terms_table if comment[1] == "terms" else rules_table)(comment[2], names)
    if found is None:
        return Edit(comment.start(), comment.end(), made, "no table follows")
    return Edit(found.start(1), found.end(1), made)


def _figures(text: str, before: int, comment: re.Match[str], names: Mapping[str, Job]) -> list[Edit]:
    """From the last figure to the first, each the last of its shape before the one that follows it."""
    words, _, figures = comment[2].partition(": ")
    place = comment.start(), comment.end()
    try:
        wanted = list(shown(words, figures, names))
    except Refused as refused:
        return [Edit(*place, "", "no answer: " + "; ".join(mistake.fact for mistake in refused.mistakes))]
    edits: list[Edit] = []
    end = comment.start()
    for figure in reversed(wanted):
        found = list(re.finditer(figure.shape, text[before:end]))
        if not found:
            return [*edits, Edit(*place, "", f"{figure.text} stands nowhere before it")]
        edits.append(Edit(before + found[-1].start(), before + found[-1].end(), figure.text))
        end = before + found[-1].start()
    return edits


def mended(text: str, wrong: list[Edit]) -> str:
    """The text with the figures of today; what has no place is left to its author."""
    for edit in sorted(wrong, reverse=True):
        if not edit.why:
            text = text[: edit.start] + edit.text + text[edit.end :]
    return text
