"""The guide `docs/articles.md`: written here, with every figure computed when the page is made."""

from __future__ import annotations

from vramcast.rules_of_thumb.guide.intro import intro
from vramcast.rules_of_thumb.guide.numbers import numbers
from vramcast.rules_of_thumb.guide.rulebook import rulebook
from vramcast.rules_of_thumb.guide.sizing import sizing
from vramcast.rules_of_thumb.guide.tips import tips
from vramcast.rules_of_thumb.guide.wrong import wrong


def page() -> str:
    """The whole page, as markdown."""
    lines = [*intro(), *rulebook(), *numbers(), *wrong(), *tips(), *sizing()]
    return "\n".join(lines).rstrip() + "\n"
