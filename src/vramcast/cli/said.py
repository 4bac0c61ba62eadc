"""Flags and files as facts: what the user said, strongest first."""

from __future__ import annotations

import argparse
import sys

from vramcast.errors import Mistakes, Refused, refuse
from vramcast.types.job import Fact, Origin, Understanding, check_value
from vramcast.types.paths import is_path


def said(options: argparse.Namespace) -> Understanding:
    """Flags and files as facts, strongest first: --set, then --model/--gpu/--gpus, then the files in their order, then
    what `--gpu auto` read beside the card."""
    mistakes = Mistakes()
    facts: list[Fact] = []
    machine = Understanding([])
    words: dict[str, str] = {}
    for text in reversed(options.set):  # the last one said wins
        with mistakes.collect():
            path, raw = _assignment(text)
            if is_path(path) or not _is_word(path):
                facts.append(Fact(path, check_value(path, raw, Origin("--set")), Origin("--set")))
            else:
                words.setdefault(path, raw)
    told = Understanding([])
    if words:
        from vramcast.readers.user_words import read_words

        with mistakes.collect():
            told = read_words(words, {key: Origin("--set", key) for key in words})
    for path in ("model", "gpu", "gpus"):
        raw = getattr(options, path)
        if (path, raw) == ("gpu", "auto"):
            with mistakes.collect():
                card, machine = _this_machine()
                facts.append(card)
        elif raw is not None:
            with mistakes.collect():
                origin = Origin(f"--{path}")
                facts.append(Fact(path, check_value(path, raw, origin), origin))
    result = told + Understanding(facts)
    for source in options.config:
        from vramcast.readers import read_config

        try:
            result = result + read_config(source, sys.stdin)
        except Refused as refused:
            result = result + Understanding([], mistakes=refused.mistakes, misread=True)
    result = result + machine
    if options.hub:
        try:
            _fetch_model(result)
        except Refused as refused:  # said once: nobody looks for this model again
            result.facts[:] = [fact for fact in result.facts if fact.path != "model"]
            result = result + Understanding([], mistakes=refused.mistakes, misread=True)
    if options.installed:
        with mistakes.collect():
            result = _installed(result)
    result.mistakes[:0] = mistakes.found
    return result


def _installed(question: Understanding) -> Understanding:
    """The job's framework in the version of this environment; a version that `--set` names beats it."""
    from importlib.metadata import PackageNotFoundError, version

    from vramcast.catalog.frameworks import usual_framework

    asked = question.winners()
    fact = asked.get("framework")
    if fact is not None and fact.origin.where == "--set":
        return question
    name = str(fact.value if fact is not None else usual_framework(asked)).partition("==")[0]
    try:
        found = version(name)
    except PackageNotFoundError:
        raise refuse(
            f"{name} is not installed in this environment",
            **{"from": "--installed", "help": f"run it where {name} is, or --set framework={name}==VERSION"},
        ) from None
    said = Fact("framework", f"{name}=={found}", Origin("--installed"))
    return Understanding([said]) + question


def _fetch_model(question: Understanding) -> None:
    """Bring the job's model into this machine's cache, unless it is known without."""
    from vramcast.catalog.hub import fetch_config, is_hub_id
    from vramcast.catalog.models import model_config

    model = question.winners().get("model")
    if model is None or not is_hub_id(str(model.value)):
        return
    try:
        if not model_config(str(model.value)).assumed:
            return
    except Refused:
        pass
    fetch_config(str(model.value))


def _this_machine() -> tuple[Fact, Understanding]:
    """The card of this machine, and how many there are and how busy: facts that anything said beats."""
    from vramcast.catalog.cards import this_machine

    found = this_machine()
    origin = Origin(found.tool)
    beside = [Fact("gpus", found.count, origin), Fact("busy_bytes", found.busy_bytes, origin)]
    return Fact("gpu", found.gpu.id, origin), Understanding(beside, warnings=found.warnings)


def _is_word(key: str) -> bool:
    """A key of a framework; the readers' tables are asked only for what is no path."""
    from vramcast.readers.user_words import is_word

    return is_word(key)


def _assignment(text: str) -> tuple[str, str]:
    path, sign, raw = text.partition("=")
    if not sign:
        raise refuse(f"--set {text}: no value", use=f"--set {text}=VALUE")
    return path.strip(), raw
