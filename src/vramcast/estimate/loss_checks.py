"""What a framework's version can be asked of its head and loss."""

from __future__ import annotations

from collections.abc import Mapping

from vramcast.algorithms import learns
from vramcast.errors import Mistakes
from vramcast.types.job import Fact
from vramcast.types.recipe import Recipe
from vramcast.types.settings import Settings


def check_loss(settings: Settings, recipe: Recipe, facts: Mapping[str, Fact], mistakes: Mistakes) -> set[str]:
    """A fused head of a framework that has none is refused; gives the paths with mistakes."""
    if not learns(settings) or settings.loss != "fused" or recipe.fused_head:
        return set()
    mistakes.add(
        f"loss = fused: no fused head of {facts['framework'].value} is known",
        **{
            "from": str(facts["loss"].origin),
            "known": "trl since 1.15 (tiles), verl (chunks of tokens)",
            "help": "--set loss=full, or --set framework=... of the one that runs",
        },
    )
    return {"loss"}
