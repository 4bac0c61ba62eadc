"""The rules of the two articles as text, and the comparison with the forecast as text and markdown."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from vramcast.report.words import WIDTH, value
from vramcast.rules_of_thumb import ArticleForecast, Comparison
from vramcast.rules_of_thumb.answer import ArticlePhase, ArticleTerm
from vramcast.rules_of_thumb.compare import ComparedPart, ComparedPhase
from vramcast.units import GIB

_WORDS = {"fits": "fits", "tight": "tight", "does_not_fit": "does not fit"}


def show_rules(answer: ArticleForecast) -> str:
    """The verdict of the rules, the model's four numbers, and every sum line by line."""
    blocks = [_head(answer), *(_phase(phase) for phase in answer.phases), _inputs(answer)]
    return "\n\n".join("\n".join(block) for block in blocks)


def rules_line(answer: ArticleForecast) -> str:
    """The first line: what the rules say of the card."""
    if answer.capacity_gb is None:
        return f"RULES OF THUMB: {_gb(answer.peak_gb)} GB on one GPU"
    word = "fits" if answer.fits else "does not fit"
    return f"RULES OF THUMB: {_gb(answer.peak_gb)} GB, {_gb(answer.capacity_gb)} GB on {answer.gpu}: {word}"


def _head(answer: ArticleForecast) -> list[str]:
    shape = answer.model
    return [
        rules_line(answer),
        f"largest sum: {answer.peak_phase}",
        f"{shape.name}: L = {shape.layers}, h = {shape.hidden:,}, a = {shape.heads}, P = {shape.params:,}",
        "GB is 10^9 bytes for parameters, 1024^3 for cache and activations, added as",
        "they are: so do the articles. `vramcast check --compare` has the exact figures.",
    ]


def _phase(phase: ArticlePhase) -> list[str]:
    lines = [f"{phase.name:<30}{'GB':>10}  rule"]
    for term in phase.terms:
        lines.append(f"  {_name(term):<28}{_less(term.gb, term.bound):>10}  {term.rule}")
        figures = f" = {term.figures}" if term.bytes else ""
        lines += _wrapped(f"{term.formula}{figures}", "      ")
        lines += _wrapped(term.note, "      ") if term.note else []
    return [*lines, f"  {'sum':<28}{_less(phase.gb, phase.bound):>10}"]


def _less(amount: Decimal, bound: bool) -> str:
    return f"< {_gb(amount)}" if bound else _gb(amount)


def _name(term: ArticleTerm) -> str:
    return term.name if term.role == "policy" else f"{term.name} ({term.role})"


def _inputs(answer: ArticleForecast) -> list[str]:
    lines = ["read"]
    for item in answer.inputs:
        lines += _wrapped(f"{item.path} = {value(item.value)}  ({item.origin})", "  ")
    if answer.unread:
        lines += _wrapped("no rule reads " + ", ".join(answer.unread), "  ")
    return lines


def markdown_rules(answer: ArticleForecast) -> str:
    """The sums of the rules as tables of markdown."""
    lines = [f"**{rules_line(answer)}**"]
    for phase in answer.phases:
        lines += ["", f"{phase.name}: {_less(phase.gb, phase.bound)} GB", ""]
        lines += ["| part | GB | rule | formula | figures |", "|---|---:|---:|---|---|"]
        for term in phase.terms:
            figures = (_name(term), _less(term.gb, term.bound), str(term.rule), term.formula, term.note or term.figures)
            lines.append(f"| {' | '.join(figures)} |")
    return "\n".join(lines)


def show_comparison(answer: Comparison) -> str:
    """Both answers in 80 columns: a block for each sum of the articles."""
    blocks = [_compared_head(answer), *(list(_compared(phase)) for phase in answer.phases), _inputs(answer.article)]
    return "\n\n".join("\n".join(block) for block in blocks)


def _compared_head(answer: Comparison) -> list[str]:
    lines = [rules_line(answer.article), f"EXACT: {_exact(answer)}"]
    return [*lines, *(line for why in answer.refused for line in _wrapped(why, "  "))]


def _exact(answer: Comparison) -> str:
    if answer.peak is None:
        return "no answer"
    peak = answer.peak
    need = f"{peak.bytes / GIB:,.2f} GiB"
    if peak.capacity_bytes is None or answer.verdict is None:
        return f"{need} on one GPU"
    return f"{need}, {peak.capacity_bytes / GIB:,.2f} GiB on {answer.article.gpu}: {_WORDS[answer.verdict]}"


def _compared(phase: ComparedPhase) -> Iterator[str]:
    yield f"{phase.name:<24}{'article GB':>12}{'= GiB':>11}{'exact GiB':>12}"
    if phase.instant:
        yield f"  exact: {phase.instant}"
    for part in phase.parts:
        article, same, exact = _figures(part)
        yield f"  {part.part:<22}{article:>12}{same:>11}{exact:>12}"
        if part.reason:
            yield from _wrapped(part.reason, "      ")


def _figures(part: ComparedPart) -> tuple[str, str, str]:
    return (
        "–" if part.article_gb is None else _gb(part.article_gb),
        "–" if part.article_bytes is None else f"{part.article_bytes / GIB:,.2f}",
        "–" if part.exact_bytes is None else f"{part.exact_bytes / GIB:,.2f}",
    )


def markdown_comparison(answer: Comparison) -> str:
    """The comparison as tables of markdown, for an issue or a page."""
    lines = [f"**{rules_line(answer.article)}**", "", f"**EXACT: {_exact(answer)}**"]
    lines += [f"\n{why}" for why in answer.refused]
    for phase in answer.phases:
        at = f" (exact: {phase.instant})" if phase.instant else ""
        lines += ["", f"{phase.name}{at}", ""]
        lines += ["| part | article GB | = GiB | exact GiB | why |", "|---|---:|---:|---:|---|"]
        lines += [f"| {part.part} | {' | '.join(_figures(part))} | {part.reason} |" for part in phase.parts]
    return "\n".join(lines)


def _gb(amount: Decimal) -> str:
    return f"{amount:,.2f}"


def _wrapped(text: str, indent: str) -> Iterator[str]:
    import textwrap

    yield from textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "  ")
