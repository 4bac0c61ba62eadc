"""The command `vramcast`: thin verbs over the library. stdout is the answer, stderr the remarks.

Exit codes: 0 answered yes, 1 answered no, 2 the question was wrong. Without an answer: 70 a fault of ours, 74 it could
not be written, 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import NoReturn, TypeAlias

from vramcast import __version__
from vramcast.cli.ending import ended
from vramcast.cli.output import coloured, print_json
from vramcast.cli.questions import not_there_yet, questions
from vramcast.cli.said import said
from vramcast.cli.tracing import run_trace, trace_options, traced_by, traced_phases
from vramcast.cli.verdict import exit_of
from vramcast.errors import Mistake, Mistakes, Refused, near, refuse
from vramcast.types.job import Understanding

Verbs: TypeAlias = "argparse._SubParsersAction[_Parser]"  # pyright: ignore[reportPrivateUsage]
_LISTS = tuple("gpus models terms levers optimizers dtypes overheads algorithms frameworks paths schema".split())


def run() -> NoReturn:
    """The console script. The process is short: collecting garbage would only cost time, and most of it at the end."""
    gc.disable()
    code = ended(main)
    gc.freeze()
    sys.exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code. What no user did wrong is raised: `run` makes one line of it."""
    try:
        options = _parser().parse_args(argv)
        return options.run(options)
    except Refused as refused:
        print(refused, file=sys.stderr)
        return 2


class _Parser(argparse.ArgumentParser):
    """Wrong words on the command line are refused as all else that is wrong."""

    def error(self, message: str) -> NoReturn:
        raise not_there_yet(message) or refuse(message, use=f"{self.prog} --help")


@cache
def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="vramcast", description="GPU memory of LLM post-training, before the run.",
                     epilog=questions(), formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--version", action="version", version=f"vramcast {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    check = _verb(verbs, "check", _check, "will it fit, where does it peak, what holds it")
    check.add_argument("--full", action="store_true", help="all terms, instants and sources, not one screen")
    check.add_argument("--strict", action="store_true", help="keys that were not read are an error, tight is no yes")
    _formats(check, markdown="print markdown, for an issue or a pull request")
    check.add_argument("--method", choices=("formula", "trace"), default="formula", help="trace: run the real step")
    trace_options(check)
    check.add_argument("--rules", choices=("article",), help="the rules of thumb of docs/articles.md instead")
    check.add_argument("--compare", action="store_true", help="rules of thumb beside the forecast, and why they differ")
    levers = _verb(verbs, "levers", _levers, "ranked edits that lower the peak, each estimated again")
    _formats(levers)
    explain = _verb(verbs, "explain", _explain, "every term with formula and figures; the manual of one")
    explain.add_argument("--term", metavar="NAME", help="one term; without a job, its page of the manual")
    explain.add_argument("--phase", metavar="NAME", help="another phase than the peak's")
    explain.add_argument(
        "--arch", action="store_true", help="the model's blocks, weights, cache and adapters, and one rank's share"
    )
    explain.add_argument("--tensors", action="store_true", help="with --arch: every parameter tensor and its shape")
    explain.add_argument("--adapter", metavar="FILE", help="with --arch: a PEFT adapter_config.json, or its folder")
    _formats(explain)
    read = _verb(verbs, "read", _read, "the job as understood, with origins")
    _formats(read)
    read.add_argument("--job", choices=("toml", "yaml", "json"), help="print a job file instead")
    tracing = _verb(verbs, "trace", run_trace, "the real step on fake tensors, beside the formulas (extra `trace`)")
    tracing.add_argument("--step", metavar="MODULE:FUNCTION", help="a step of your own instead of a job's")
    tracing.add_argument("--snapshot", metavar="FILE", help="write a predicted memory snapshot, for PyTorch's viewer")
    tracing.add_argument("--flame", nargs="?", const="-", metavar="FILE",
                         help="what the peak holds, by module; into FILE as folded stacks")  # fmt: skip
    tracing.add_argument("--save-arch", metavar="FILE", help="write the traced model, for --model: more sizes run")
    trace_options(tracing)
    _formats(tracing)
    benching = verbs.add_parser("bench", help="predicted against measured: the catalogue, or rows of files")
    benching.add_argument(
        "files", nargs="*", metavar="FILE", help="rows as JSON lines, or a folder of them; without: the catalogue"
    )
    benching.add_argument(
        "--method", choices=("formula", "trace"), default="formula", help="what predicts a training run"
    )
    trace_options(benching)
    _formats(benching, markdown="print a table of the errors")
    benching.set_defaults(run=_bench)
    listing = verbs.add_parser("list", help="what the catalogue and the memory model know")
    listing.add_argument("what", choices=_LISTS)
    _formats(listing)
    listing.set_defaults(run=_list)
    for one in (parser, *verbs.choices.values()):
        one.add_argument("--debug", action="store_true", help="show the traceback of an internal fault")
    return parser


def _verb(verbs: Verbs, name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=text, description=text)
    parser.add_argument("config", nargs="*", metavar="CONFIG", help="what you run with; - reads standard input")
    parser.add_argument("--model", help="catalogue name, a path to a config.json, or a Hub id (see --hub)")
    parser.add_argument("--hub", action="store_true", help="fetch the config.json of an unknown model from the Hub")
    parser.add_argument(
        "--installed", action="store_true", help="price the framework's version that is installed in this environment"
    )
    parser.add_argument("--gpu", help="card, as the catalogue or a driver names it; auto: the cards of this machine")
    parser.add_argument("--gpus", metavar="N", help="GPUs in all")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="see `vramcast list paths`")
    parser.set_defaults(run=run)
    return parser


