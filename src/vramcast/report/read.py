"""What `read --json` prints: the job and where each of its values came from."""

from __future__ import annotations

from msgspec import Struct

from vramcast.estimate import Resolved
from vramcast.types.job import Understanding
from vramcast.types.paths import Value
from vramcast.types.result import SCHEMA, Assumption, Ignored, Ineffective, UnreadKey


class Understood(Struct, frozen=True, kw_only=True):
    """A job with its origins."""

    schema: int
    job: dict[str, Value]
    origins: dict[str, str]
    assumptions: list[Assumption]
    unread: list[UnreadKey]
    ignored: list[Ignored]
    ineffective: list[Ineffective]
    no_effect: list[UnreadKey]
    warnings: list[str]


def understood(job: Resolved, question: Understanding, without: list[Ineffective]) -> Understood:
    """The job as the readers and defaults made it of a question; `without`: what was said and has no effect."""
    return Understood(
        schema=SCHEMA,
        job=job.job.to_file(),
        origins={path: str(fact.origin) for path, fact in job.facts.items() if path in job.job.values},
        assumptions=job.assumptions,
        unread=job.unread,
        ignored=job.ignored,
        ineffective=without,
        no_effect=[UnreadKey(item.key, item.where) for item in question.no_effect],
        warnings=job.warnings,
    )
