"""Ask the forecaster as a user does: flags and files in, the JSON of `check` out."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from typing import Any

from vramcast.cli import main

Instant = tuple[str, str, str]
"""(phase, instant, first or steady)"""


def check(*arguments: str) -> dict[str, Any]:
    """What `vramcast check ... --json` prints."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        main(["check", *arguments, "--json"])
    return json.loads(printed.getvalue())


def settings(**values: object) -> list[str]:
    """`--set path=value` for every value; `__` stands for the dot of a path."""
    return [word for path, value in values.items() for word in ("--set", f"{path.replace('__', '.')}={value}")]


def phases(answer: dict[str, Any]) -> dict[Instant, dict[str, Any]]:
    """Every instant of a job with one group."""
    return {(phase["name"], phase["instant"], phase["when"]): phase for phase in answer["groups"][0]["phases"]}


def terms(phase: dict[str, Any]) -> dict[str, int]:
    """Term → bytes."""
    return {term["name"]: term["bytes"] for term in phase["terms"]}
