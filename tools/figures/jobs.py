"""Jobs of a document: names that it defines itself, edits, and words that are settled by asking again.

    SFT LoRA lora.rank=8          the commands that the document has under these names, and an edit
    article/7b tuning=lora        a model; the articles' round ones, and `rules`, ask the rules of thumb
    GRPO worked gpus=2 settled    with the smallest `engine.fraction` that holds the rollout
    GRPO quick fewest             on as few GPUs as it fits; `fewest=8`: with 8 responses a step, shared by the GPUs
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from functools import cache

from vramcast.errors import Refused
from vramcast.estimate import forecast, resolve
from vramcast.estimate.rollout import sequences_per_engine
from vramcast.rules_of_thumb import ArticleForecast, by_rules
from vramcast.types.job import Fact, Origin, Understanding, check_value
from vramcast.types.result import Forecast, gets_through

Job = dict[str, str]
_NAMED = re.compile(r"^\| (\w+) \| (`(?:vramcast check|--set) .*`[^|]*)\|$", re.MULTILINE)
_LABELLED = re.compile(r"^<!-- job ([\w ]+) -->\n+```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`((?:vramcast check |--set )[^`]*)`")
_COUNTS, _RANKS = (1, 2, 4, 8, 16), (1, 2, 4, 8)
_HUNDREDTH = Decimal("0.01")


def named_jobs(text: str) -> dict[str, Job]:
    """Name -> paths: rows of a table of commands, and labelled code blocks."""
    found = {name: job_of(" ".join(_CODE.findall(cell))) for name, cell in _NAMED.findall(text)}
    for labels, block in _LABELLED.findall(text):
        for name, command in zip(labels.split(), block.replace("\\\n", " ").splitlines(), strict=False):
            found[name] = job_of(command)
    return found


def job_of(command: str) -> Job:
    """The paths of a command line of flags that name a path."""
    found: Job = {}
    words = iter(word for word in shlex.split(command) if word not in ("vramcast", "check"))
    for flag in words:
        path, _, value = next(words).partition("=") if flag == "--set" else (flag.removeprefix("--"), "", next(words))
        found[path] = value
    return found


def job(words: str, names: Mapping[str, Job]) -> Job:
    """The paths of an expression.

    Raises:
        Refused: of a job that is settled by asking.
    """
    found: Job = {}
    for word in words.split():
        path, equals, value = word.partition("=")
        if word == "settled":
            found = settled(found)
        elif path == "fewest":
            found = smallest(found, responses=int(value or 0))
        elif equals:
            found[path] = value
        elif word in names:
            found |= names[word]
        elif word != "rules":
            found["model"] = word
    return found


def asks_rules(words: str) -> bool:
    """Whether an expression asks the rules of thumb."""
    return any(word == "rules" or word.startswith("article/") for word in words.split())


def exact(asked: Job) -> Forecast:
    """The forecast; asked once however often it is quoted."""
    return _forecast(tuple(sorted(asked.items())))


@cache
def _forecast(items: tuple[tuple[str, str], ...]) -> Forecast:
    return forecast(said(dict(items)), cards=False)


def rules(asked: Job) -> ArticleForecast:
    """The rules' answer."""
    return by_rules(said(asked))


def said(asked: Job) -> Understanding:
    """The facts of a job."""
    origin = Origin("document")
    return Understanding([Fact(path, check_value(path, raw, origin), origin) for path, raw in asked.items()])


def settled(asked: Job) -> Job:
    """The job with the smallest `engine.fraction` (in hundredths) that holds the whole rollout at once.

    Never more than leaves the trainer its room; never less than one sequence needs, without which nothing starts.
    """
    trial = {**asked, "engine.fraction": "0.9"}
    group = exact(trial).groups[0]
    engine, capacity = group.engines[0], group.capacity_bytes
    assert capacity is not None
    low, high = Decimal(str(engine.fraction_low)), Decimal(str(engine.fraction_high))
    settings = resolve(said(trial)).settings
    others = sequences_per_engine(settings) - 1
    more = Decimal(others * settings.seq_len * engine.kv_bytes_per_token) / capacity
    wanted = (low + more).quantize(_HUNDREDTH, rounding=ROUND_CEILING)
    return {**asked, "engine.fraction": str(min(max(min(wanted, high), low), Decimal("0.95")))}


def smallest(asked: Job, responses: int = 0) -> Job:
    """The job on as few GPUs as it fits, under FSDP2, with the smallest `engine.tp` that fits there, settled.

    With `responses` the step's responses stay the same and each GPU takes its share of them, at least one. Gives the
    last one tried when none fits.
    """
    chosen = asked
    for gpus in _COUNTS:
        for ranks in _RANKS:
            layout = {**asked, "gpus": str(gpus), "engine.tp": str(ranks), **({"shard": "fsdp2"} if gpus > 1 else {})}
            if responses:
                layout["micro_batch"] = str(max(responses // gpus, 1))
            try:
                chosen = settled(layout)
            except Refused:
                continue
            answer = exact(chosen)
            if gets_through(answer.verdict, answer.peak):
                return chosen
    return chosen
