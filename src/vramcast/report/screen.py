"""The first screen: at most 40 lines, for a person whose run has just crashed. What is cut is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from vramcast.estimate import peak_phase
from vramcast.report.bars import meter
from vramcast.report.why import head, verdict_line
from vramcast.report.words import VERDICTS, Page, edits, in_gib, owned, value, wrapped
from vramcast.types.result import Assumption, Forecast, LeverResult, PhaseBytes, gets_through
from vramcast.units import GIB, gib

LINES = 40
_TERMS, _LEVERS, _LONG_EDIT = 8, 3, 4
_SMALL = 200
"""a term below one part in so many is part of the rest"""
_NAME, _PHASE, _BAR_FROM = 26, 17, 64
_FIRST = (
    "algorithm", "tuning", "weights_dtype", "recompute", "shard", "loss", "micro_batch", "seq_len", "prompt_len",
    "response_len", "token_budget", "padding", "packing", "attention", "optimizer", "autocast", "compute_dtype",
    "engine.kind", "engine.process", "engine.fraction", "engine.sleep", "engine.max_len", "engine.max_seqs",
    "engine.max_batched_tokens", "engine.dtype", "engine.eager", "reference.kind", "offload.weights",
    "offload.optimizer", "accumulation", "quant.kind", "lora.rank", "lora.targets", "lora.dtype", "gpus", "wrap",
    "optimizer.impl", "recompute.reentrant",
)  # fmt: skip
"""Paths in the order in which their values move an answer most, by the size of the terms that they decide. The
framework has a line of its own."""


class Block(NamedTuple):
    """A part of the screen that can be made shorter: `at(n)` is the block in at most n lines, n >= last."""

    at: Callable[[int], list[str]]
    most: int
    least: int
    """lines that say enough"""
    last: int
    """lines when all blocks have been cut to what says enough, and it is too much still"""


def first_screen(answer: Forecast, page: Page, *, levers: bool = True) -> str:
    """The verdict and why, what was not understood, the terms, the phases, what was assumed, what to change."""
    width = page.width
    blocks = [
        _fixed([*wrapped(verdict_line(answer), width, ""), *labelled(head(answer), width)]),
        _said(answer, width),
        _terms(peak_phase(answer), answer.peak.bytes),
        _phases(answer, page),
        _fixed(cards(answer, width)),
        _assumed(answer.assumptions, width),
        _pulled(answer, width) if levers else _fixed(()),
    ]
    return "\n\n".join("\n".join(lines) for lines in _fitted([block for block in blocks if block.most]))


def _fitted(blocks: list[Block]) -> list[list[str]]:
    """Every block in as many lines as there are for it, a blank line between two."""
    sizes = [block.most for block in blocks]
    while sum(sizes) + len(blocks) - 1 > LINES:
        loose = [at for at, size in enumerate(sizes) if size > blocks[at].least]
        tight = [at for at, size in enumerate(sizes) if size > blocks[at].last]
        if not tight:
            break
        sizes[max(loose, key=lambda at: sizes[at] - blocks[at].least) if loose else tight[-1]] -= 1
    return [block.at(size) for block, size in zip(blocks, sizes, strict=True)]


def _fixed(lines: Iterable[str]) -> Block:
    found = list(lines)

    def at(size: int) -> list[str]:
        return found

    return Block(at, len(found), len(found), len(found))


def labelled(rows: Iterable[tuple[str, str]], width: int) -> Iterator[str]:
    """`label  text`, the text in a column of its own."""
    for label, text in rows:
        yield from wrapped(f"{label:<8}{text}", width, "", " " * 8)


# --- what was said and does not count as said ------------------------------------------------------------------------


def said_lines(answer: Forecast) -> list[tuple[str, list[str]]]:
    """(title, a line for each): what may make this another job than the user's first."""
    left_out = [warning for warning in answer.warnings if _changes_the_answer(warning)]
    return [
        ("unread", [f"{item.key}  ({item.where})" for item in answer.unread]),
        ("left out", left_out),
        ("without effect", [f"{item.path} = {value(item.value)}: {item.why}" for item in answer.ineffective]),
        ("overridden", [f"{item.path} = {value(item.value)} ({item.origin}) by {value(item.winner)} "
                        f"({item.winner_origin})" for item in answer.ignored]),
        ("warnings", [warning for warning in answer.warnings if warning not in left_out]),
    ]  # fmt: skip


def _changes_the_answer(warning: str) -> bool:
    return "not modelled" in warning or "left out" in warning