def _formats(parser: argparse.ArgumentParser, markdown: str = "") -> None:
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--json", action="store_true", help="print JSON (`vramcast list schema`)")
    if markdown:
        one.add_argument("--markdown", action="store_true", help=markdown)


def _check(options: argparse.Namespace) -> int:
    from msgspec import structs

    from vramcast.estimate import forecast
    from vramcast.estimate.longest import fits_up_to_tokens
    from vramcast.levers import pull

    question = said(options)
    if options.strict and question.unread:
        question.mistakes += _unread(question).mistakes
    if options.method != "trace":
        _says_nothing(options, question, "goes with --method trace", "no_cache", "trust_remote_code")
    if options.rules or options.compare:
        if options.method == "trace":
            question.mistakes.append(Mistake("--method trace: the articles' rules stand beside the formulas"))
        return _check_articles(options, question)
    if (options.model or "").lower().startswith("article/"):
        raise refuse(f"{options.model} is a round model of the articles' rules", use="--rules article, or --compare")
    failed = False
    if options.method == "trace":
        traced = traced_by(options, question)
        answer, failed = traced.forecast, traced.judged.failed is not None
    else:
        answer = forecast(question, texts=options.json)
        levers, tokens = pull(question, answer), fits_up_to_tokens(question, answer)
        answer = structs.replace(answer, levers=levers, fits_up_to_tokens=tokens)
    if options.json:
        print_json(answer)
    else:
        from vramcast.report.markdown import show_markdown
        from vramcast.report.text import show
        from vramcast.report.words import page

        text = show(answer, levers=options.method != "trace", full=options.full, page=page())
        print(show_markdown(answer) if options.markdown else coloured(text))
    return exit_of(answer, strict=options.strict, failed=failed)


def _levers(options: argparse.Namespace) -> int:
    from vramcast.estimate import forecast
    from vramcast.levers import pull_all
    from vramcast.report.levers import levers_of, show_levers

    question = said(options)
    answer = forecast(question, cards=False)
    pulled = pull_all(question, answer)
    if options.json:
        print_json(levers_of(answer, pulled))
    else:
        print(show_levers(answer, pulled))
    return 0


def _check_articles(options: argparse.Namespace, question: Understanding) -> int:
    """`check --rules article` and `check --compare`."""
    from vramcast.estimate import forecast
    from vramcast.report import rules_of_thumb
    from vramcast.rules_of_thumb import by_rules, compare

    if options.compare:
        both = compare(question)
        if options.json:
            print_json(both)
        else:
            print((rules_of_thumb.markdown_comparison if options.markdown else rules_of_thumb.show_comparison)(both))
        if both.peak is None:
            return int(both.article.fits is False)
        return exit_of(forecast(question), strict=options.strict)
    answer = by_rules(question)
    if options.json:
        print_json(answer)
    else:
        print((rules_of_thumb.markdown_rules if options.markdown else rules_of_thumb.show_rules)(answer))
    return int(answer.fits is False)


