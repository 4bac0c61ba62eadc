"""What `bench` prints: a line a quantity, then what is wrong and what was skipped, with the reasons; or a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from vramcast.validation import Bench, Limit, Reading, Summary, is_exact

_REASONS_SHOWN = 12
_WORST_SHOWN = 12
_NAMES = {
    ("models", "params"): "parameters",
    ("inference", "kv_bytes_per_token"): "cache of a token",
    ("inference", "weights"): "weights of an engine's rank",
    ("inference", "allocated_peak"): "allocated while generating",
    ("training", "allocated_after_load"): "allocated after loading",
    ("training", "allocated_peak"): "allocated while training",
    ("training", "static"): "allocated between steps",
    ("training", "allocated_after_step"): "allocated after a step, lengths unknown",
    ("training", "reserved_peak"): "reserved while training",
    ("training", "process_peak"): "reserved and the context",
    ("training", "device_peak"): "on the card while training",
    ("training", "oom"): "ran out of memory",
    ("training", "oom (inferred)"): "ran out of memory, as far as the source shows",
}


def show_bench(answer: Bench) -> str:
    """The summary, the readings that are farthest off, and the reasons of the skipped ones."""
    return "\n".join(_lines(answer))


def _lines(answer: Bench) -> Iterator[str]:
    labels = [_label(row) for row in answer.summary]
    width = max(26, *(len(label) + 1 for label in labels))
    head = f"{'readings':>9}{'exact':>8}{'median':>10}{'worst':>10}{'in range':>10}{'skipped':>9}"
    yield f"{'quantity':<{width + 2}}{head}"
    for label, row in zip(labels, answer.summary, strict=True):
        yield (
            f"  {label:<{width}}{row.readings:>9,}{row.exact:>8,}{_percent(row.median_error):>10}"
            f"{_percent(row.worst_error):>10}{_share(row.covered):>10}{row.skipped:>9,}{'' if row.holds else '  ✗'}"
        )
    yield from _wrong([row for row in answer.rows if not row.skipped_reason and not is_exact(row)])
    yield from _skipped([row for row in answer.rows if row.skipped_reason])
    yield from _broken(answer.summary)


def _label(row: Summary) -> str:
    """The quantity; of training said so, because inference has some of the same name."""
    return f"{row.workload}: {row.quantity}" if row.workload.startswith("training") else row.quantity


def _percent(error: float | None) -> str:
    return "–" if error is None else f"{100 * error:.3f} %"


def _share(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def _wrong(found: list[Reading]) -> Iterator[str]:
    """The farthest first."""
    if found:
        yield "farthest off"
    for row in sorted(found, key=lambda row: -abs(row.error or 0))[:_WORST_SHOWN]:
        off = "" if row.error is None else f" ({100 * row.error:+.3f} %)"
        yield f"  {row.id}: {row.quantity} {_predicted(row)}, measured {_number(row.measured)}{off}"
        if row.known_reason:
            yield f"    {row.known_reason}"
    if len(found) > _WORST_SHOWN:
        yield f"  {len(found) - _WORST_SHOWN:,} more: --json has them all"


def _predicted(row: Reading) -> str:
    return _number(row.predicted) if row.predicted is not None else f"{_number(row.low)} to {_number(row.high)}"


def _number(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, (int, float)) else str(value)


def _skipped(found: list[Reading]) -> Iterator[str]:
    if found:
        yield "skipped"
    reasons = Counter(str(row.skipped_reason) for row in found)
    for reason, count in reasons.most_common(_REASONS_SHOWN):
        first = next(row.id for row in found if row.skipped_reason == reason)
        others = f" and {count - 1:,} more" if count > 1 else ""
        yield f"  {first}{others}: {reason}"
    if len(reasons) > _REASONS_SHOWN:
        yield f"  {len(reasons) - _REASONS_SHOWN} more reasons: --json has them all"


def _broken(found: Sequence[Summary]) -> Iterator[str]:
    for row in found:
        if not row.holds and row.limit is not None:
            said = ", ".join(f"{name} {_percent(limit)}" for name, limit in _limits(row.limit))
            yield f"limit broken: {_label(row)} must stay within {said}"


def markdown_bench(answer: Bench) -> str:
    """A table of the quantities that were compared. Verdicts and ranges have no error: how many are right."""
    lines = [
        "| quantity | readings | compared | median error | worst error | in range | limit |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for row in answer.summary:
        compared = row.readings - row.skipped
        if compared:
            found = f"{_percent(row.median_error)} | {_percent(row.worst_error)}"
            if row.median_error is None:
                found = f"{row.exact:,} of {compared:,} right | "
            workload, _, packed = row.workload.partition(", ")
            name = ", ".join(filter(None, (_NAMES.get((workload, row.quantity), row.quantity), packed)))
            inside = _share(row.covered)
            lines.append(f"| {name} | {row.readings:,} | {compared:,} | {found} | {inside} | {_limit(row)} |")
    return "\n".join(lines)


def _limit(row: Summary) -> str:
    if row.limit is None:
        return "exact" if row.quantity == "params" else ""
    return ", ".join(f"{name} {100 * share:g} %" for name, share in _limits(row.limit))


def _limits(limit: Limit) -> Iterator[tuple[str, float]]:
    """The limits that are set, by the words of the table."""
    named = {"median": limit.median, "worst": limit.worst, "right": limit.right, "in range": limit.covered}
    return ((name, share) for name, share in named.items() if share is not None)