def _said(answer: Forecast, width: int) -> Block:
    """Every section keeps its title; what is cut is counted. Values without effect stand together by their reason."""
    said = dict(said_lines(answer))
    reasons = list(dict.fromkeys(item.why for item in answer.ineffective))
    named = [(why, [item.path for item in answer.ineffective if item.why == why]) for why in reasons]
    named.sort(key=lambda one: len(one[1]))
    said["without effect"] = [f"{', '.join(paths)}: {why}" for why, paths in named]
    counts = {title: [1] * len(lines) for title, lines in said.items()} | {
        "without effect": [len(paths) for _, paths in named]
    }
    sections = [Section(title, lines, counts[title]) for title, lines in said.items() if lines]

    def at(size: int) -> list[str]:
        """One more line of each section in turn, as long as there is room."""
        shown = [0] * len(sections)
        for turn in range(max(len(section.lines) for section in sections)):
            for index, section in enumerate(sections):
                longer = [*shown[:index], turn + 1, *shown[index + 1 :]]
                if turn < len(section.lines) and len(_sections(sections, longer, width)) <= size:
                    shown = longer
        return _sections(sections, shown, width)

    everything = _sections(sections, [len(section.lines) for section in sections], width)
    first = _sections(sections, [int(section.title in ("unread", "left out")) for section in sections], width)
    return Block(at, len(everything), len(first), len(sections))


class Section(NamedTuple):
    """Lines under a title, and how many values each line stands for."""

    title: str
    lines: list[str]
    counts: list[int]


def _sections(sections: list[Section], shown: list[int], width: int) -> list[str]:
    """Keys that were not read stand side by side, sentences below each other."""
    found: list[str] = []
    for section, count in zip(sections, shown, strict=True):
        left = sum(section.counts[count:])
        if not count:
            found.append(f"{section.title}: {left:,} (--full)")
        elif section.title == "unread":
            found += [section.title, *_flow(section.lines, count, width)]
        else:
            found += [section.title, *(piece for line in section.lines[:count] for piece in wrapped(line, width))]
            found += [_more(left)] if left else []
    return found


def _more(count: int) -> str:
    return f"  … and {count:,} more (--full)"


# --- terms and phases ------------------------------------------------------------------------------------------------


def _terms(phase: PhaseBytes, need: int) -> Block:
    """The largest terms; the rest as one sum. What is printed adds up to what is printed as the total."""
    rows = [(owned(term), term.bytes, term.low_bytes, term.high_bytes) for term in phase.terms]
    if need > phase.bytes:
        more = need - phase.bytes
        rows.append(("engine.kv, one sequence", more, more, more))
    rows.sort(key=lambda row: -row[1])
    large = sum(high * _SMALL >= need for _, _, _, high in rows)

    def at(size: int) -> list[str]:
        """The terms with the largest high ends, in the order of their bytes: what may be large is not in the rest."""
        shown = sorted(rows, key=lambda row: -row[3])[: min(large, size - 3)]
        rest = [row for row in rows if row not in shown]
        shown = [row for row in rows if row in shown or len(rest) == 1]
        if len(rest) > 1:
            low, high = sum(row[2] for row in rest), sum(row[3] for row in rest)
            shown.append((f"other ({len(rest)} terms)", sum(row[1] for row in rest), low, high))
        cells = in_gib([row[1] for row in shown], need, 2, rest=len(rest) > 1)
        lines = [f"{'at the peak':<{_NAME + 2}}{'GiB':>9}{'share':>8}   range"]
        for (name, amount, low, high), cell in zip(shown, cells, strict=True):
            span = "" if low == high else f"   {low / GIB:,.2f} to {high / GIB:,.2f}"
            lines.append(f"  {name:<{_NAME}}{cell:>9}{amount * 100 / need:>6.0f} %{span}")
        return [*lines, f"  {'total':<{_NAME}}{need / GIB:>9,.2f}"]

    most = len(at(_TERMS + 3))
    return Block(at, most, min(most, 6), min(most, 5))


def _phases(answer: Forecast, page: Page) -> Block:
    """A line for each phase: its worst instant. The phase of the peak is marked, and never left out."""
    worst, peak = _worst(answer), peak_phase(answer)
    top = max(phase.bytes for phase in worst)
    capacity = answer.peak.capacity_bytes

    def at(size: int) -> list[str]:
        kept = sorted(worst, key=lambda phase: (phase is not peak, -phase.high_bytes))
        count = size - 1 if size - 1 >= len(worst) else size - 2
        kept = kept[:count]
        lines = [f"{'phase':<{_PHASE + 2}}{'GiB':>9}{'at worst':>11}   its fullest instant"]
        for phase in worst:
            if phase not in kept:
                continue
            figures = f"{phase.bytes / GIB:>9,.2f}{phase.high_bytes / GIB:>11,.2f}"
            line = f"  {phase.name:<{_PHASE}}{figures}   {_when(phase)}"
            bar = meter(phase.bytes, capacity, top, page.width - _BAR_FROM) if page.bars else ""
            lines.append(f"{line:<{_BAR_FROM}}{bar}" if bar else f"{line}{_mark(answer, phase)}")
        if len(kept) < len(worst):
            lines.append(f"  … and {len(worst) - len(kept)} more (--full)")
        return lines

    return Block(at, len(worst) + 1, min(len(worst) + 1, 5), min(len(worst) + 1, 4))