def _explain_arch(options: argparse.Namespace) -> int:
    from vramcast.report.arch import arch_report
    from vramcast.report.arch_text import show_arch

    question = said(options)
    _says_nothing(options, question, "is of a forecast: it does not go with --arch", "term", "phase")
    Mistakes(question.mistakes).done()
    report = arch_report(question, options.adapter, tensors=options.tensors)
    if options.json:
        print_json(report)
    else:
        print(show_arch(report))
    return 0


def _explain(options: argparse.Namespace) -> int:
    if options.arch:
        return _explain_arch(options)
    from vramcast.estimate import forecast, peak_phase, resolve
    from vramcast.memory.term import TERMS
    from vramcast.report.explain import explain_phase, manual

    more = (options.config, options.model, options.set, options.gpu, options.gpus, options.phase, options.adapter)
    if options.term in TERMS and not any((*more, options.json)):
        print(manual(options.term))
        return 0
    question = said(options)
    _says_nothing(options, question, "goes with --arch", "adapter", "tensors")
    if options.term is not None and options.term not in TERMS:
        wrong = Mistakes(question.mistakes)
        wrong.add(f"unknown term {options.term!r}", near=near(options.term, TERMS), allowed=", ".join(TERMS))
        if not any(more):
            wrong.done()
        question.mistakes = wrong.found
    answer = forecast(question, texts=options.json, cards=False)
    phase = peak_phase(answer)
    if options.phase is not None:
        phases = [found for group in answer.groups for found in group.phases if found.name == options.phase]
        if not phases:
            names = dict.fromkeys(found.name for group in answer.groups for found in group.phases)
            raise refuse(f"unknown phase {options.phase!r}", allowed=", ".join(names))
        phase = max(phases, key=lambda found: found.bytes)
    if options.json:
        print_json(phase)
    else:
        print(explain_phase(resolve(question), phase, options.term))
    return 0


def _read(options: argparse.Namespace) -> int:
    from vramcast.estimate import ineffective, resolve
    from vramcast.readers.native import write_job
    from vramcast.report.lists import show_job
    from vramcast.report.read import understood
    from vramcast.report.text import value

    question = said(options)
    if options.job:
        Mistakes(question.mistakes).done()
        print(write_job(question.job(), options.job), end="")
        return 0
    job = resolve(question)
    without = ineffective(question, job)
    if options.json:
        print_json(understood(job, question, without))
        return 0
    print(show_job(job))
    if question.no_effect:
        print(f"no effect on memory: {', '.join(item.key for item in question.no_effect)}", file=sys.stderr)
    for item in without:
        print(f"without effect: {item.path} = {value(item.value)}: {item.why}", file=sys.stderr)
    for item in job.unread:
        print(f"unread: {item.key}  ({item.where})", file=sys.stderr)
    for warning in job.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return 0


def _bench(options: argparse.Namespace) -> int:
    from vramcast.report.validation import markdown_bench, show_bench
    from vramcast.validation import bench

    if options.method == "trace":
        with traced_phases(options) as phases:
            answer = bench(options.files, phases)
    else:
        answer = bench(options.files)
    if options.json:
        print_json(answer)
    else:
        print(markdown_bench(answer) if options.markdown else show_bench(answer))
    return 0 if answer.holds else 1


def _list(options: argparse.Namespace) -> int:
    from vramcast.report.lists import brief, rows
    from vramcast.report.schemas import schemas

    if options.what == "schema":
        print_json(schemas())
        return 0
    if options.json:
        print_json(rows(options.what))
    else:
        print(brief(options.what))
    return 0


def _says_nothing(options: argparse.Namespace, question: Understanding, why: str, *names: str) -> None:
    """Flags that another flag would leave without effect."""
    given = [name.replace("_", "-") for name in names if getattr(options, name)]
    question.mistakes += [Mistake(f"--{name} {why}") for name in given]


def _unread(question: Understanding) -> Refused:
    return refuse("keys that were not read", **{item.key: item.where for item in question.unread})
