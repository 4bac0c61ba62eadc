"""A forecast as text: the verdict first, 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vramcast.estimate import peak_phase
from vramcast.report.bars import show_timeline
from vramcast.types.paths import Value
from vramcast.types.result import Forecast, LeverResult, Peak, PhaseBytes, TermBytes
from vramcast.units import GIB, gib

WIDTH = 80
_WORDS = {"fits": "FITS", "tight": "TIGHT", "does_not_fit": "DOES NOT FIT", None: "NEEDS"}


def show(answer: Forecast, *, levers: bool = True) -> str:
    """The whole report of `check`; without levers where none were pulled."""
    phase = peak_phase(answer)
    blocks = [
        _head(answer),
        _terms(phase),
        show_timeline(answer),
        _engines(answer),
        _host(answer),
        _cards(answer),
        _listed("assumed", (f"{item.path} = {value(item.value)}  ({item.origin})" for item in answer.assumptions)),
        _listed("overridden", (f"{item.path} = {value(item.value)} ({item.origin}) by {value(item.winner)} "
                               f"({item.winner_origin})" for item in answer.ignored)),
        _listed("without effect", (f"{item.path} = {value(item.value)}: {item.why}" for item in answer.ineffective)),
        _listed("unread", (f"{item.key}  ({item.where})" for item in answer.unread)),
        _listed("warnings", answer.warnings),
        _lever(answer) if levers else (),
    ]  # fmt: skip
    return "\n\n".join("\n".join(lines) for block in blocks if (lines := list(block)))


def verdict_line(answer: Forecast) -> str:
    """The first line: the verdict, the need and the room."""
    peak = answer.peak
    word = _WORDS[answer.verdict]
    if peak.capacity_bytes is None or peak.margin_bytes is None:
        return f"{word} {gib(peak.bytes)} on one GPU"
    gpu = answer.groups[0].gpu
    room = f"{gib(abs(peak.margin_bytes))} {'to spare' if peak.margin_bytes >= 0 else 'too much'}"
    return f"{word}: {gib(peak.bytes)} of {gib(peak.capacity_bytes)} on {gpu}, {room}"


def value(raw: Value) -> str:
    """A path's value as a user writes it."""
    if isinstance(raw, bool) or raw is None:
        return str(raw).lower()
    if isinstance(raw, list):
        return ",".join(str(part) for part in raw)
    return str(raw)


def moment(phase: PhaseBytes | Peak, name: str) -> str:
    """`backward · first block, from the second step on`."""
    run = "first step" if phase.when == "first" else "every later step"
    return f"{name} · {phase.instant} ({run})"


def _head(answer: Forecast) -> Iterator[str]:
    peak = answer.peak
    yield verdict_line(answer)
    yield f"peak   {moment(peak, peak.phase)}"
    yield f"range  {gib(peak.low_bytes)} to {gib(peak.high_bytes)}"


def _terms(phase: PhaseBytes) -> Iterator[str]:
    yield f"{'what holds it at the peak':<30}{'GiB':>9}  {'bytes':>17}"
    for term in phase.terms:
        span = "" if term.low_bytes == term.high_bytes else f"  {_gib(term.low_bytes)} to {_gib(term.high_bytes)}"
        yield f"  {_owned(term):<28}{_gib(term.bytes):>9}  {term.bytes:>17,}{span}"
    yield f"  {'total':<28}{_gib(phase.bytes):>9}  {phase.bytes:>17,}"


def _owned(term: TermBytes) -> str:
    """The term's name, with its role where it is not the policy's and not said by the name."""
    plain = term.role == "policy" or term.name.startswith("engine.")
    return term.name if plain else f"{term.name} ({term.role})"


def _engines(answer: Forecast) -> Iterator[str]:
    for group in answer.groups:
        for engine in group.engines:
            yield "engine"
            yield f"  pool   {gib(engine.pool_bytes)} a GPU, {gib(engine.kv_bytes)} of it for keys and values"
            yield (
                f"  cache  {engine.kv_tokens:,} tokens of {engine.kv_bytes_per_token:,} bytes, "
                f"{engine.max_concurrency:,} of the longest at once"
            )
            yield f"  waves  {engine.waves} for one rollout, if every response is as long as allowed"
            if engine.fraction_low is not None and engine.fraction_high is not None:
                yield f"  {_window(engine.fraction_low, engine.fraction_high)}"


def _window(low: float, high: float) -> str:
    if low <= high:
        return f"engine.fraction from {low} to {high}"
    return f"no engine.fraction works: {low} is needed, {high} is free beside the rest"


def _host(answer: Forecast) -> Iterator[str]:
    for node in answer.nodes:
        room = f" of {gib(node.host_capacity_bytes)}" if node.host_capacity_bytes is not None else ""
        yield f"host memory of one machine   {gib(node.host_bytes)}{room}"
        for term in node.terms:
            yield f"  {_owned(term):<28}{_gib(term.bytes):>9}"


def _cards(answer: Forecast) -> Iterator[str]:
    if answer.cards:
        yield "cards of the catalogue"
    for card in answer.cards:
        yield f"  {card.gpu:<28}{_gib(card.capacity_bytes):>9}  {_WORDS[card.verdict].lower()}"


def _listed(title: str, lines: Iterable[str]) -> Iterator[str]:
    found = list(lines)
    if found:
        yield title
    for line in found:
        yield from _wrapped(line)


def _wrapped(line: str) -> Iterator[str]:
    indent = "  "
    while len(line) > WIDTH - len(indent):
        cut = line.rfind(" ", 1, WIDTH - len(indent))
        if cut <= 0:
            break
        yield indent + line[:cut].rstrip()
        line, indent = line[cut + 1 :], "      "
    yield indent + line


def _lever(answer: Forecast) -> Iterator[str]:
    yield "change first"
    if not answer.levers:
        yield "  nothing that is modelled lowers the peak: `vramcast levers` says why"
        return
    best = answer.levers[0]
    yield f"  {edits(best)}  ({best.price})"
    outcome = f": {_WORDS[best.verdict].lower()}" if best.verdict else ""
    yield f"  peak {gib(best.peak_bytes)}, saves {gib(best.saves_bytes)}{outcome}"


def edits(lever: LeverResult) -> str:
    """The edit in the user's own keys where they have any, else in paths."""
    chosen = lever.native or lever.set
    return ", ".join(f"{key}: {value(raw)}" if lever.native else f"--set {key}={value(raw)}"
                     for key, raw in chosen.items())  # fmt: skip


def _gib(size: int) -> str:
    return f"{size / GIB:,.3f}" if size >= GIB // 1000 or not size else f"{size / GIB:.6f}"
