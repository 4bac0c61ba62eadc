"""The guide `docs/articles.md`: written here, with every figure computed when the page is made."""

from __future__ import annotations

from vramcast.articles.guide.intro import intro
from vramcast.articles.guide.numbers import numbers
from vramcast.articles.guide.rulebook import rulebook
from vramcast.articles.guide.sizing import sizing
from vramcast.articles.guide.tips import tips
from vramcast.articles.guide.wrong import wrong


def page() -> str:
    """The whole page, as markdown."""
    lines = [*intro(), *rulebook(), *numbers(), *wrong(), *tips(), *sizing()]
    return "\n".join(lines).rstrip() + "\n"
