"""The share of the card an engine gets, and the number of cards a job needs: found by asking again, not by a rule."""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal

from vramcast.estimate import resolve
from vramcast.estimate.rollout import sequences_per_engine
from vramcast.rules_of_thumb.guide.ask import Job, exact, refusal, said
from vramcast.types.result import Forecast, gets_through

_COUNTS = (1, 2, 4, 8, 16)
_RANKS = (1, 2, 4, 8)
_HUNDREDTH = Decimal("0.01")


def settled(job: Job) -> dict[str, str]:
    """The job with the smallest `engine.fraction` (in hundredths) that holds the whole rollout at once.

    Never more than leaves the trainer its room; never less than one sequence needs, without which nothing starts.
    """
    trial = {**job, "engine.fraction": "0.9"}
    engine = exact(trial).groups[0].engines[0]
    low, high = Decimal(str(engine.fraction_low)), Decimal(str(engine.fraction_high))
    capacity = exact(trial).groups[0].capacity_bytes
    assert capacity is not None
    settings = resolve(said(trial)).settings
    others = sequences_per_engine(settings) - 1
    more = Decimal(others * settings.seq_len * engine.kv_bytes_per_token) / capacity
    wanted = (low + more).quantize(_HUNDREDTH, rounding=ROUND_CEILING)
    chosen = max(min(wanted, high), low)
    return {**job, "engine.fraction": str(min(chosen, Decimal("0.95")))}


def smallest(job: Job, *, responses: int = 0) -> tuple[dict[str, str], Forecast]:
    """The job on as few GPUs as it fits, under FSDP2, with the smallest `engine.tp` that fits there.

    With `responses` the step's responses stay the same and each GPU takes its share of them, at least one. Gives the
    last one tried when none fits.
    """
    tried: list[tuple[dict[str, str], Forecast]] = []
    for gpus in _COUNTS:
        for ranks in _RANKS:
            layout = on_gpus(job, gpus, ranks, responses)
            if gpus % ranks or refusal({**layout, "engine.fraction": "0.9"}):
                continue
            chosen = settled(layout)
            tried.append((chosen, exact(chosen)))
            if gets_through(tried[-1][1].verdict, tried[-1][1].peak):
                return tried[-1]
    return tried[-1]


def on_gpus(job: Job, gpus: int, ranks: int = 1, responses: int = 0) -> dict[str, str]:
    """The job under FSDP2 on some GPUs, its engine cut over `ranks` of them."""
    layout = {**job, "gpus": str(gpus), "engine.tp": str(ranks)}
    if gpus > 1:
        layout["shard"] = "fsdp2"
    if responses:
        layout["micro_batch"] = str(max(responses // gpus, 1))
    return layout
