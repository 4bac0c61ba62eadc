"""Parameters: a model's config.json against the number that was counted on the real class."""

from __future__ import annotations

from vramcast.errors import Refused
from vramcast.models.describe import build_layout
from vramcast.validation.reading import Reading
from vramcast.validation.rows import Row


def read_model(row: Row) -> Reading:
    """The exact total of a model, all its parameters in elements; a refusal is the reason why it is skipped."""
    predicted, reason = None, None
    try:
        predicted = int(build_layout(row.id, row.config or {}, row.where).params)
    except Refused as refused:
        reason = "refused: " + "; ".join(mistake.fact for mistake in refused.mistakes)
    if reason is None and row.params_exact is None:
        reason = "nobody could count it: there is no exact number to compare with"
    return Reading(
        id=row.id,
        workload="models",
        stack=row.stack,
        tuning=None,
        quantity="params",
        unit="1",
        score="relative",
        measured=row.params_exact,
        predicted=predicted,
        low=predicted,
        high=predicted,
        gold=row.gold,
        confidence=row.confidence,
        skipped_reason=reason,
    )
