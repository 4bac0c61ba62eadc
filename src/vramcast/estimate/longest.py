"""How many tokens a micro-batch may hold: without padding its length is data, and full length is the worst of it."""

from __future__ import annotations

from vramcast.algorithms import is_grouped, learns
from vramcast.errors import Refused
from vramcast.estimate import edited, forecast, resolve
from vramcast.estimate.lengths import total_len
from vramcast.estimate.resolve import Resolved
from vramcast.types.job import Understanding
from vramcast.types.result import Forecast, gets_through
from vramcast.types.settings import Settings

_LEAST = 128
"""fewer tokens in a micro-batch are no training"""
_PARTS = 64
"""the answer is exact to one part of so many of the full length, and a multiple of the least"""


def fits_up_to_tokens(said: Understanding, answer: Forecast) -> int | None:
    """The most tokens of a micro-batch with which a job gets through that does not at full length; None where its
    length is not data, or where it does not however short it is."""
    if answer.verdict is None or gets_through(answer.verdict, answer.peak):
        return None
    job = resolve(said)
    settings = job.settings
    if not learns(settings) or settings.padding != "free" or settings.packing:
        return None
    full = _full(settings)
    step = max(full // _PARTS // _LEAST, 1) * _LEAST
    fits, fails = 0, -(-full // step)  # in steps
    while fails - fits > 1:
        middle = (fits + fails) // 2
        if _fits(said, job, middle * step):
            fits = middle
        else:
            fails = middle
    return fits * step or None


def _full(settings: Settings) -> int:
    """Tokens of the largest micro-batch, of learning or of scoring."""
    length = total_len(settings)
    learns = settings.token_budget or settings.micro_batch * length
    scores = settings.logprob_token_budget or (settings.logprob_micro_batch or 0) * length
    return max(learns, scores, length)


def _fits(said: Understanding, job: Resolved, tokens: int) -> bool:
    try:
        found = forecast(edited(said, _with(job, tokens), "shorter sequences"), cards=False)
    except Refused:
        return False
    return gets_through(found.verdict, found.peak)


def _with(job: Resolved, tokens: int) -> dict[str, object]:
    """Micro-batches of at most so many tokens, in every pass. What the engine accepts stays."""
    settings = job.settings
    if not is_grouped(settings):
        return {"micro_batch": 1, "seq_len": tokens, **({"token_budget": tokens} if settings.token_budget else {})}
    prompt = min(settings.prompt_len or 1, max(tokens // 2, 1))
    response = min(settings.response_len or tokens, max(tokens - prompt, 1))
    budgets = ("token_budget", "logprob.token_budget", "reference.logprob.token_budget")
    accepts = settings.engine_max_len or (total_len(settings) if job.recipe.engine_len_from_job else None)
    kept = {"engine.max_len": accepts} if settings.engine_kind == "vllm" and accepts else {}
    return {**dict.fromkeys(budgets, tokens), "prompt_len": prompt, "response_len": response, **kept}
