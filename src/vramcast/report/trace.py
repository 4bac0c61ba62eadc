"""What `vramcast trace` prints: the formulas and the trace side by side, the largest disagreement first."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from vramcast import PREDICTIONS, __version__
from vramcast.report.why import verdict_line
from vramcast.trace import Judged, Traced
from vramcast.types.result import SCHEMA, Forecast, Peak, PhaseBytes, Verdict, When
from vramcast.units import GIB, MIB

SHOWN = 12
"""rows of the text"""
_SMALL = MIB
"""rows that differ by less are said to agree"""


class Counters(Struct, frozen=True, kw_only=True):
    """Bytes of one instant by one method."""

    allocated_bytes: int
    reserved_bytes: int
    bytes: int
    """of the device, the CUDA context counted"""


class InstantRow(Struct, frozen=True, kw_only=True):
    """One instant by both methods; null where a method has no such instant."""

    when: When
    phase: str
    instant: str
    trace: Counters
    formula: Counters | None


class TermRow(Struct, frozen=True, kw_only=True):
    """One term at one instant by both methods."""

    when: When
    phase: str
    instant: str
    term: str
    trace_bytes: int
    formula_bytes: int


class OutOfMemoryRow(Struct, frozen=True, kw_only=True):
    """Where the replay on this card ends."""

    phase: str
    instant: str
    when: str
    asked_bytes: int
    operator: str
    module: str


class TraceReport(Struct, frozen=True, kw_only=True):
    """The answer of `trace`. `rows` are sorted: the largest disagreement first."""

    schema: int
    version: str
    predictions: int
    versions: dict[str, str]
    patches: list[str]
    assumed: list[str]
    verdict: Verdict | None
    peak: Peak
    formula_verdict: Verdict | None
    formula_peak: Peak | None
    formula_unknown: str
    """why the formulas give no answer; empty if they do"""
    instants: list[InstantRow]
    rows: list[TermRow]
    retries: int
    out_of_memory: OutOfMemoryRow | None
    events: int


def trace_report(traced: Traced, formula: Forecast | None, unknown: str = "") -> TraceReport:
    """Both answers to one job, joined by instant and term. Without formulas: why (`unknown`)."""
    answer = traced.forecast
    known = {_key(phase): phase for phase in formula.groups[0].phases} if formula is not None else {}
    phases = answer.groups[0].phases
    rows = [row for phase in phases if (other := known.get(_key(phase))) for row in _rows(phase, other)]
    return TraceReport(
        schema=SCHEMA,
        version=__version__,
        predictions=PREDICTIONS,
        versions=traced.judged.recording.versions,
        patches=traced.judged.recording.patches,
        assumed=traced.judged.recording.assumed,
        verdict=answer.verdict,
        peak=answer.peak,
        formula_verdict=formula.verdict if formula is not None else None,
        formula_peak=formula.peak if formula is not None else None,
        formula_unknown=unknown,
        instants=[_instant(phase, known.get(_key(phase))) for phase in phases],
        rows=sorted(rows, key=lambda row: -abs(row.trace_bytes - row.formula_bytes)),
        retries=traced.judged.replayed.retries,
        out_of_memory=_out_of_memory(traced),
        events=len(traced.judged.recording.events),
    )


def _key(phase: PhaseBytes) -> tuple[str, str, str]:
    return phase.when, phase.name, phase.instant


def _rows(phase: PhaseBytes, other: PhaseBytes) -> Iterator[TermRow]:
    traced = {term.name: term.bytes for term in phase.terms}
    formula = {term.name: term.bytes for term in other.terms}
    for name in {**traced, **formula}:
        yield TermRow(
            when=phase.when,
            phase=phase.name,
            instant=phase.instant,
            term=name,
            trace_bytes=traced.get(name, 0),
            formula_bytes=formula.get(name, 0),
        )


def _instant(phase: PhaseBytes, other: PhaseBytes | None) -> InstantRow:
    return InstantRow(
        when=phase.when,
        phase=phase.name,
        instant=phase.instant,
        trace=_counters(phase),
        formula=_counters(other) if other is not None else None,
    )


def _counters(phase: PhaseBytes) -> Counters:
    process = phase.processes[0]
    return Counters(allocated_bytes=process.allocated_bytes, reserved_bytes=process.reserved_bytes, bytes=phase.bytes)


def _out_of_memory(traced: Traced) -> OutOfMemoryRow | None:
    end = traced.judged.failed
    if end is None or end.mark is None:
        return None
    recording = traced.judged.recording
    storage = recording.storages[end.storage]
    return OutOfMemoryRow(
        phase=end.mark.phase,
        instant=end.mark.instant,
        when=end.mark.when,
        asked_bytes=end.asked,
        operator=recording.names[storage.op],
        module=recording.names[storage.module],
    )


def show_trace(report: TraceReport, traced: Traced) -> str:
    """The report in 80 columns."""
    blocks = [_head(report, traced), _instants(report), _differences(report), _notes(report)]
    return "\n\n".join("\n".join(lines) for block in blocks if (lines := list(block)))


def _head(report: TraceReport, traced: Traced) -> Iterator[str]:
    yield f"trace    {verdict_line(traced.forecast)}"
    peak = report.formula_peak
    if peak is None:
        yield f"formula  none: {report.formula_unknown}"
    else:
        yield f"formula  {gib(peak.bytes)}, {_percent(peak.bytes, report.peak.bytes)} of the trace"
    yield f"peak     {moment(report.peak.phase, report.peak.instant, report.peak.when)}"
    end = report.out_of_memory
    if end is not None:
        yield f"ends     {moment(end.phase, end.instant, end.when)}: no room for {mib(end.asked_bytes)} MiB of"
        yield f"         {end.operator}{f' in {end.module}' if end.module else ''}"


def _instants(report: TraceReport) -> Iterator[str]:
    yield f"{'MiB':<34}{'allocated':>21}  {'reserved':>21}"
    yield f"{'phase · instant':<34}{'trace':>11}{'formula':>10}  {'trace':>11}{'formula':>10}"
    when = ""
    for row in report.instants:
        if row.when != when:
            when = row.when
            yield "  first step" if when == "first" else "  every later step"
        found = row.formula
        allocated = mib(found.allocated_bytes) if found else "–"
        reserved = mib(found.reserved_bytes) if found else "–"
        name = f"    {row.phase} · {row.instant}"
        yield (
            f"{name:<34}{mib(row.trace.allocated_bytes):>11}{allocated:>10}"
            f"  {mib(row.trace.reserved_bytes):>11}{reserved:>10}"
        )


def _differences(report: TraceReport) -> Iterator[str]:
    apart = [row for row in report.rows if abs(row.trace_bytes - row.formula_bytes) >= _SMALL]
    if apart:
        yield f"{'rows apart, largest first (MiB)':<50}{'trace':>10}{'formula':>10}{'apart':>9}"
    for row in apart[:SHOWN]:
        run = "" if row.when == "first" else ", later"
        name = f"  {row.term}  {row.phase} · {row.instant}{run}"
        apart_by = (row.formula_bytes - row.trace_bytes) / MIB
        yield f"{name:<50}{mib(row.trace_bytes):>10}{mib(row.formula_bytes):>10}{apart_by:>+9.1f}"
    if len(apart) > SHOWN:
        yield f"  {len(apart) - SHOWN} more: --json has them all"
    if report.rows:
        yield f"{len(report.rows) - len(apart)} of {len(report.rows)} rows agree within 1 MiB"


def _notes(report: TraceReport) -> Iterator[str]:
    shown = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    yield f"traced with {shown}"
    for line in report.assumed:
        yield f"assumed: {line}"
    if report.retries:
        often = "once" if report.retries == 1 else f"{report.retries} times"
        yield f"cached blocks are freed {often} before it fits: slow"


def moment(phase: str, instant: str, when: str) -> str:
    return f"{phase} · {instant} ({'first step' if when == 'first' else 'every later step'})"


def _percent(size: int, of: int) -> str:
    return f"{100 * size / of:.2f} %" if of else "–"


def gib(size: int) -> str:
    return f"{size / GIB:,.2f} GiB"


def mib(size: int) -> str:
    return f"{size / MIB:,.1f}"


class TermsOf(Struct, frozen=True):
    """A term of one instant."""

    name: str
    bytes: int


def terms_of(phase: PhaseBytes) -> list[TermsOf]:
    """What holds an instant, the largest first."""
    return [TermsOf(term.name, term.bytes) for term in phase.terms]


def instant_line(phase: PhaseBytes) -> str:
    """An instant and its counters."""
    process = phase.processes[0]
    name = f"    {phase.name} · {phase.instant}"
    return f"{name:<34}{mib(process.allocated_bytes):>12}{mib(process.reserved_bytes):>12}"


def write_snapshot_of(judged: Judged, path: str) -> None:
    """The predicted snapshot of PyTorch's allocator, in the format of its viewer."""
    from vramcast.trace.snapshot import write_snapshot

    write_snapshot(judged.recording, judged.settings, path)


def write_flame(judged: Judged, path: str) -> None:
    """The peak by module: a tree on standard output for `-`, else folded stacks in a file.

    Raises:
        Refused: the file cannot be written.
    """
    from vramcast.errors import refuse
    from vramcast.trace.flame import folded, tree

    event = max(judged.replayed.spans, key=lambda span: span.allocated).event
    if path == "-":
        print("\nthe peak by module")
        print("\n".join(tree(judged.recording, event)))
        return
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(folded(judged.recording, event)) + "\n")
    except OSError as error:
        raise refuse(f"cannot write {path}: {error.strerror}") from None