def _worst(answer: Forecast) -> list[PhaseBytes]:
    """The fullest instant of every phase over both runs of the loop, in order; the peak's own where it is the peak."""
    peak = peak_phase(answer)
    found: dict[str, PhaseBytes] = {}
    for group in answer.groups:
        for phase in group.phases:
            fullest = found.get(phase.name)
            if fullest is None or phase is peak or (fullest is not peak and phase.bytes >= fullest.bytes):
                found[phase.name] = phase
    return list(found.values())


def _when(phase: PhaseBytes) -> str:
    return phase.instant + ("" if phase.when == "steady" else " (first step)")


def _mark(answer: Forecast, phase: PhaseBytes) -> str:
    capacity = answer.peak.capacity_bytes
    over = f"over by {gib(phase.bytes - capacity)}" if capacity is not None and phase.bytes > capacity else ""
    words = ", ".join(filter(None, ("peak" if phase is peak_phase(answer) else "", over)))
    return f"  {words}" if words else ""


# --- cards, assumptions, levers --------------------------------------------------------------------------------------


def cards(answer: Forecast, width: int) -> Iterator[str]:
    """The usual cards of the catalogue by verdict, where none was named; the smallest first."""
    if answer.cards:
        yield "cards (of the usual ones; `vramcast list gpus` has all)"
    for verdict in ("fits", "tight", "does_not_fit"):
        names = [card.gpu for card in answer.cards if card.verdict == verdict]
        if names:
            word = VERDICTS[verdict].lower()
            yield from wrapped(f"{word:<14}{', '.join(names)}", width, "  ", " " * 16)


def _assumed(assumptions: list[Assumption], width: int) -> Block:
    """What nobody said, what moves the answer most first; the framework has its own line."""
    order = {path: at for at, path in enumerate(_FIRST)}
    found = [item for item in assumptions if item.path != "framework"]
    found.sort(key=lambda item: order.get(item.path, len(order)))
    words = [f"{item.path}={value(item.value)}" for item in found]

    def at(size: int) -> list[str]:
        if size == 1:
            return [f"assumed: {len(words)} values (--full)"]
        count = len(words)
        while count and len(lines := _flow(words, count, width)) > size - 1:
            count -= 1
        lines = _flow(words, count, width)
        return ["assumed, what moves the answer most first (sources: --full)", *lines]

    most = 1 + len(_flow(words, len(words), width)) if words else 0
    return Block(at, most, min(most, 3), min(most, 1))


def _flow(words: list[str], count: int, width: int) -> list[str]:
    left = len(words) - count
    end = f", … and {left} more (--full)" if left else ""
    return list(wrapped(", ".join(words[:count]) + end, width, "  ", "  "))


def _pulled(answer: Forecast, width: int) -> Block:
    """Up to three levers for a job that may not fit, else one line."""
    if not answer.levers:
        return _fixed(nothing_helps())
    if answer.verdict in ("tight", "does_not_fit"):
        enough = [lever for lever in answer.levers if lever.verdict == "fits" or lever.gets_through > _yes(answer)]
        shown = [list(lever_lines([lever], width)) for lever in (enough or answer.levers)[:_LEVERS]]
        sizes = [1 + sum(map(len, shown[: count + 1])) for count in range(len(shown))]
        title = "to let it fit" if _yes(answer) else "change first"

        def at(size: int) -> list[str]:
            count = sum(each <= size for each in sizes)
            if not count:
                return [f"{title}: `vramcast levers`"]
            return [f"{title} (all: `vramcast levers`)", *(line for lines in shown[:count] for line in lines)]

        return Block(at, sizes[-1], sizes[0], sizes[0] if sizes[0] <= _LONG_EDIT else 1)
    best = answer.levers[0]
    line = f"lower it with {edits(best)}: {gib(best.peak_bytes)} ({best.price})"
    many = "1 edit lowers" if len(answer.levers) == 1 else f"{len(answer.levers)} edits lower"
    short = len(line) <= width and best.price in ("free", "slower")
    return _fixed([line if short else f"{many} the peak: `vramcast levers`"])


def _yes(answer: Forecast) -> bool:
    return gets_through(answer.verdict, answer.peak)


def lever_lines(levers: Iterable[LeverResult], width: int) -> Iterator[str]:
    """An edit in the user's own keys, its price, and where it leads."""
    for lever in levers:
        outcome = f", {outcome_of(lever)}" if lever.verdict else ""
        yield from wrapped(f"{edits(lever)}  ({lever.price}): {gib(lever.peak_bytes)}{outcome}", width)


def outcome_of(lever: LeverResult) -> str:
    """The verdict after a lever, in words; empty without a card."""
    if lever.verdict is None:
        return ""
    if lever.verdict == "tight" and lever.gets_through:
        return "tight, but gets through"
    return VERDICTS[lever.verdict].lower()


def nothing_helps() -> Iterator[str]:
    """The one line where no lever helps."""
    yield "nothing that is modelled lowers the peak: `vramcast levers` says why"
